"""Checkpoints in FP8, and numbers on their way into it."""
import math
import os

import numpy as np

from caselib import *

J = os.path.join


@case("F801", "fp8", "NVIDIA/TensorRT-Model-Connect#1115, unslothai/unsloth#6978", "block-scaled F8 checkpoint, last blocks partial")
def _(d):
    return block_fp8(d, 128, hidden=136, inter=200, seed=801)


def block_fp8(d, bs, hidden, inter, seed, layers=1):
    cfg = llama_cfg(hidden_size=hidden, intermediate_size=inter, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=layers,
                    vocab_size=40, torch_dtype="bfloat16",
                    quantization_config=dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[bs, bs]))
    w = llama_init(cfg, seed, std=0.1)
    its, val, ids = [], {}, IDS[:6]
    r = np.random.default_rng(seed)
    for n, a in w.items():
        if n.endswith("_proj.weight"):
            R, C = a.shape
            br, bc = -(-R // bs), -(-C // bs)
            a = a * np.exp(r.standard_normal((br, bc)) * 1.5).astype(np.float32).repeat(bs, 0).repeat(bs, 1)[:R, :C]
            s = np.zeros((br, bc), np.float32)
            q = np.zeros((R, C), np.uint8)
            for i in range(br):
                for j in range(bc):
                    blk = a[i * bs:(i + 1) * bs, j * bs:(j + 1) * bs]
                    s[i, j] = np.float32(np.abs(blk).max() / 448)
                    q[i * bs:(i + 1) * bs, j * bs:(j + 1) * bs] = f8_encode(blk / s[i, j])
            its.append((n, "F8_E4M3", a.shape, q.tobytes()))
            its.append((n + "_scale_inv", "F32", s.shape, enc(s, "F32")))
            val[n] = (E4M3[q].astype(np.float32) * s.repeat(bs, 0).repeat(bs, 1)[:R, :C]).astype(np.float32)
        else:
            its.append((n, "BF16", a.shape, enc(a, "BF16")))
            val[n] = stored(a, "BF16")
    write_model(J(d, "model"), cfg, its)
    e = dict(load="ok", tensors=len(its), dequantised_f32_sha256={n: f32sha(v) for n, v in val.items() if n.endswith("_proj.weight")},
             note="value = e4m3(code) * scale[row // block][col // block], one float32 multiply")
    e["forward"] = forward_expect(d, llama_forward(cfg, val, ids), ids, atol=2e-3)
    return e


@case("F804", "fp8", "stable-diffusion.cpp#1898", "per-tensor scale stored under weight_scale (compressed-tensors spelling)")
def _(d):
    cfg = llama_cfg(num_hidden_layers=1, quantization_config=dict(quant_method="compressed-tensors", format="float-quantized"))
    w = llama_init(cfg, 804)
    its, val = [], {}
    for n, a in w.items():
        if n.endswith("_proj.weight"):
            s = np.float32(np.abs(a).max() / 448)
            q = f8_encode(a / s)
            its += [(n, "F8_E4M3", a.shape, q.tobytes()), (n + "_scale", "F32", (1,), enc(s, "F32"))]
            val[n] = (E4M3[q].astype(np.float32) * s).astype(np.float32)
        else:
            its.append((n, "F32", a.shape, enc(a, "F32")))
            val[n] = a
    write_model(J(d, "model"), cfg, its)
    return dict(load="ok or error", if_ok={"forward": forward_expect(d, llama_forward(cfg, val, IDS), atol=1e-3)},
                if_error={"must_mention": ["weight_scale"]}, must_not="use raw codes as weights")


@case("F805", "fp8", "pytorch/ao#4713, huggingface/kernels-community#681", "quantising zeros: whole tensor, one row, one block")
def _(d):
    r = np.random.default_rng(805)
    a = r.standard_normal((4, 32)).astype(np.float32)
    a[2] = 0
    b = a.copy()
    b[:, 16:] = 0
    put(J(d, "files", "t.safetensors"), st_bytes([("all_zero", "F32", (4, 32), enc(a * 0, "F32")), ("zero_row", "F32", (4, 32), enc(a, "F32")),
                                                 ("zero_half", "F32", (4, 32), enc(b, "F32")), ("neg_zero", "F32", (3,), enc(np.array([-0.0, 0, -0.0]), "F32"))]))
    return dict(quantise="ok", must="every scale finite and above zero; codes of zero elements 0x00 or 0x80; dequantised zeros exactly zero; no NaN code (0x7f, 0xff)",
                granularities=["tensor", "row", "block 1x16"])


@case("F808", "fp8", "NVIDIA/Model-Optimizer#1397", "exact conversion tables: all 256 codes back, and hard inputs forward")
def _(d):
    xs = [0.0, -0.0, 1.0, 2 ** -9, 2 ** -10, 2 ** -10 * 1.0001, 2 ** -10 * 0.9999, 3 * 2 ** -10, 0.4375 * 2 ** -6, 7.5 * 2 ** -9, 2 ** -6, 1.0625, 1.1875, 17.0, 19.0,
          432.0, 440.0, 447.9, 448.0, 449.0, 464.0, 464.0001, 479.9, 480.0, 1e9, -480.0, 3.4e38, 1e-30, -1e-30]
    x32 = np.array(xs, np.float32)
    y = [57344.0, 57345.0, 61439.0, 61440.0, 65536.0, 2 ** -16, 2 ** -17, 2 ** -17 * 1.01, 3 * 2 ** -17, 1.125, 1.375]
    y32 = np.array(y, np.float32)
    fin = lambda v: None if v != v else ("inf" if v == math.inf else "-inf" if v == -math.inf else float(v))
    put_json(J(d, "tables.json"), {
        "e4m3_decode": [fin(float(v)) for v in E4M3], "e5m2_decode": [fin(float(v)) for v in E5M2],
        "e4m3_encode": [{"f32_bits": "0x%08x" % b, "code": int(c)} for b, c in zip(x32.view(np.uint32).tolist(), f8_encode(x32).tolist())],
        "e5m2_encode": [{"f32_bits": "0x%08x" % b, "code": int(c)} for b, c in zip(y32.view(np.uint32).tolist(), f8_encode(y32, "E5M2").tolist())]})
    put(J(d, "files", "codes.safetensors"), st_bytes([("e4m3", "F8_E4M3", (256,), bytes(range(256))), ("e5m2", "F8_E5M2", (256,), bytes(range(256)))]))
    return dict(convert="exact", table="tables.json", rule="nearest, ties to even, saturate at 448 (E4M3) and 57344 (E5M2); null in decode is NaN; decode then encode gives every finite code back")


@case("F809", "fp8", "NVIDIA/TransformerEngine#567, #1278", "one outlier per tensor swallows the rest under a per-tensor scale")
def _(d):
    r = np.random.default_rng(809)
    a = (r.standard_normal((16, 64)) * 1e-3).astype(np.float32)
    a[3, 5] = 1e4
    put(J(d, "files", "t.safetensors"), st_bytes([("w", "F32", a.shape, enc(a, "F32"))]))
    s = np.abs(a).max() / 448
    t = E4M3[f8_encode(a / np.float32(s))] * s
    rs = np.abs(a).max(1, keepdims=True) / 448
    rw = E4M3[f8_encode(a / rs.astype(np.float32))] * rs
    oth = np.delete(a, 3, 0)
    return dict(quantise="ok", per_tensor={"fraction_of_rows_other_than_3_flushed_to_zero": float((np.delete(t, 3, 0) == 0).mean())},
                per_row={"max_relative_error_rows_other_than_3_for_values_above_2pct_of_row_max": 0.0625,
                         "measured": float(np.max(np.abs(np.delete(rw, 3, 0) - oth)[np.abs(oth) > 0.02 * np.abs(oth).max()] / np.abs(oth)[np.abs(oth) > 0.02 * np.abs(oth).max()]))},
                must="the tool reports the flushed fraction, or chooses a finer scale; it is never silent")
