#!/usr/bin/env python3
"""Writes the golden files of this folder.

    python make_goldens.py samples              random f32 and their codes by ml_dtypes -> samples.bin
    python make_goldens.py planes GOLDEN.npz    tiles of a real model as planes -> *.bin

samples.bin holds 4096 records of 9 bytes: an f32, then its code in E4M3FN, E5M2 (both saturating), E4M3FN, E5M2 (not
saturating) and E4M3FNUZ (|x| <= 240). ml_dtypes does not saturate; saturation is a clamp before the cast.

The planes are three tiles of the 135M model SmolLM2-135M-Instruct, `embed` (rows and columns 0..128 of the embedding),
`short` (64 x 64) and `flagged` (its numbers lie up to 2^-19 below its amax), as an independent program in numpy wrote
them; a file a tile: u16 bf16, then without (h0) and with (h1) headroom u8 n16 code, i8 n16
residual, u8 n24 code, i16 n24 residual, each whole, then four i32 k (n16 h0, n16 h1, n24 h0, n24 h1). In them
ties are clamped to 127 (32767), which is the top residual code.

Made with numpy 2.4.6, ml_dtypes 0.6.0, seed 8.
"""
import struct, sys
import numpy as np

SEED, LEN = 8, 4096


def samples():
    import ml_dtypes

    rng = np.random.default_rng(SEED)
    wide = rng.standard_normal(LEN) * np.exp2(rng.uniform(-20, 17, LEN))
    x = wide.astype(np.float32)
    # Ties and their neighbours, edges, and what is no number.
    for place, value in enumerate([464, 465, -464, 448, 61440, 61439, 2**-10, 3 * 2**-10, -0.0, 0, np.inf, -np.inf, 240, 248]):
        x[place] = value

    def codes(dtype, limit=None):
        clamped = x if limit is None else np.clip(x, -limit, limit)
        return clamped.astype(dtype).view(np.uint8)

    with np.errstate(all="ignore"):
        columns = [codes(ml_dtypes.float8_e4m3fn, 448), codes(ml_dtypes.float8_e5m2, 57344),
                   codes(ml_dtypes.float8_e4m3fn), codes(ml_dtypes.float8_e5m2), codes(ml_dtypes.float8_e4m3fnuz, 240)]
    with open("samples.bin", "wb") as f:
        for record in zip(x, *columns):
            f.write(struct.pack("<f5B", *record))


def planes(path):
    golden = np.load(path)
    for tile in ("embed", "short", "flagged"):
        with open(f"{tile}.bin", "wb") as f:
            f.write(golden[f"{tile}/bf16"].astype("<u2").tobytes())
            for headroom in ("h0", "h1"):
                for name, dtype in (("n16_{}_code", "u1"), ("n16_{}_res", "i1"), ("n24_{}_code", "u1"), ("n24_{}_res", "<i2")):
                    f.write(golden[f"{tile}/{name.format(headroom)}"].astype(dtype).tobytes())
            for name in ("n16_h0", "n16_h1", "n24_h0", "n24_h1"):
                f.write(struct.pack("<i", int(golden[f"{tile}/{name}_k"])))


if __name__ == "__main__":
    samples() if sys.argv[1] == "samples" else planes(sys.argv[2])
