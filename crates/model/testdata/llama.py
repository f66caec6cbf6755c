"""Writes NAME.json and NAME.safetensors for each case below: the config of a
tiny Llama, and its loss, some logits and all gradients, by transformers.

    python llama.py

Made with torch 2.15.0, transformers 5.24.0, safetensors 0.8.0, numpy 2.4.6. There
is no generator to seed: weights and tokens are `hashed` from names and numbers,
and the tests hash them again instead of reading them.

Everything is computed in f64. Two modules of transformers compute in f32
whatever the model's dtype, so their formulas are repeated here in f64: the norm,
and the rotary angles from the f32 frequencies. Results are stored in f32.
"""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama as llama

HERE = pathlib.Path(__file__).parent
ROWS, SEQ = 4, 12
VOCAB = 300

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    max_position_embeddings=1024,
    rms_norm_eps=1e-5,
    attn_implementation="sdpa",
)
CASES = {
    "block": dict(num_hidden_layers=1, tie_word_embeddings=False),
    "tied_biases_linear": dict(
        tie_word_embeddings=True,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    ),
    # Wavelengths of 6, 135 and 2917 positions: one is kept, one blended, one divided.
    "untied_llama3": dict(
        tie_word_embeddings=False,
        num_key_value_heads=1,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    ),
}


def hashed(name, count):
    """`count` numbers below 4096, from a name."""
    key = 0x811C9DC5
    for byte in name.encode():
        key = (key ^ byte) * 0x01000193 % 2**32
    x = (key + np.arange(count, dtype=np.uint64) * 2654435761) % 2**32
    x ^= x >> 15
    x = x * 2246822519 % 2**32
    x ^= x >> 13
    return (x >> 20).astype(np.int64)


def weight(name, shape):
    """Multiples of 2^-12 between -1/2 and 1/2; 1 more for the weight of a norm."""
    numbers = (hashed(name, int(np.prod(shape))) - 2048) / 4096
    if name.endswith(".weight") and ("norm" in name or ".ln_" in name):
        numbers = numbers + 1
    return torch.from_numpy(numbers.reshape(shape))


def tokens():
    """Rows of any tokens and rows of few; no target at every third."""
    ids = hashed("tokens", ROWS * SEQ).reshape(ROWS, SEQ) % VOCAB
    ids[1::2] %= 7
    targets = np.roll(ids, -1, axis=1)
    targets[:, 2::3] = -100
    return torch.from_numpy(ids), torch.from_numpy(targets)


def norm_in_f64(self, x):
    eps = float(np.float32(self.variance_epsilon))
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def angles_in_f64(self, x, position_ids):
    freqs = position_ids[..., None].double() * self.inv_freq.double()
    freqs = torch.cat((freqs, freqs), dim=-1)
    return freqs.cos(), freqs.sin()


def write(name, config, model):
    """Runs a model and writes its two files."""
    # Before the cast, which would cast the frequencies too.
    rotary = model.base_model.rotary_emb
    inv_freq = rotary.inv_freq.clone()
    model = model.double()
    rotary.inv_freq = inv_freq
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            parameter.copy_(weight(key, tuple(parameter.shape)))
    ids, targets = tokens()
    logits = model(ids).logits
    assert logits.dtype == torch.float64
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    loss.backward()
    out = {f"grad.{key}": p.grad.numpy().astype(np.float32) for key, p in model.named_parameters()}
    out["loss"] = np.array(loss.item())
    out["last_logits"] = logits[:, -1].detach().numpy().astype(np.float32)
    save_file(out, HERE / f"{name}.safetensors")
    text = json.dumps(config.to_diff_dict(), indent=2, sort_keys=True)
    (HERE / f"{name}.json").write_text(text + "\n")
    print(name, loss.item(), sum(p.numel() for p in model.parameters()))


def main():
    llama.LlamaRMSNorm.forward = norm_in_f64
    llama.LlamaRotaryEmbedding.forward = angles_in_f64
    for name, changes in CASES.items():
        config = LlamaConfig(**{**COMMON, **changes})
        write(name, config, LlamaForCausalLM(config))


if __name__ == "__main__":
    main()
