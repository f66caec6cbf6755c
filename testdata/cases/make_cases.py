#!/usr/bin/env python3
"""Write the inputs of the hard cases, each with an expect.json.

usage: make_cases.py OUTDIR [--only ID[,ID...]]
       make_cases.py --list

Python's standard library and numpy; no network; the same bytes on every run."""
import argparse
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from caselib import REGISTRY, put_json  # noqa: E402
import fp8  # noqa: E402,F401
import loading  # noqa: E402,F401
import sharding  # noqa: E402,F401
import tokenizers  # noqa: E402,F401


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("outdir", nargs="?")
    ap.add_argument("--only")
    ap.add_argument("--list", action="store_true")
    a = ap.parse_args()
    want = set(a.only.split(",")) if a.only else set(REGISTRY)
    if want - set(REGISTRY):
        sys.exit("unknown case: " + ", ".join(sorted(want - set(REGISTRY))))
    sel = [c for k, c in sorted(REGISTRY.items()) if k in want]
    if a.list:
        for c in sel:
            print("%-5s %-6s %s" % (c["id"], c["cls"], c["summary"]))
        return
    if not a.outdir:
        ap.error("OUTDIR is needed")
    for c in sel:
        d = os.path.join(a.outdir, c["id"])
        shutil.rmtree(d, ignore_errors=True)
        os.makedirs(d)
        e = {"id": c["id"], "class": c["cls"], "source": c["source"], "summary": c["summary"]}
        e.update(c["fn"](d))
        put_json(os.path.join(d, "expect.json"), e)
    print("%d cases written to %s" % (len(sel), a.outdir))


if __name__ == "__main__":
    main()
