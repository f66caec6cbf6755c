#!/usr/bin/env python3
"""Fine-tunes a model once with every recipe on the same rows and compares the losses on held-out text.

    python3 scripts/convergence.py MODEL WORK [--runs f32,bf16,...] [--steps 300] [--seq 160] [--seeds 0]

The text is this repository's own prose: its documents and the documentation of its code, every 24th file held out. Of
each run the loss on the held-out text is taken twice: by the run itself, in the operands that it trains with, and of what it
exported, in f32. A run that WORK already holds is not made again. Prints a table and writes the curves to
WORK/convergence.svg.
"""
import argparse, json, re, statistics, subprocess, sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
RUNS = {
    "f32": ["--recipe", "f32"],
    "fp8-lean": ["--recipe", "fp8-lean"],
    "fp8": ["--recipe", "fp8"],
    "bf16-lean": ["--recipe", "bf16-lean"],
    "fp8-lean in f32": ["--recipe", "fp8-lean", "--compute", "f32"],
    "fp8 in f32": ["--recipe", "fp8", "--compute", "f32"],
    "bf16": ["--recipe", "bf16"],
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("model", help="a Hugging Face folder, or demo")
parser.add_argument("work", type=Path)
parser.add_argument("--nestling", type=Path, default=HERE / "target/release/nestling")
parser.add_argument("--runs", default=",".join(RUNS))
parser.add_argument("--seeds", default="0")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--seq", type=int, default=160)
parser.add_argument("--global-batch", type=int, default=1)
parser.add_argument("--lr", default="1e-4")
parser.add_argument("--threads", default="0")
options = parser.parse_args()


def paragraphs(path):
    """The prose of a document, or of a source file's documentation."""
    text = path.read_text()
    if path.suffix == ".rs":
        text = "\n".join(re.sub(r"^//[/!] ?", "", line.strip()) if re.match(r"//[/!]", line.strip()) else ""
                         for line in text.splitlines())
    return [part.strip() for part in re.split(r"\n\s*\n", text) if len(part.split()) > 5]


def write_data(folder):
    files = sorted([*HERE.glob("*.md"), *HERE.glob("docs/**/*.md"), *HERE.glob("crates/*/src/**/*.rs")])
    split = {"train": [], "held-out": []}
    for number, path in enumerate(files):
        text = "\n\n".join(paragraphs(path))
        if len(text) > 400:
            split["held-out" if number % 24 == 23 else "train"].append(text)
    for name, texts in split.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def run(name, seed):
    out = options.work / f"{name.replace(' ', '-')}-{seed}"
    held_out = options.work / "held-out.jsonl"
    if not (out / "config.json").exists():
        data = [] if options.model == "demo" else [options.work / "train.jsonl"]
        held = [] if options.model == "demo" else ["--eval", held_out]
        subprocess.run([options.nestling, "train", options.model, *data, "--out", out, *RUNS[name], "--seed", str(seed),
                        "--steps", str(options.steps), "--seq", str(options.seq), "--lr", options.lr, "--warmup", "20",
                        "--global-batch", str(options.global_batch), "--clip", "previous", "--threads", options.threads,
                        "--eval-every", "100", *held], check=True, stdout=subprocess.DEVNULL)
    events = [json.loads(line) for line in (out / "run/metrics.jsonl").read_text().splitlines()]
    losses = [(event["step"], event["loss"]) for event in events if event["event"] == "eval"]
    exported = None
    if options.model != "demo":
        report = subprocess.run([options.nestling, "eval", out, held_out, "--seq", str(options.seq), "--json"],
                                check=True, capture_output=True, text=True).stdout
        exported = json.loads(report)["loss"]
    return losses, exported


def draw(curves):
    """The held-out losses, less those of f32 at the same step, in percent."""
    width, height, colors = 640, 320, ["#1f4e8c", "#2a8c5a", "#b3541e", "#8c1f4e", "#6b6b6b", "#b38f1e"]
    base = dict(curves["f32"])
    lines = {name: [(step, 100 * (loss / base[step] - 1)) for step, loss in losses] for name, losses in curves.items()}
    top = max(0.1, max(abs(gap) for line in lines.values() for _, gap in line)) * 1.1
    last = max(base)
    at = lambda step, gap: (60 + (width - 220) * step / last, height / 2 - (height / 2 - 30) * gap / top)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="white"/>']
    for gap in (-top, -top / 2, 0, top / 2, top):
        x, y = at(0, gap)
        svg.append(f'<line x1="{x}" y1="{y:.1f}" x2="{at(last, 0)[0]}" y2="{y:.1f}" stroke="#ddd"/>'
                   f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{gap:+.2f} %</text>')
    for number, (name, line) in enumerate(item for item in lines.items() if item[0] != "f32"):
        color = colors[number % len(colors)]
        points = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in line)
        svg.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                   f'<text x="{width - 150}" y="{40 + 18 * number}" fill="{color}">{name}</text>')
    svg.append(f'<text x="60" y="{height - 6}">held-out loss against f32, {last} steps</text></svg>')
    (options.work / "convergence.svg").write_text("\n".join(svg))


options.work.mkdir(parents=True, exist_ok=True)
if options.model != "demo" and not (options.work / "train.jsonl").exists():
    write_data(options.work)
print("| recipe | held out, as trained | against f32 | held out, exported in f32 | against f32 |\n|---|---|---|---|---|")
curves, baseline = {}, {}
for name in options.runs.split(","):
    trained, exported = [], []
    for seed in options.seeds.split(","):
        losses, in_f32 = run(name, seed)
        curves.setdefault(name, losses)
        trained.append(losses[-1][1])
        exported.append(in_f32)
        print(f"{name} {seed}: {losses} {in_f32}", file=sys.stderr)
    baseline.setdefault("trained", trained)
    baseline.setdefault("exported", exported)
    gap = lambda ours, theirs: f"{100 * statistics.mean(a / b - 1 for a, b in zip(ours, theirs)):+.3f} %"
    columns = [f"{statistics.mean(trained):.5f}", gap(trained, baseline["trained"])]
    columns += [f"{statistics.mean(exported):.5f}", gap(exported, baseline["exported"])] if exported[0] else ["", ""]
    print("| " + " | ".join([name, *columns]) + " |", flush=True)
draw(curves)
