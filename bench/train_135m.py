#!/usr/bin/env python3
"""Nestling against PyTorch eager on the same model, tokens and machine, in alternation.

    python3 bench/train_135m.py --python VENV/bin/python [--rounds 3] [--steps 6] [--seq 512] [--nestling target/release/nestling]

VENV has torch and transformers. The model is `nestling init 135m` (SmolLM2-135M's shape, random weights), one
micro-batch of one sequence, f32, AdamW, no clipping, 2 threads. Each round runs every contender once; a contender's
figure is the median over rounds of the median step after the first two. The limit beside them is the rate of the
`gemm` crate on the step's own shapes in the same minutes. Results go to bench/results/ with date and machine.
"""
import argparse, datetime, json, os, platform, shutil, statistics, subprocess, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--python", required=True)
parser.add_argument("--nestling", type=Path, default=HERE.parent / "target/release/nestling")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--seq", type=int, default=512)
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_args()
nestling = options.nestling.resolve()


def token_ids(count):
    """A fixed integer recurrence; ids below 4003."""
    x, ids = 20240601, []
    for _ in range(count):
        x = (1103515245 * x + 12345) % 2**31
        ids.append(3 + (x >> 8) % 4000)
    return ids


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def torch(work, checkpointing):
    extra = ["--checkpointing"] if checkpointing else []
    out = run([options.python, HERE / "torch_train.py", work / "model", "--ids", work / "ids.json", "--steps", options.steps,
               "--threads", options.threads, *extra])
    return json.loads(out.splitlines()[-1])


def ours(work, recipe):
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    text = run([nestling, "train", work / "model", work / "data.jsonl", "--out", out, "--recipe", recipe, "--steps", options.steps, "--seq", options.seq,
                "--micro-batch", 1, "--global-batch", 1, "--lr", 1e-5, "--schedule", "constant", "--clip", "off", "--threads", options.threads, "--json"])
    events = [json.loads(line) for line in text.splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    peaks = [event["peak_mib"] for event in events if event["event"] == "phase"]
    flops = next(event["flops"] for event in events if event["event"] == "start")
    return {"ms": [1e3 * step["seconds"] for step in steps], "losses": [step["loss"] for step in steps], "peak_mib": max(peaks), "flops": flops}


contenders = {
    "torch eager": lambda work: torch(work, False),
    "torch eager, activation checkpointing": lambda work: torch(work, True),
    "nestling f32": lambda work: ours(work, "f32"),
    "nestling bf16": lambda work: ours(work, "bf16"),
}
runs = {name: [] for name in contenders}
with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    run([nestling, "init", "135m", "--out", work / "model", "--seed", 0])
    ids = token_ids(options.seq)
    (work / "ids.json").write_text(json.dumps(ids))
    (work / "data.jsonl").write_text(json.dumps({"input_ids": ids}) + "\n")
    for number in range(options.rounds):
        for name, contender in contenders.items():
            result = contender(work)
            runs[name].append(result)
            print(f"round {number + 1}: {name}: {statistics.median(result['ms'][2:]):.0f} ms/step, peak {result['peak_mib']:.0f} MiB, losses {result['losses'][0]:.5f} {result['losses'][-1]:.5f}", flush=True)

median = {name: statistics.median(statistics.median(r["ms"][2:]) for r in rounds) for name, rounds in runs.items()}
base = "torch eager, activation checkpointing"
cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
lines = [f"# 135M, sequence {options.seq}, one sequence a step, {options.threads} threads", "",
         f"{datetime.date.today()}, {cpu}, {os.cpu_count()} CPUs, Linux {platform.release()}; torch {runs[base][0]['torch']}, transformers {runs[base][0]['transformers']};",
         f"{options.rounds} rounds in alternation, {options.steps} steps each, the first two not counted. `python3 bench/train_135m.py`", "",
         "| contender | ms/step | tokens/s | tokens/s over torch with checkpointing | GFLOP/s | peak MiB |", "|---|---|---|---|---|---|"]
for name, value in median.items():
    flops = runs[name][0].get("flops")
    rate = f"{flops / value / 1e6:.0f}" if flops else ""
    peak = statistics.median(r["peak_mib"] for r in runs[name])
    lines.append(f"| {name} | {value:.0f} | {1e3 * options.seq / value:.1f} | {median[base] / value:.2f} | {rate} | {peak:.0f} |")
text = "\n".join(lines) + "\n"
print(text)
name = f"{datetime.date.today()}-135m-{options.seq}"
(HERE / "results" / f"{name}.md").write_text(text)
(HERE / "results" / f"{name}.json").write_text(json.dumps(runs))
