"""FP8 checkpoints in every spelling that is read, and their values by another library.

    python make.py OUTDIR

Needs numpy and ml_dtypes (made with numpy 2.4.6, ml_dtypes 0.6.0). Each folder has a
config.json with the `quantization_config` of its spelling, a model.safetensors with
`w.weight` and its scales, and `w.f32`: the values, little-endian, row by row. The codes
are random bytes without NaN, so every sign, subnormal and zero occurs; the scales are no
powers of two. Codes become f32 by ml_dtypes, and each is multiplied once.
"""
import json
import os
import struct
import sys

import ml_dtypes
import numpy as np

ROWS, COLS = 20, 36

CODES = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
SCALES = {
    "F32": np.float32,
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
}


def blocks(rows, cols):
    return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[rows, cols])


def groups(**weights):
    weights = dict(num_bits=8, type="float", symmetric=True, **weights)
    group = dict(targets=["Linear"], weights=weights, input_activations=None)
    return dict(quant_method="compressed-tensors", format="float-quantized", config_groups=dict(group_0=group))


# name: config, suffix of the scales, dtype of codes, dtype and shape of scales, block
CASES = {
    "blocks": (blocks(16, 16), "_scale_inv", "F8_E4M3", "F32", None, (16, 16)),
    "blocks-not-square": (blocks(8, 5), "_scale_inv", "F8_E4M3", "F32", None, (8, 5)),
    "blocks-larger": (blocks(128, 128), "_scale_inv", "F8_E4M3", "F32", None, (128, 128)),
    "blocks-e8m0": (blocks(16, 16), "_scale_inv", "F8_E4M3", "F8_E8M0", None, (16, 16)),
    "blocks-e5m2": (dict(blocks(16, 16), fmt="e5m2"), "_scale_inv", "F8_E5M2", "F32", None, (16, 16)),
    "blocks-fnuz": (blocks(16, 16), "_scale_inv", "F8_E4M3FNUZ", "F32", None, (16, 16)),
    "blocks-e5m2-fnuz": (blocks(16, 16), "_scale_inv", "F8_E5M2FNUZ", "F32", None, (16, 16)),
    "tensor": (groups(strategy="tensor"), "_scale", "F8_E4M3", "F32", (1,), (ROWS, COLS)),
    "tensor-scalar": (dict(quant_method="modelopt", quant_algo="FP8"), "_scale", "F8_E4M3", "F32", (), (ROWS, COLS)),
    "tensor-inv": (dict(quant_method="fp8", activation_scheme="static"), "_scale_inv", "F8_E4M3", "BF16", (1,), (ROWS, COLS)),
    "rows": (groups(strategy="channel"), "_scale", "F8_E4M3", "BF16", (ROWS, 1), (1, COLS)),
    "rows-flat": (dict(quant_method="fbgemm_fp8"), "_scale", "F8_E4M3", "F32", (ROWS,), (1, COLS)),
    "groups": (groups(strategy="group", group_size=16), "_scale", "F8_E4M3", "F16", None, (1, 16)),
    "groups-block": (groups(strategy="block", block_structure=[16, 16]), "_scale", "F8_E4M3", "F32", None, (16, 16)),
}


def safetensors(items):
    header, data = {}, b""
    for name, dtype, array in items:
        raw = array.tobytes()
        header[name] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[len(data), len(data) + len(raw)])
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def make(out, name, seed):
    config, suffix, dtype, scale_dtype, shape, (block_rows, block_cols) = CASES[name]
    random = np.random.default_rng(seed)
    codes = random.integers(0, 256, (ROWS, COLS), np.uint8).view(CODES[dtype])
    finite = np.isfinite(codes.astype(np.float32))
    codes = np.where(finite, codes, np.zeros_like(codes))
    grid = (-(-ROWS // block_rows), -(-COLS // block_cols))
    scales = np.exp(random.standard_normal(grid) * 2 - 4).astype(np.float32)
    scales = scales.astype(SCALES[scale_dtype])
    spread = scales.astype(np.float32).repeat(block_rows, 0).repeat(block_cols, 1)[:ROWS, :COLS]
    values = codes.astype(np.float32) * spread
    assert values.dtype == np.float32
    stored = scales if shape is None else scales.reshape(shape)
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(quantization_config=config), f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(safetensors([("w.weight", dtype, codes), ("w.weight" + suffix, scale_dtype, stored)]))
    values.astype("<f4").tofile(os.path.join(folder, "w.f32"))


if __name__ == "__main__":
    for number, name in enumerate(CASES):
        make(sys.argv[1], name, 800 + number)
