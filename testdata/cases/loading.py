"""Checkpoints that are hard to load."""
import os

import numpy as np

from caselib import *

J = os.path.join


def llama_case(d, cfg, w, dtype="F32", dtypes=None, extra=None, ids=IDS, drop=(), **kw):
    its = [i for i in items_of(w, dtype, dtypes) if i[0] not in drop]
    sv = {n: stored(a, (dtypes or {}).get(n, dtype)) for n, a in w.items()}
    its = its + (extra or [])
    write_model(J(d, "model"), cfg, its, **kw)
    return sv, its


@case("LD01", "load", "huggingface/candle#2516", "tied head, no lm_head.weight stored")
def _(d):
    cfg = llama_cfg(tie_word_embeddings=True)
    w = llama_init(cfg, 1)
    sv, its = llama_case(d, cfg, w, "BF16")
    return dict(load="ok", tensors=len(its), tied=True, parameters=nparams(w), stored_bytes=sum(len(i[3]) for i in its),
                forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                export={"must_not_contain": ["lm_head.weight"], "tensors": len(its)})


@case("LD02", "load", "exllamav2#408, vllm-project/vllm#6758", "tie flag set and an identical lm_head stored too")
def _(d):
    cfg = llama_cfg(tie_word_embeddings=True)
    w = llama_init(cfg, 2)
    e = w["model.embed_tokens.weight"]
    sv, its = llama_case(d, cfg, w, extra=[("lm_head.weight", "F32", e.shape, enc(e, "F32"))])
    return dict(load="ok", tensors=len(its), tied=True, parameters=nparams(w),
                forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                note="the second copy must not cost memory in a plan, nor be trained apart from the first")


@case("LD04", "load", "mistral.rs#1823", "family default for the tie flag: Falcon config without the key ties")
def _(d):
    cfg = falcon_cfg()
    w = falcon_init(cfg, 4, lm_head=False)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its)
    return dict(load="ok", tied=True, tensors=len(its), parameters=nparams(w),
                forward=forward_expect(d, falcon_forward(cfg, w, IDS)))


@case("LD07", "load", "sgl-project/sglang#32279", "index names a shard file that is not there")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 7)
    write_model(J(d, "model"), cfg, items_of(w), shards=3)
    os.remove(J(d, "model", "model-00002-of-00003.safetensors"))
    return dict(load="error", must_mention=["model-00002-of-00003.safetensors"], before="any tensor is read", exit="nonzero")


@case("LD09", "load", "mlx-vlm#1464", "stray weight files beside the indexed shards must be left alone")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 9)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its, shards=2)
    bad = items_of({k: v * 0 + 1 for k, v in w.items()})
    put(J(d, "model", "consolidated.safetensors"), st_bytes(bad, {"format": "pt"}))
    put(J(d, "model", "model.safetensors"), st_bytes(bad[:3], {"format": "pt"}))
    return dict(load="ok", tensors=len(its), forward=forward_expect(d, llama_forward(cfg, w, IDS)),
                note="the index is the truth; a message about unused files is welcome")


@case("LD10", "load", "osaurus-ai/vmlx-swift#217", "second shard cut short of what its header declares")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 10)
    write_model(J(d, "model"), cfg, items_of(w), shards=2)
    p = J(d, "model", "model-00002-of-00002.safetensors")
    b = open(p, "rb").read()
    put(p, b[:-301])
    return dict(load="error", must_mention=["model-00002-of-00002.safetensors"], should_mention=[str(len(b)), str(len(b) - 301)],
                before="any tensor is read", exit="nonzero", must_not="zero or stale values for tensors past the end of file")


@case("LD11", "load", "openasr#73, lattice#752, ml-explore/mlx#3363, imp#1603", "malformed containers, one fault a file")
def _(d):
    f = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    z = b"\0" * 16
    hdr = b'{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    files = {
        "empty.safetensors": b"",
        "seven_bytes.safetensors": b"\x10\0\0\0\0\0\0",
        "length_u64max.safetensors": raw_st(hdr, z, 0xFFFFFFFFFFFFFFFF),
        "length_past_eof.safetensors": raw_st(hdr, z, len(hdr) + 4096),
        "length_over_limit.safetensors": raw_st(hdr, z, 100_000_001),
        "not_json.safetensors": raw_st(b"{" + b"x" * 40, z),
        "not_utf8.safetensors": raw_st(hdr.replace(b'"a"', b'"\xff"'), z),
        "json_array.safetensors": raw_st(b"[1,2,3]", z),
        "duplicate_name.safetensors": raw_st(hdr[:-1] + b',"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', z),
        "overlap_same_range.safetensors": raw_st({"a": f, "b": f}, z),
        "overlap_partial.safetensors": raw_st({"a": f, "b": {"dtype": "F32", "shape": [2], "data_offsets": [12, 20]}}, z + b"\0" * 4),
        "hole.safetensors": raw_st({"a": f, "b": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, z + b"\0" * 8),
        "trailing_bytes.safetensors": raw_st({"a": f}, z + b"tail"),
        "begin_after_end.safetensors": raw_st({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]}}, z),
        "size_disagrees.safetensors": raw_st({"a": {"dtype": "F32", "shape": [1000, 1000], "data_offsets": [0, 16]}}, z),
        "shape_overflow.safetensors": raw_st({"a": {"dtype": "F32", "shape": [2 ** 32, 2 ** 32], "data_offsets": [0, 16]}}, z),
        "negative_offset.safetensors": raw_st({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]}}, z),
        "three_offsets.safetensors": raw_st({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16, 32]}}, z),
        "unknown_dtype.safetensors": raw_st({"a": {"dtype": "Q4_9", "shape": [2, 2], "data_offsets": [0, 16]}}, z),
        "empty_dtype.safetensors": raw_st({"a": {"dtype": "", "shape": [], "data_offsets": [0, 0]}}, b""),
        "missing_shape.safetensors": raw_st({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, z),
        "half_byte.safetensors": raw_st({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, b"\0\0"),
    }
    for n, b in files.items():
        put(J(d, "files", n), b)
    ex = {n: {"load": "error"} for n in files}
    ex["duplicate_name.safetensors"] = {"load": "error, or ok with a warning that keeps the last entry", "strict": "error"}
    return dict(load="error for each file but the one marked", files=ex,
                must="name the file; no panic, no allocation sized by the header before it is checked, exit nonzero",
                note="duplicate_name: some readers keep the last entry and accept it; a strict reader refuses")


@case("LD13", "load", "safetensors/safetensors#226, #231, #280, #442, #466; vllm-project/vllm#1687", "unusual containers that are valid")
def _(d):
    r = np.random.default_rng(13)
    a, b = r.standard_normal((3, 5)).astype(np.float32), r.standard_normal(7).astype(np.float32)
    A = ("a", "F32", (3, 5), enc(a, "F32"))
    B = ("b", "F32", (7,), enc(b, "F32"))
    z1, z2 = ("z", "F32", (0,), b""), ("y", "BF16", (2, 0), b"")
    s = ("s", "F32", (), enc(np.float32(1.5), "F32"))
    u = ("u", "U8", (3,), b"\1\2\3")
    q8 = ("q", "F8_E4M3", (5,), enc(r.standard_normal(5), "F8_E4M3"))
    files, ex = {}, {}

    def add(n, its, **kw):
        files[n] = st_bytes(its, **kw)
        ex[n] = {"load": "ok", "tensors": len(its), "sha256_of_raw_bytes": {i[0]: sha(i[3]) for i in its},
                 "shapes": {i[0]: list(i[2]) for i in its}, "dtypes": {i[0]: i[1] for i in its}}

    add("zero_size.safetensors", [z1, A, z2])
    add("two_empty.safetensors", [z1, ("z2", "F32", (0,), b""), A])
    add("scalar.safetensors", [s, A])
    add("header_unpadded.safetensors", [A, B], pad=0, meta={"k": "odd length header!"})
    add("header_spaces.safetensors", [A, B], pad=256)
    add("odd_offsets.safetensors", [u, A, q8, B], pad=0)
    add("header_order_differs.safetensors", [A, B, s], header_order=["s", "b", "a"])
    add("data_order_differs.safetensors", [A, B, s], data_order=["b", "s", "a"])
    add("metadata_only.safetensors", [], meta={"format": "pt"})
    add("nothing.safetensors", [])
    add("unicode_names.safetensors", [("层.权重", "F32", (7,), B[3]), ("e\u0301", "F32", (7,), B[3]), ("\u00e9", "F32", (7,), B[3])])
    add("bool_i64.safetensors", [("m", "BOOL", (4,), b"\1\0\1\1"), ("i", "I64", (2,), enc(np.array([-1, 2 ** 40]), "I64"))])
    for n, bts in files.items():
        put(J(d, "files", n), bts)
    return dict(load="ok for each file", files=ex,
                note="data may start at any byte offset: read F32 through an aligned copy, never a raw pointer cast")


@case("LD15", "load", "huggingface/transformers#35255, TinyLlama#127", "old checkpoint carries rotary inv_freq buffers, with values that must not be used")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 15)
    ex = [("model.layers.%d.self_attn.rotary_emb.inv_freq" % i, "F16", (4,), enc(inv_freq(cfg) * 0.97, "F16")) for i in range(2)]
    sv, its = llama_case(d, cfg, w, extra=ex)
    return dict(load="ok", tensors=len(its), used_tensors=len(its) - 2, parameters=nparams(w),
                forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                export={"must_not_contain": [e[0] for e in ex]})


@case("LD17", "load", "mistral.rs#2102", "one projection weight is missing from the file")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 17)
    llama_case(d, cfg, w, drop=("model.layers.1.mlp.up_proj.weight",))
    return dict(load="error", must_mention=["model.layers.1.mlp.up_proj.weight"], exit="nonzero", must_not="random or zero initialisation")


@case("LD19", "load", "deepseek-ai/DeepSeek-V3#1002, huggingface/accelerate#3985", "one checkpoint, four float types")
def _(d):
    cfg = llama_cfg(torch_dtype="bfloat16")
    w = llama_init(cfg, 19)
    dt = {}
    for n in w:
        dt[n] = "F32" if "norm" in n else "F16" if "embed" in n else "F64" if n == "lm_head.weight" else "BF16"
    sv = {n: stored(a, dt[n]) for n, a in w.items()}
    its = items_of(w, dtypes=dt)
    write_model(J(d, "model"), cfg, its)
    by = {}
    for n, t, s, b in its:
        by[t] = by.get(t, 0) + len(b)
    return dict(load="ok", tensors=len(its), stored_bytes_by_dtype=by, parameters=nparams(w),
                forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                note="logits are for float32 compute from the stored values; a planner must count stored bytes by stored type, not by torch_dtype")


@case("LD21", "load", "huggingface/candle#2358, entrenar#262", "head_dim given and not hidden_size / heads")
def _(d):
    cfg = llama_cfg(head_dim=12, num_attention_heads=4, num_key_value_heads=2, model_type="mistral", architectures=["MistralForCausalLM"],
                    sliding_window=None)
    w = llama_init(cfg, 21)
    sv, its = llama_case(d, cfg, w)
    return dict(load="ok", tensors=len(its), parameters=nparams(w), forward=forward_expect(d, llama_forward(cfg, sv, IDS)))


@case("LD22", "load", "vllm-project/vllm#596, NVIDIA-NeMo/Automodel#799", "odd sizes everywhere: 7 heads of 6, one key/value head, hidden 42, vocab 51")
def _(d):
    cfg = llama_cfg(hidden_size=42, num_attention_heads=7, num_key_value_heads=1, intermediate_size=45, vocab_size=51)
    w = llama_init(cfg, 22)
    sv, its = llama_case(d, cfg, w)
    return dict(load="ok", tensors=len(its), parameters=nparams(w), forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                worlds=[1, 2, 3, 4, 8], must="a sharded load at every listed world size gathers back to the same bytes")


@case("LD24", "load", "huggingface/nanotron#427, AiDotNet#2074 (rotary layout), neuronx-nemo-megatron#21 (first-generation configs)", "first-generation Llama config without num_key_value_heads or rope_theta")
def _(d):
    full = llama_cfg(num_key_value_heads=4)
    w = llama_init(full, 24)
    cfg = llama_cfg(num_key_value_heads=DROP, rope_theta=DROP, attention_bias=DROP, mlp_bias=DROP, tie_word_embeddings=DROP,
                    max_sequence_length=64, pad_token_id=-1)
    sv, its = llama_case(d, cfg, w)
    return dict(load="ok", tensors=len(its), forward=forward_expect(d, llama_forward(full, sv, IDS)),
                note="half-split rotary lanes; pad_token_id -1 means no pad token")


@case("LD25", "load", "meta-llama/llama3#299, foundation-model-stack/foundation-model-stack#384", "Llama 3 rotary scaling with all three frequency bands in use")
def _(d):
    cfg = llama_cfg(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, rope_theta=50.0, max_position_embeddings=256,
                    rope_scaling=dict(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_type="llama3"))
    w = llama_init(cfg, 25)
    ids = [int(x) for x in np.random.default_rng(25).integers(0, 48, 90)]
    sv, its = llama_case(d, cfg, w)
    return dict(load="ok", forward=forward_expect(d, llama_forward(cfg, sv, ids), ids, atol=5e-4))


@case("LD28", "load", "exllamav2#566, elixir-nx/bumblebee#367, InfiniTensor/InfiniLM#387", "eos_token_id is a list, and generation_config.json lists more")
def _(d):
    cfg = llama_cfg(eos_token_id=[2, 3], pad_token_id=None)
    w = llama_init(cfg, 28)
    llama_case(d, cfg, w, gen_cfg={"eos_token_id": [2, 3, 4], "bos_token_id": 1})
    return dict(load="ok", eos_from_config=[2, 3], eos_for_generation=[2, 3, 4],
                export={"config.eos_token_id": [2, 3], "generation_config.eos_token_id": [2, 3, 4]},
                note="both files must come through an export unchanged")


@case("LD29", "load", "candle-vllm#167, ANEForge#253", "Qwen2 style: q, k, v have a bias, o has none, and no config key says so")
def _(d):
    cfg = llama_cfg(model_type="qwen2", architectures=["Qwen2ForCausalLM"], attention_bias=DROP, mlp_bias=DROP,
                    use_sliding_window=False, sliding_window=4, max_window_layers=1)
    w = llama_init(cfg, 29, qkv_bias=True)
    sv, its = llama_case(d, cfg, w)
    return dict(load="ok", tensors=len(its), parameters=nparams(w), forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                note="sliding_window is present but switched off by use_sliding_window")


@case("LD30", "load", "huggingface/transformers#24804, intel/intel-extension-for-transformers#414", "legacy RefinedWeb config names, one shared key/value head")
def _(d):
    full = falcon_cfg(num_hidden_layers=2)
    w = falcon_init(full, 30)
    cfg = {"architectures": ["RWForCausalLM"], "model_type": "RefinedWebModel", "vocab_size": 48, "hidden_size": 32, "n_layer": 2,
           "n_head": 4, "layer_norm_epsilon": 1e-5, "alibi": False, "bias": False, "multi_query": True, "parallel_attn": True,
           "auto_map": {"AutoConfig": "configuration_RW.RWConfig"}, "bos_token_id": 11, "eos_token_id": 11, "torch_dtype": "bfloat16",
           "tie_word_embeddings": False}
    sv = {k: stored(v, "BF16") for k, v in w.items()}
    its = items_of(w, "BF16")
    write_model(J(d, "model"), cfg, its)
    return dict(load="ok", tensors=len(its), tied=False, forward=forward_expect(d, falcon_forward(full, sv, IDS)),
                must_not="run code named by auto_map")


@case("LD31", "load", "keras-team/keras-hub#2862, huggingface/transformers#24523", "Falcon-RW style: ALiBi, biases, every head has its own key/value, sequential blocks")
def _(d):
    cfg = falcon_cfg(alibi=True, bias=True, multi_query=False, parallel_attn=False, tie_word_embeddings=False)
    w = falcon_init(cfg, 31)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its)
    return dict(load="ok", tensors=len(its), parameters=nparams(w), forward=forward_expect(d, falcon_forward(cfg, w, IDS)),
                note="the fused projection is laid out head by head as q,k,v; the ALiBi term is divided by sqrt(head_dim) together with the scores")


@case("LD34", "load", "airllm#214", "shard names that no pattern predicts, one in a sub-folder")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 34)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its, names=["model-00001-of-000003.safetensors", "weights/part b.safetensors", "x.safetensors"])
    return dict(load="ok", tensors=len(its), forward=forward_expect(d, llama_forward(cfg, w, IDS)))


@case("LD36", "load", "candle-vllm#8", "a directory with only pytorch_model.bin")
def _(d):
    put_json(J(d, "model", "config.json"), llama_cfg())
    put(J(d, "model", "pytorch_model.bin"), b"PK\x03\x04" + b"\0" * 60)
    return dict(load="error", must_mention=["safetensors"], should_mention=["pytorch_model.bin"], must_not="unpickle")


@case("LD38", "load", "huggingface/candle#3457", "two shards and no index file")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 38)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its, shards=2, write_index=False)
    return dict(load="ok or error", if_ok={"tensors": len(its), "forward": forward_expect(d, llama_forward(cfg, w, IDS))},
                if_error={"must_mention": ["model.safetensors.index.json"]}, must_not="load the first shard alone")


@case("LD40", "load", "huggingface/trl#7216, ml-explore/mlx-lm#373", "Gemma style: norms store weight minus one, embeddings scaled, head_dim 256 by default")
def _(d):
    full = llama_cfg(model_type="gemma", architectures=["GemmaForCausalLM"], hidden_size=16, num_attention_heads=1, num_key_value_heads=1,
                     head_dim=256, num_hidden_layers=1, tie_word_embeddings=True, hidden_act="gelu", rms_norm_eps=1e-6, vocab_size=48)
    w = llama_init(full, 40, std=0.1, norm_mean=0.0)
    cfg = dict(full)
    for k in ("head_dim", "tie_word_embeddings"):
        cfg.pop(k)
    its = items_of(w)
    write_model(J(d, "model"), cfg, its)
    return dict(load="ok or error", if_ok={"tied": True, "forward": forward_expect(d, llama_forward(full, w, IDS), atol=1e-3)},
                if_error={"must_mention": ["gemma"]}, must_not="run it as a Llama and give other numbers")
