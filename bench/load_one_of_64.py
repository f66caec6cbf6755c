#!/usr/bin/env python3
"""What one rank of 64 holds beside its shard while it loads: 7B, 13B and 70B, and what grows with the model.

    python3 bench/load_one_of_64.py [--nestling target/release/nestling] [--folder DIR]

The folders are sparse: 12.6 to 131 GiB of holes that take no disk and read as zeros. Each rank is loaded for real, in a
process of its own, from its own byte ranges. Overhead is the most memory by the kernel (VmHWM, less the pages of files
that the process had before), less the bytes of the shard. Results go to bench/results/ with date and machine.
"""
import argparse, datetime, json, os, platform, subprocess, tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--nestling", type=Path, default=HERE.parent / "target/release/nestling")
parser.add_argument("--folder", type=Path, help="where the models are made; a temporary folder by default")
options = parser.parse_args()

rows = []
with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    for preset in ["7b", "13b", "70b"]:
        model = Path(folder) / preset
        subprocess.run([options.nestling, "init", preset, "--sparse", "--out", model], check=True, capture_output=True)
        for recipe in [[], ["--recipe", "f32"]]:
            for rank in [0, 5, 63]:
                command = [options.nestling, "inspect", model, "--load", "--as-rank", str(rank), "--of", "64", "--cache", "drop", "--json", *recipe]
                report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                filled = report["ranks"][0]["filled_bytes"] / 2**20
                rows.append({"preset": preset, "recipe": recipe[1] if recipe else "at rest (bf16)", "rank": rank, "shard_mib": filled, "overhead_mib": report["overhead_mib"],
                             "read_mib": report["ranks"][0]["read_bytes"] / 2**20, "seconds": report["seconds"]})
                print(rows[-1], flush=True)

machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
lines = ["# One rank of 64 loads", "", f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores. `bench/load_one_of_64.py`.", "",
         "| model | weights rest as | rank | shard MiB | overhead MiB | read MiB |", "|---|---|---|---|---|---|"]
lines += [f"| {r['preset']} | {r['recipe']} | {r['rank']} | {r['shard_mib']:.0f} | {r['overhead_mib']:.1f} | {r['read_mib']:.0f} |" for r in rows]
text = "\n".join(lines) + "\n"
stem = HERE / "results" / f"{datetime.date.today()}-load-one-of-64"
stem.with_suffix(".md").write_text(text)
stem.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n")
print(text)
