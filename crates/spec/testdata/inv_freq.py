"""Writes inv_freq.json: rotary frequencies as transformers computes them.

    python inv_freq.py > inv_freq.json

Made with transformers 5.24.0 and torch 2.15.0 on x86-64. No randomness.
Each number is the exact bit pattern of an f32.
"""

import json

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

BASE = dict(
    model_type="llama",
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=1,
    vocab_size=32,
    max_position_embeddings=131072,
)


def llama3(factor, low, high, original):
    return dict(
        rope_type="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=original,
    )


CASES = [
    dict(head_dim=64),
    dict(head_dim=128, rope_theta=500000.0),
    dict(head_dim=64, rope_theta=100000),
    dict(head_dim=12, rope_theta=10000.0, rope_scaling=None),
    dict(head_dim=80, rope_theta=1000000.0),
    dict(head_dim=256, rope_theta=5000000.5),
    dict(head_dim=64, rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0)),
    dict(head_dim=128, rope_scaling=dict(rope_type="linear", factor=2.7)),
    dict(head_dim=128, rope_theta=500000.0, rope_scaling=llama3(8.0, 1.0, 4.0, 8192)),
    dict(head_dim=64, rope_theta=500000.0, rope_scaling=llama3(32.0, 1.0, 4.0, 8192)),
    dict(head_dim=16, rope_theta=50.0, rope_scaling=llama3(4.0, 1.0, 4.0, 64)),
    dict(head_dim=96, rope_theta=10000.0, rope_scaling=llama3(3.3, 0.7, 2.9, 1000)),
    dict(head_dim=128, rope_parameters=dict(rope_theta=500000.0, **llama3(8.0, 1.0, 4.0, 8192))),
    dict(head_dim=64, rope_parameters=dict(rope_type="default", rope_theta=130000.0)),
    dict(head_dim=64, rope_parameters=dict(rope_type="linear", factor=8.0, rope_theta=10000.0)),
]


def main():
    out = []
    for case in CASES:
        config = dict(BASE, **case)
        rotary = LlamaRotaryEmbedding(LlamaConfig(**config))
        assert rotary.attention_scaling == 1.0
        bits = rotary.inv_freq.float().contiguous().view(torch.int32).tolist()
        out.append(dict(config=config, bits=bits))
    print("[\n" + ",\n".join(json.dumps(case) for case in out) + "\n]")


main()
