#!/usr/bin/env python3
"""Rounds the weights of one f32 safetensors file to bf16, to nearest, ties to even.

    python3 round_to_bf16.py FROM.safetensors TO.safetensors
"""
import array, json, struct, sys

with open(sys.argv[1], "rb") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    words = array.array("I", file.read())
narrow = array.array("H", (((word + 0x7FFF + ((word >> 16) & 1)) >> 16) & 0xFFFF for word in words))
for name, entry in header.items():
    if name != "__metadata__":
        assert entry["dtype"] == "F32", name
        entry["dtype"] = "BF16"
        entry["data_offsets"] = [offset // 2 for offset in entry["data_offsets"]]
text = json.dumps(header, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
with open(sys.argv[2], "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + narrow.tobytes())
