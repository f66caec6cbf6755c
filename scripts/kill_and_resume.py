#!/usr/bin/env python3
"""Kills runs at random instants and lets them go on, until each has ended; holds the losses and the model against a run
that was never killed.

    python3 scripts/kill_and_resume.py NESTLING [RUNS] [--seed 0]

Each run is of a tiny random model, over 1 to 4 ranks that may be others after each kill, in one of five recipes, and saves
every second step. SIGKILL comes to the launcher or to one of its ranks. Prints how often it was killed, in which phase,
and exits with 1 if a run did not go on, went on otherwise, or left a file behind that the next start did not remove.
"""
import argparse, collections, json, os, random, shutil, signal, subprocess, sys, tempfile, time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("nestling", type=Path)
parser.add_argument("kills", type=int, nargs="?", default=300)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()
nestling, dice = options.nestling.resolve(), random.Random(options.seed)
STEPS = 40


def command(work, out, recipe, ranks):
    return [nestling, "train", work / "model", work / "rows.jsonl", "--out", out, "--seq", "32", "--steps", str(STEPS), "--recipe", recipe,
            "--clip", "previous", "--global-batch", "4", "--micro-batch", "1", "--keep-bf16", "none", "--save-every", "2", "--keep", "3",
            "--threads", "1", "--ranks", str(ranks), "--json"]


def losses(lines):
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


def children(pid):
    text = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in text.read_text().split()] if text.exists() else []


def killed(words, after):
    """Runs and kills after so many seconds; None if the run had ended, else its last event before."""
    run = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(after)
    victims = [run.pid, *children(run.pid)]
    if run.poll() is None:
        os.kill(dice.choice(victims), signal.SIGKILL)
    out, error = run.communicate()
    if run.returncode == 0:
        return None, out
    last = [json.loads(line)["event"] for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    return (last or ["before the start"])[-1], out


def main():
    counts, num_kills, faults = collections.Counter(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        subprocess.run([nestling, "init", "tiny", "--out", work / "model"], check=True, stdout=subprocess.DEVNULL)
        rows = [{"input_ids": [(7 * row + 3 * at) % 250 + 1 for at in range(32)]} for row in range(9)]
        (work / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        number = 0
        while num_kills < options.kills:
            recipe = ("f32", "bf16", "bf16-lean", "fp8", "fp8-lean")[number % 5]
            number += 1
            ranks = dice.choice((1, 2, 3, 4))
            whole, out = work / "whole", work / "out"
            for path in (whole, out):
                shutil.rmtree(path, ignore_errors=True)
            began = time.monotonic()
            text = subprocess.run(command(work, whole, recipe, ranks), check=True, capture_output=True, text=True).stdout
            seconds = time.monotonic() - began
            expected, found, resume = losses(text.splitlines()), {}, []
            while True:
                last, text = killed(command(work, out, recipe, ranks) + resume, dice.uniform(0.05, seconds))
                seconds *= 1.05  # A machine that has grown slower lets a run end too.
                found.update(losses(line for line in text.splitlines() if line.endswith("}")))
                if last is None:
                    break
                counts[last] += 1
                num_kills += 1
                has_checkpoint = any((path / "config.json").exists() for path in out.glob("checkpoints/step-*"))
                resume = ["--resume"] if has_checkpoint else []
                if (out / "config.json").exists():
                    shutil.rmtree(out)  # Killed after its end.
                    resume = []
            what = f"run {number}, {recipe}, {ranks} ranks"
            if found != expected:
                faults.append(f"{what}: losses differ")
            if (whole / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes():
                faults.append(f"{what}: models differ")
            left = [path for path in out.rglob(".saving")] + [path for path in out.glob("checkpoints/step-*") if not (path / "config.json").exists()]
            if left:
                faults.append(f"{what}: left {left}")
            print(f"{what}: {num_kills} kills so far, {len(faults)} faults", flush=True)
    print(f"{num_kills} kills, the last event before each:", dict(counts))
    for fault in faults:
        print("FAULT", fault)
    sys.exit(bool(faults))


main()
