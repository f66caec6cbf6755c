#!/usr/bin/env python3
"""One process of PyTorch fine-tuning steps on a Hugging Face Llama folder, for comparison: eager, f32, AdamW.

    python torch_train.py MODEL --ids IDS.json --steps 6 --threads 2 [--checkpointing]

Prints one JSON line: milliseconds of each step, losses, peak resident MiB (VmHWM).
"""
import argparse, json, time
import torch, transformers
from transformers import AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--ids", required=True)
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-5)
parser.add_argument("--checkpointing", action="store_true")
options = parser.parse_args()
torch.set_num_threads(options.threads)
transformers.logging.set_verbosity_error()
model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
if options.checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
ids = torch.tensor([json.load(open(options.ids))])
times, losses = [], []
for _ in range(options.steps):
    began = time.perf_counter()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(1e3 * (time.perf_counter() - began))
    losses.append(loss.item())
peak = next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"ms": times, "losses": losses, "peak_mib": peak, "torch": torch.__version__, "transformers": transformers.__version__}))
