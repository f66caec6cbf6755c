#!/usr/bin/env python3
"""Kills a random rank of a run at a random moment, again and again.

    scripts/kill_ranks.py target/release/nestling [NUM_KILLS] [RANKS] [ranks | meeting]

`ranks`: one command starts the ranks. The run must end with code 1 and the rank's name,
no process, memory file or staged folder may be left.
`meeting`: each rank is a command of its own, with the variables of a launcher. All others
must end with code 1 and an error that names the rank; a rank that goes before it has met
is one that did not come.
Prints how long the run took to end after the kill. Exits with 1 if a promise was broken.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time


def rank_pids(launcher):
    """The processes of a launcher's ranks, by rank."""
    ranks = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            if int(fields[1]) != launcher or fields[0] == "Z":
                continue
            with open(f"/proc/{entry}/cmdline") as file:
                task = json.loads(file.read().split("\0")[2])
            ranks[task["rank"]] = int(entry)
        except (OSError, ValueError, IndexError, KeyError):
            continue
    return ranks


def train(program, out):
    """The command of a run that would not end."""
    command = [program, "train", "model", "rows.jsonl", "--out", out, "--seq", "32"]
    return command + ["--steps", "1000000", "--save-every", "2", "--threads", "1", "--quiet"]


def kill_one(program, place, number, num_ranks, how):
    """One run and one kill; its seconds to end and what was broken."""
    out = os.path.join(place, f"out-{number}")
    command = train(program, out) + ["--ranks", str(num_ranks)]
    run = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
    ranks = {}
    while len(ranks) < num_ranks and run.poll() is None:
        ranks = rank_pids(run.pid)
    time.sleep(random.uniform(0.0, 0.6))
    victim = random.randrange(num_ranks)
    begin = time.monotonic()
    os.kill(ranks[victim], how)
    _, said = run.communicate()
    seconds = time.monotonic() - begin
    broken = []
    last = said.strip().splitlines()[-1] if said.strip() else ""
    if run.returncode != 1:
        broken.append(f"exit code {run.returncode}")
    if f"rank {victim} of {num_ranks}: was killed by {how.name}" not in last:
        broken.append(f"said {last!r}")
    if any(os.path.exists(f"/proc/{pid}") for pid in ranks.values()):
        broken.append("a process is left")
    for folder, names, _ in os.walk(out):
        if ".saving" in names:
            broken.append(f"{folder}/.saving is left")
    return seconds, broken


def kill_in_meeting(program, place, number, num_ranks, how):
    """The same of ranks that meet."""
    out = os.path.join(place, f"out-{number}")
    command = train(program, out) + ["--meet-timeout", "3"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    where = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE=str(num_ranks))
    ranks = [
        subprocess.Popen(
            command, cwd=place, stderr=subprocess.PIPE, text=True, env=dict(where, RANK=str(rank))
        )
        for rank in range(num_ranks)
    ]
    time.sleep(random.uniform(0.0, 0.6))
    victim = random.randrange(num_ranks)
    begin = time.monotonic()
    ranks[victim].send_signal(how)
    said = [rank.communicate()[1] for rank in ranks]
    seconds = time.monotonic() - begin
    names = [f"rank {victim}", f"[{victim}]"] + ["found nobody"] * (victim == 0)
    broken = []
    for rank in set(range(num_ranks)) - {victim}:
        last = said[rank].strip().splitlines()[-1] if said[rank].strip() else ""
        if ranks[rank].returncode != 1:
            broken.append(f"exit code {ranks[rank].returncode} of rank {rank}")
        if not any(name in last for name in names):
            broken.append(f"rank {rank}, when {victim} was killed, said {last!r}")
    return seconds, broken


def main():
    program = os.path.abspath(sys.argv[1])
    num_kills = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    num_ranks = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    kill = kill_in_meeting if sys.argv[4:] == ["meeting"] else kill_one
    with tempfile.TemporaryDirectory() as place:
        init = [program, "init", "tiny", "--out", "model", "--seed", "5"]
        subprocess.run(init, cwd=place, check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(place, "rows.jsonl"), "w") as file:
            for row in range(20):
                ids = [1 + (row * 7 + at * 3) % 200 for at in range(32)]
                file.write(json.dumps({"input_ids": ids}) + "\n")
        runs = [
            kill(program, place, number, num_ranks, random.choice([signal.SIGKILL, signal.SIGABRT]))
            for number in range(num_kills)
        ]
    times = sorted(seconds for seconds, _ in runs)
    places = [("least", 0.0), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("most", 1.0)]
    for name, part in places:
        print(f"{name:>7}  {1000 * times[round(part * (len(times) - 1))]:8.1f} ms")
    faults = [fault for _, broken in runs for fault in broken]
    for fault in faults:
        print(f"broken: {fault}")
    print(f"{num_kills} kills, {len(faults)} promises broken")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
