"""Writes adamw.txt: updates by torch.optim.AdamW that the tests compare with.

    python adamw.py > adamw.txt

Needs torch only. Every tensor is f32 and printed so that it reads back to
the same bits. Each `case` line gives lr beta1 beta2 eps weight_decay and the
number of the first step; then come the state before it and, for each step, the
gradient and the state after it.
"""

import sys

import torch

SEED = 7
LEN = 24
CASES = [
    # lr, (beta1, beta2), eps, weight_decay, first step, number of steps
    (1e-3, (0.9, 0.999), 1e-8, 0.0, 1, 3),
    (2e-2, (0.9, 0.95), 1e-8, 0.1, 1, 3),
    (5e-5, (0.9, 0.999), 1e-6, 0.01, 1000, 2),
]


def line(name, numbers):
    print(name, *(repr(float(number)) for number in numbers))


def state(optimizer, w):
    moments = optimizer.state[w]
    line("w", w.detach())
    line("m", moments["exp_avg"])
    line("v", moments["exp_avg_sq"])


def main():
    generator = torch.Generator().manual_seed(SEED)

    def normal():
        return torch.randn(LEN, generator=generator)

    print(f"# torch {torch.__version__}, python {sys.version.split()[0]}, seed {SEED}")
    for lr, betas, eps, weight_decay, first, steps in CASES:
        print("case", lr, *betas, eps, weight_decay, first)
        w = torch.nn.Parameter(normal())
        optimizer = torch.optim.AdamW(
            [w], lr, betas, eps, weight_decay, foreach=False, fused=False
        )
        fresh = first == 1
        optimizer.state[w] = {
            "step": torch.tensor(float(first - 1)),
            "exp_avg": torch.zeros(LEN) if fresh else 0.1 * normal(),
            "exp_avg_sq": torch.zeros(LEN) if fresh else 0.01 * normal() ** 2,
        }
        state(optimizer, w)
        for _ in range(steps):
            w.grad = normal()
            # A gradient of zero and one of a tiny parameter.
            w.grad[0] = 0.0
            w.grad[1] *= 1e-6
            line("g", w.grad)
            optimizer.step()
            state(optimizer, w)


main()
