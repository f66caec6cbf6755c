"""Small PyTorch checkpoints and what is in them.

    python make.py          writes the files beside itself

Made with torch 2 (see `versions` in expect.json); any torch since 1.6 writes the
same structure. Nothing is random: every element is a small multiple of 1/64. Numbers in expect.json
are the tensors' bytes in hexadecimal.
"""

import json
import os
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch

HERE = Path(__file__).parent


def numbers(dtype, *shape):
    count = 1
    for dim in shape:
        count *= dim
    return (torch.arange(count) % 97 - 48).div(64).reshape(shape).to(dtype)


def hexadecimal(tensor):
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes().hex()


NAMES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
}


def describe(state):
    def one(tensor):
        return {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "bytes": hexadecimal(tensor),
        }

    return {name: one(tensor) for name, tensor in state.items()}


class Evil:
    def __reduce__(self):
        return os.system, ("touch evil",)


def tied():
    table = numbers(torch.bfloat16, 6, 4)
    return OrderedDict([("embed.weight", table), ("norm.weight", numbers(torch.float32, 4)), ("lm_head.weight", table)])


def views():
    base = numbers(torch.float32, 8, 4)
    return {"whole": base, "rows": base[2:5], "row": base[7], "element": base[3, 2], "nothing": base[4:4]}


def module():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(numbers(torch.float32, *parameter.shape))
    return model.state_dict()


def parameters():
    plain = torch.nn.Parameter(numbers(torch.float16, 2, 3))
    frozen = torch.nn.Parameter(numbers(torch.float32, 3), requires_grad=False)
    return {"plain": plain, "frozen": frozen}


def marked_parameter():
    parameter = torch.nn.Parameter(numbers(torch.float32, 3))
    parameter.note = "an attribute"
    return {"marked": parameter}


def marked_tensor():
    tensor = numbers(torch.float32, 5)
    tensor.note = "an attribute"
    return {"marked": tensor}


def llama():
    bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
    table = numbers(bf16, 20, 8)
    block = "model.layers.0."
    return OrderedDict([
        ("model.embed_tokens.weight", table),
        (block + "input_layernorm.weight", numbers(f32, 8)),
        (block + "self_attn.q_proj.weight", numbers(bf16, 8, 8)),
        (block + "self_attn.k_proj.weight", numbers(bf16, 4, 8)),
        (block + "self_attn.v_proj.weight", numbers(bf16, 4, 8)),
        (block + "self_attn.o_proj.weight", numbers(bf16, 8, 8)),
        (block + "post_attention_layernorm.weight", numbers(f32, 8)),
        (block + "mlp.gate_proj.weight", numbers(bf16, 12, 8)),
        (block + "mlp.up_proj.weight", numbers(f16, 12, 8)),
        (block + "mlp.down_proj.weight", numbers(f32, 8, 12)),
        ("model.norm.weight", numbers(f32, 8)),
        ("lm_head.weight", table),
    ])


READ = {
    "dtypes.bin": lambda: {NAMES[dtype]: numbers(torch.float32, 2, 3).to(dtype) for dtype in NAMES},
    "tied.bin": tied,
    "views.bin": views,
    "module.bin": module,
    "parameters.bin": parameters,
    "scalar.bin": lambda: {"scalar": torch.tensor(0.5), "one": numbers(torch.float64, 1, 1, 1)},
    "empty.bin": OrderedDict,
    "marked.bin": marked_tensor,
    "llama.bin": llama,
}

REFUSED = {
    "strided.bin": (lambda: {"weight": numbers(torch.float32, 3, 4).t()}, ["`weight`", "one piece"]),
    "expanded.bin": (lambda: {"weight": numbers(torch.float32, 1, 4).expand(3, 4)}, ["`weight`", "one piece"]),
    "nested.bin": (lambda: {"model": {"weight": numbers(torch.float32, 2)}, "epoch": 3}, ["`model` is a dictionary"]),
    "optimizer.bin": (lambda: {"weight": numbers(torch.float32, 2), "step": 3}, ["`step` is a whole number"]),
    "marked_parameter.bin": (marked_parameter, ["_rebuild_parameter_with_state"]),
    "tensor.bin": (lambda: numbers(torch.float32, 2), ["a tensor", "expected a dictionary"]),
    "list.bin": (lambda: [numbers(torch.float32, 2)], ["a list", "expected a dictionary"]),
    "float8.bin": (lambda: {"weight": numbers(torch.float32, 2).to(torch.float8_e4m3fn)}, ["`torch.", "not among"]),
    "sparse.bin": (lambda: {"weight": torch.eye(3).to_sparse()}, ["_rebuild_sparse_tensor"]),
    "conjugate.bin": (lambda: {"weight": torch.ones(2, dtype=torch.complex64).conj()}, ["conjugated"]),
    "whole_module.bin": (lambda: torch.nn.Linear(2, 2), ["torch.nn.modules.linear.Linear"]),
    "evil.bin": (lambda: {"weight": Evil()}, [f"{os.system.__module__}.system"]),
}


def compressed(source, target):
    with zipfile.ZipFile(HERE / source) as old, zipfile.ZipFile(HERE / target, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            new.writestr(zipfile.ZipInfo(item.filename), old.read(item), zipfile.ZIP_DEFLATED)


def main():
    expect = {"versions": {"torch": torch.__version__}, "read": {}, "refused": {}}
    for name, make in READ.items():
        state = make()
        torch.save(state, HERE / name)
        expect["read"][name] = describe(state)
    for name, (make, words) in REFUSED.items():
        torch.save(make(), HERE / name)
        expect["refused"][name] = words
    torch.save(tied(), HERE / "legacy.bin", _use_new_zipfile_serialization=False)
    expect["refused"]["legacy.bin"] = ["no zip archive", "before 1.6"]
    torch.save(tied(), HERE / "protocol4.bin", pickle_protocol=4)
    expect["refused"]["protocol4.bin"] = ["protocol is not 2"]
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(HERE / "torchscript.bin"))
    expect["refused"]["torchscript.bin"] = ["TorchScript"]
    compressed("tied.bin", "compressed.bin")
    expect["refused"]["compressed.bin"] = ["is compressed"]
    (HERE / "expect.json").write_text(json.dumps(expect, indent=1, sort_keys=True) + "\n")


main()
