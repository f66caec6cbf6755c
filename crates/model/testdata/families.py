"""Writes NAME.json and NAME.safetensors of tiny models of the other families, as
`llama.py` beside it does for Llama and with the same weights, tokens and versions.

    python families.py

Of Falcon there is one for each layout of the fused matrix and each arrangement of
a block: the 7B, the 40B and the 11B as they are, RW 1B with linear biases over a
number of heads that is no power of two, and heads of their own in parallel.

Everything is computed in f64. What transformers computes in f32 is repeated in f64:
norms and angles. Layer norms compute in f64 as they are, but their epsilon is an
f32 here. Attention is the scaled dot product of torch: the eager ones take their
softmax in f32, and Falcon's adds linear biases to the scores a second time.
"""

import numpy as np
import torch
from llama import COMMON, VOCAB, angles_in_f64, norm_in_f64, write
from transformers import AutoModelForCausalLM, FalconConfig, GemmaConfig, MistralConfig, Qwen2Config
from transformers.models.falcon import modeling_falcon as falcon
from transformers.models.gemma import modeling_gemma as gemma
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.qwen2 import modeling_qwen2 as qwen2

WITHOUT_HEAD_DIM = {key: value for key, value in COMMON.items() if key != "head_dim"}
FALCON = dict(
    vocab_size=VOCAB,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    attn_implementation="sdpa",
)
CASES = {
    "mistral": MistralConfig(**{**COMMON, "sliding_window": 5}),
    # A window in the second block only.
    "qwen2": Qwen2Config(
        **{
            **WITHOUT_HEAD_DIM,
            "num_key_value_heads": 1,
            "use_sliding_window": True,
            "sliding_window": 4,
            "max_window_layers": 1,
        }
    ),
    # The root of the width is no round number.
    # With a token for padding its row would have no gradient.
    "gemma": GemmaConfig(
        **{
            **COMMON,
            "hidden_size": 18,
            "head_dim": 8,
            "num_key_value_heads": 1,
            "pad_token_id": None,
        }
    ),
    "falcon_7b": FalconConfig(**FALCON),
    "falcon_40b": FalconConfig(
        **FALCON, new_decoder_architecture=True, num_kv_heads=2, tie_word_embeddings=False
    ),
    "falcon_11b": FalconConfig(
        **FALCON,
        new_decoder_architecture=True,
        num_kv_heads=2,
        num_ln_in_parallel_attn=1,
        ffn_hidden_size=40,
    ),
    "falcon_rw": FalconConfig(
        **{**FALCON, "num_attention_heads": 6},
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
    ),
    "falcon_own_heads": FalconConfig(**FALCON, bias=True, multi_query=False),
}


def gemma_norm_in_f64(self, x):
    eps = float(np.float32(self.eps))
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * (1 + self.weight)


def main():
    mistral.MistralRMSNorm.forward = norm_in_f64
    qwen2.Qwen2RMSNorm.forward = norm_in_f64
    gemma.GemmaRMSNorm.forward = gemma_norm_in_f64
    for module in (mistral, qwen2, gemma, falcon):
        (rotary,) = (getattr(module, name) for name in dir(module) if "RotaryEmbedding" in name)
        rotary.forward = angles_in_f64
    for name, config in CASES.items():
        model = AutoModelForCausalLM.from_config(config)
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.eps = float(np.float32(module.eps))
        write(name, config, model)


if __name__ == "__main__":
    main()
