#!/usr/bin/env python3
"""Loads an exported folder in transformers and compares it with its source and with Nestling's own logits.

    VENV/bin/python scripts/check_export.py EXPORT [--source SOURCE] [--nestling target/release/nestling]

VENV has torch and transformers. With --source every parameter must be equal (for the export of `--steps 0`). The logits
of a fixed prompt must agree within 2e-4 (f32).
"""
import argparse, json, subprocess, sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BOUND = 2e-4
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("export", type=Path)
parser.add_argument("--source", type=Path)
parser.add_argument("--nestling", type=Path, default=Path(__file__).resolve().parent.parent / "target/release/nestling")
options = parser.parse_args()

model = AutoModelForCausalLM.from_pretrained(options.export, dtype=torch.float32).eval()
ids = AutoTokenizer.from_pretrained(options.export)("The capital of France is the city of")["input_ids"]
with torch.no_grad():
    theirs = model(torch.tensor([ids])).logits[0]
text = subprocess.run([options.nestling, "logits", options.export, "--ids", ",".join(map(str, ids)), "--json"], capture_output=True, text=True, check=True).stdout
worst = (torch.tensor(json.loads(text)["logits"]) - theirs).abs().max().item()
print(f"logits: max abs difference {worst:.3g} (bound {BOUND:g})")
failed = worst > BOUND
if options.source:
    source = AutoModelForCausalLM.from_pretrained(options.source, dtype=torch.float32).state_dict()
    different = [name for name, value in model.state_dict().items() if not torch.equal(value, source[name])]
    print(f"parameters that differ from the source: {len(different)} {different[:3]}")
    failed |= bool(different)
sys.exit("FAIL" if failed else None)
