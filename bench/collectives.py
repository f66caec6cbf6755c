#!/usr/bin/env python3
"""Gathering and reducing 64 MiB over the ranks of a host: the engine in shared memory beside one copy and beside Open MPI.

    python3 bench/collectives.py [--ranks 2] [--rounds 5]

Needs Open MPI's mpicc and mpirun (Debian: libopenmpi-dev, openmpi-bin). The two programs run in alternation; the figures
are medians over rounds of each program's own medians. Results go to bench/results/ with date and machine.
"""
import argparse, datetime, json, os, platform, statistics, subprocess, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--rounds", type=int, default=5)
options = parser.parse_args()
ranks = str(options.ranks)


def line(command):
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE.parent)
    return json.loads(done.stdout.splitlines()[-1])


ours, theirs = [], []
with tempfile.TemporaryDirectory() as folder:
    program = f"{folder}/mpi_collectives"
    subprocess.run(["mpicc.openmpi", "-O2", "-o", program, HERE / "mpi_collectives.c"], check=True)
    for _ in range(options.rounds):
        ours.append(line(["cargo", "bench", "-q", "-p", "comm", "--bench", "collectives", "--", ranks]))
        theirs.append(line(["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", ranks, program]))
        print(ours[-1], theirs[-1], flush=True)
median = lambda runs, name: statistics.median(run[name] for run in runs)
copy = median(ours, "memcpy")
rows = [("one copy of 64 MiB", copy), ("unshard, in place", median(ours, "unshard in place")), ("unshard, copied out", median(ours, "unshard, copied")),
        ("all_gather, Open MPI", median(theirs, "all_gather")), ("reduce_scatter in f32", median(ours, "reduce_scatter")),
        ("reduce_scatter, Open MPI", median(theirs, "reduce_scatter"))]
machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
text = "\n".join(["# Collectives of 64 MiB", "", f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores, {ranks} ranks. `bench/collectives.py`.", "",
                  "| what | ms | of one copy |", "|---|---|---|", *(f"| {name} | {ms:.3f} | {ms / copy:.3f} |" for name, ms in rows), ""])
(HERE / "results" / f"{datetime.date.today()}-collectives-{ranks}.md").write_text(text)
print(text)
