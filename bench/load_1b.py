#!/usr/bin/env python3
"""Loading the 1.1B shape into two ranks: Nestling, a plain parallel pread, PyTorch; in alternation on one machine.

    python3 bench/load_1b.py [--python VENV/bin/python] [--rounds 5] [--nestling target/release/nestling]

The files are in the page cache ("warm"), then out of it ("cold": dropped by fadvise, file by file). The plain pread reads the
same bytes in pieces of 512 KiB on as many threads, into anonymous memory on huge pages: the limit of that minute. With --python,
an environment with torch and transformers, PyTorch's readers run in the same rounds. Before each run 6 GiB are
touched and given back, because the first touch of a page in a virtual machine waits for its host. The first round is not
counted. Results go to bench/results/ with date and machine.
"""
import argparse, datetime, json, mmap, os, platform, statistics, subprocess, sys, tempfile, threading, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PIECE = 512 << 10
TOUCHED = 6 << 30
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--python")
parser.add_argument("--nestling", type=Path, default=HERE.parent / "target/release/nestling")
parser.add_argument("--rounds", type=int, default=5)
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--folder", type=Path, help="where the model is made; a temporary folder by default")
parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
parser.add_argument("--plain-threads", type=int, default=8, help=argparse.SUPPRESS)
options = parser.parse_args()


def plain_pread(path, num_threads):
    """Seconds of a pread of the whole file into place."""
    fd, size = os.open(path, os.O_RDONLY), os.path.getsize(path)
    began = time.perf_counter()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view, pieces, lock = memoryview(memory), iter(range(0, size, PIECE)), threading.Lock()

    def read():
        while True:
            with lock:
                at = next(pieces, None)
            if at is None:
                return
            done = 0
            while done < min(PIECE, size - at):
                done += os.preadv(fd, [view[at + done : min(at + PIECE, size)]], at + done)

    threads = [threading.Thread(target=read) for _ in range(num_threads)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return time.perf_counter() - began


if options.plain:
    print(json.dumps({"seconds": plain_pread(options.plain, options.plain_threads)}))
    sys.exit()


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def ours(*flags):
    report = run(options.nestling, "inspect", model, "--load", "--of", options.ranks, "--json", *flags)
    return {"seconds": report["seconds"], "peak_mib": report["peak_mib"], "overhead_mib": report["overhead_mib"]}


def torch(method, dtype):
    return run(options.python, HERE / "torch_load.py", model, "--method", method, "--ranks", options.ranks, "--dtype", dtype)


def plain():
    return run(sys.executable, __file__, "--plain", weights)


def drop():
    with open(weights, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm():
    with open(weights, "rb") as file:
        while file.read(64 << 20):
            pass


def touch():
    """Lets a virtual machine's host find the pages before the clock runs, and not within one contender."""
    memory = mmap.mmap(-1, TOUCHED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, TOUCHED, 2 << 20):
        memory[at] = 1
    memory.close()


warm_contenders = {
    "plain pread": plain,
    "nestling": lambda: ours("--cache", "keep"),
    "nestling, no digests": lambda: ours("--cache", "keep", "--digests", "false"),
    "nestling, read root": lambda: ours("--cache", "keep", "--read", "root"),
    "nestling to f32": lambda: ours("--cache", "keep", "--recipe", "f32"),
}
if options.python:
    for method in ["dcp", "rank0"]:
        for dtype in ["bf16", "f32"]:
            warm_contenders[f"torch {method} {dtype}"] = lambda method=method, dtype=dtype: torch(method, dtype)
cold_contenders = {
    "plain pread": plain,
    "nestling": lambda: ours("--cache", "drop"),
    "nestling, direct": lambda: ours("--cache", "direct"),
    "nestling, read root": lambda: ours("--cache", "drop", "--read", "root"),
}

with tempfile.TemporaryDirectory(dir=options.folder) as folder:
    model = Path(folder) / "model"
    subprocess.run([options.nestling, "init", "1b", "--out", model], check=True, capture_output=True)
    weights = model / "model.safetensors"
    results = {}
    for state, before, contenders in [("warm", warm, warm_contenders), ("cold", drop, cold_contenders)]:
        for number in range(options.rounds + 1):
            for name, contender in contenders.items():
                before()
                touch()
                result = contender()
                if number:
                    results.setdefault(f"{state}: {name}", []).append(result)
                print(f"{state} round {number}: {name}: {result['seconds']:.3f} s", flush=True)

median = {name: statistics.median(r["seconds"] for r in runs) for name, runs in results.items()}
peak = {name: max(r.get("peak_mib", 0) for r in runs) for name, runs in results.items()}
machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
versions = next(({k: r[0][k] for k in ["torch", "transformers"]} for r in results.values() if "torch" in r[0]), {})
lines = [f"# Loading the 1.1B shape into {options.ranks} ranks", "", f"{datetime.date.today()}, {machine}, {os.cpu_count()} cores. {versions}", "",
         f"Median of {options.rounds} alternating rounds; peak over all ranks. `bench/load_1b.py`.", "", "| | s | of the plain pread's rate | peak MiB |", "|---|---|---|---|"]
for name, seconds in median.items():
    limit = median[name.split(":")[0] + ": plain pread"]
    lines.append(f"| {name} | {seconds:.3f} | {limit / seconds:.2f} | {peak[name]:.0f} |" if peak[name] else f"| {name} | {seconds:.3f} | {limit / seconds:.2f} | |")
text = "\n".join(lines) + "\n"
stem = HERE / "results" / f"{datetime.date.today()}-load-1b"
stem.with_suffix(".md").write_text(text)
stem.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
print(text)
