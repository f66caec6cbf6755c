#!/usr/bin/env python3
"""What N ranks of one host hold together while they train, by the kernel: the sum of the proportional set sizes (PSS)
of the launcher and of all ranks, looked at every quarter of a second.

    python3 bench/host_memory.py [--preset 1b] [--ranks 4] [--recipe fp8-lean] [--seq 512] [--steps 1] [--folder DIR]

The bar: the state of the model once, one unit of gathered weights, and for each rank its arena by the plan (activations,
one unit's gradient, scratch) and 64 MiB. Results go to bench/results/ with date and machine.
"""
import argparse, datetime, json, os, platform, subprocess, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BYTES_PER_PARAMETER = {"f32": 12, "bf16": 12, "bf16-lean": 5, "fp8": 5, "fp8-lean": 4}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--nestling", type=Path, default=HERE.parent / "target/release/nestling")
parser.add_argument("--preset", default="1b")
parser.add_argument("--ranks", type=int, default=4)
parser.add_argument("--recipe", default="fp8-lean", choices=BYTES_PER_PARAMETER)
parser.add_argument("--seq", type=int, default=512)
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--folder", type=Path, help="where the model is made; a temporary folder by default")
options = parser.parse_args()


def pss_kib(pid):
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def family(pid):
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    return [pid, *map(int, children)]


with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    folder = Path(folder)
    subprocess.run([options.nestling, "init", options.preset, "--sparse", "--out", folder / "model"], check=True, capture_output=True)
    vocab = json.loads((folder / "model/config.json").read_text())["vocab_size"]
    with (folder / "rows.jsonl").open("w") as rows:
        for row in range(options.ranks):
            rows.write(json.dumps({"input_ids": [(row + at * at * 31) % vocab for at in range(options.seq)]}) + "\n")
    command = [options.nestling, "train", folder / "model", folder / "rows.jsonl", "--out", folder / "out", "--recipe", options.recipe, "--seq", options.seq,
               "--global-batch", options.ranks, "--clip", "off", "--steps", options.steps, "--ranks", options.ranks, "--deadline", 3600, "--json"]
    with (folder / "events").open("w") as events:
        run = subprocess.Popen([str(word) for word in command], stdout=events)
        peak = 0
        while run.poll() is None:
            peak = max(peak, sum(map(pss_kib, family(run.pid))))
            time.sleep(0.25)
    if run.returncode != 0:
        raise SystemExit(f"the run ended with code {run.returncode}")
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]

start = next(event for event in events if event["event"] == "start")
arena = max(event["arena_planned_mib"] for event in events if event["event"] == "ledger")
state = BYTES_PER_PARAMETER[options.recipe] * start["num_parameters"] / 2**20
precision = next((event["matrices"] for event in events if event["event"] == "precision"), [])
units = {}
for matrix in precision:
    unit = ".".join(matrix["name"].split(".")[:3]) if ".layers." in matrix["name"] else matrix["name"]
    units[unit] = units.get(unit, 0) + matrix["gathered_bytes"] / 2**20
unit = max(units.values(), default=0)
bar = state + unit + options.ranks * (arena + 64)
machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
text = "\n".join([
    "# What the ranks of one host hold together", "", f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores. `bench/host_memory.py`.", "",
    "| model | recipe | ranks | peak, sum of PSS, MiB | bar MiB | state | one unit | arena of a rank |", "|---|---|---|---|---|---|---|---|",
    f"| {options.preset} | {options.recipe} | {options.ranks} | {peak / 1024:.0f} | {bar:.0f} | {state:.0f} | {unit:.0f} | {arena:.0f} |", ""])
(HERE / "results" / f"{datetime.date.today()}-host-memory-{options.preset}-{options.recipe}-{options.ranks}.md").write_text(text)
print(text)
