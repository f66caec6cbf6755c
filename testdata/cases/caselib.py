"""Helpers for the case generator: a safetensors writer, float formats, and small
float64 reference models (Llama-like and Falcon-like) used to state exact expectations.
Standard library and numpy only; no network."""
import hashlib
import json
import math
import os
import struct

import numpy as np

REGISTRY = {}


def case(cid, cls, source, summary):
    def deco(fn):
        if cid in REGISTRY:
            raise SystemExit("duplicate case id " + cid)
        REGISTRY[cid] = dict(id=cid, cls=cls, source=source, summary=summary, fn=fn)
        return fn
    return deco


# ---------------------------------------------------------------- float formats
def bf16_bits(x):
    x = np.ascontiguousarray(x, dtype=np.float32)
    u = x.view(np.uint32).astype(np.uint64)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    nan = np.isnan(x)
    if nan.any():
        r[nan] = ((x.view(np.uint32)[nan] >> 16) | 0x40).astype(np.uint16)
    return r


def bf16_value(bits):
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def e4m3_decode_one(c):
    s = -1.0 if c & 0x80 else 1.0
    e, m = (c >> 3) & 15, c & 7
    if e == 15 and m == 7:
        return float("nan")
    if e == 0:
        return s * (m / 8.0) * 2.0 ** -6
    return s * (1 + m / 8.0) * 2.0 ** (e - 7)


def e5m2_decode_one(c):
    s = -1.0 if c & 0x80 else 1.0
    e, m = (c >> 2) & 31, c & 3
    if e == 31:
        return s * float("inf") if m == 0 else float("nan")
    if e == 0:
        return s * (m / 4.0) * 2.0 ** -14
    return s * (1 + m / 4.0) * 2.0 ** (e - 15)


E4M3 = np.array([e4m3_decode_one(c) for c in range(256)], np.float64)
E5M2 = np.array([e5m2_decode_one(c) for c in range(256)], np.float64)


def f8_encode(x, kind="E4M3"):
    """Round to nearest, ties to even, saturating to the largest finite value. NaN stays NaN."""
    top = 0x7E if kind == "E4M3" else 0x7B
    pos = (E4M3 if kind == "E4M3" else E5M2)[: top + 1]
    x = np.asarray(x, np.float64)
    a = np.abs(x)
    hi = np.clip(np.searchsorted(pos, a, side="left"), 0, top)
    lo = np.clip(hi - 1, 0, top)
    dl, dh = a - pos[lo], pos[hi] - a
    pick = np.where(dl < dh, lo, np.where(dh < dl, hi, np.where(lo % 2 == 0, lo, hi)))
    pick = np.where(a >= pos[top], top, pick)
    code = pick.astype(np.uint8) | np.where(np.signbit(x), 0x80, 0).astype(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), code).astype(np.uint8)


def enc(arr, dtype):
    a = np.ascontiguousarray(arr)
    if dtype == "F64":
        return a.astype("<f8").tobytes()
    if dtype == "F32":
        return a.astype("<f4").tobytes()
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return a.astype("<f2").tobytes()
    if dtype == "BF16":
        return bf16_bits(a.astype(np.float32)).astype("<u2").tobytes()
    if dtype == "F8_E4M3":
        return f8_encode(a).tobytes()
    if dtype == "F8_E5M2":
        return f8_encode(a, "E5M2").tobytes()
    np_t = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "u1", "U16": "<u2"}[dtype]
    return a.astype(np_t).tobytes()


def stored(arr, dtype):
    """The value a correct reader sees for arr stored as dtype."""
    if dtype == "BF16":
        return bf16_value(bf16_bits(arr)).reshape(np.shape(arr))
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return np.asarray(arr, np.float16).astype(np.float32)
    if dtype == "F8_E4M3":
        return E4M3[f8_encode(arr)].astype(np.float32)
    return np.asarray(arr, np.float32)


# ---------------------------------------------------------------- files
def st_bytes(items, meta=None, pad=8, header_order=None, data_order=None):
    """items: list of (name, dtype, shape, bytes). Data laid out in data_order (default: as given)."""
    by = {n: (n, d, s, b) for n, d, s, b in items}
    off, place, blob = 0, {}, []
    for n in data_order or [i[0] for i in items]:
        b = by[n][3]
        place[n] = (off, off + len(b))
        off += len(b)
        blob.append(b)
    head = {}
    if meta is not None:
        head["__metadata__"] = meta
    for n in header_order or [i[0] for i in items]:
        head[n] = {"dtype": by[n][1], "shape": list(by[n][2]), "data_offsets": list(place[n])}
    h = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    if pad:
        h += b" " * (-len(h) % pad)
    return struct.pack("<Q", len(h)) + h + b"".join(blob)


def raw_st(header, data, length=None):
    h = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(h) if length is None else length) + h + data


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data if isinstance(data, bytes) else data.encode())


def put_json(path, obj):
    put(path, json.dumps(obj, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def sha(b):
    return hashlib.sha256(b).hexdigest()


def f32sha(arr):
    return sha(np.ascontiguousarray(arr, dtype="<f4").tobytes())


def items_of(w, dtype="F32", dtypes=None):
    out = []
    for n, a in w.items():
        d = (dtypes or {}).get(n, dtype)
        out.append((n, d, a.shape, enc(a, d)))
    return out


def write_model(d, cfg, items, shards=1, names=None, meta={"format": "pt"}, index_extra=None, total_size=None,
                write_index=None, gen_cfg=None):
    """items: list of (name, dtype, shape, bytes). Splits by count into shards; returns name -> file."""
    put_json(os.path.join(d, "config.json"), cfg)
    if gen_cfg is not None:
        put_json(os.path.join(d, "generation_config.json"), gen_cfg)
    if shards == 1 and not names:
        put(os.path.join(d, "model.safetensors"), st_bytes(items, meta))
        return {i[0]: "model.safetensors" for i in items}
    names = names or ["model-%05d-of-%05d.safetensors" % (i + 1, shards) for i in range(shards)]
    per = -(-len(items) // len(names))
    wm = {}
    for i, fn in enumerate(names):
        part = items[i * per:(i + 1) * per]
        put(os.path.join(d, fn), st_bytes(part, meta))
        for it in part:
            wm[it[0]] = fn
    tot = sum(len(i[3]) for i in items) if total_size is None else total_size
    idx = {"metadata": {"total_size": tot}, "weight_map": dict(wm)}
    if index_extra:
        idx["weight_map"].update(index_extra)
    if write_index is None or write_index:
        put_json(os.path.join(d, "model.safetensors.index.json"), idx)
    return wm


# ---------------------------------------------------------------- Llama-like reference
LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=48, hidden_size=32, intermediate_size=40,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=False,
             attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2, torch_dtype="float32")


def llama_cfg(**kw):
    c = dict(LLAMA)
    for k, v in kw.items():
        if v is DROP:
            c.pop(k, None)
        else:
            c[k] = v
    return c


DROP = object()


def dims(cfg):
    nh = cfg["num_attention_heads"]
    kv = cfg.get("num_key_value_heads") or nh
    hd = cfg.get("head_dim") or cfg["hidden_size"] // nh
    return nh, kv, hd


def llama_init(cfg, seed=0, std=0.25, qkv_bias=False, norm_mean=1.0):
    r = np.random.default_rng(seed)
    nh, kv, hd = dims(cfg)
    H, I, V = cfg["hidden_size"], cfg["intermediate_size"], cfg["vocab_size"]
    n = lambda *s: (r.standard_normal(s) * std).astype(np.float32)
    norm = lambda: (norm_mean + 0.2 * r.standard_normal(H)).astype(np.float32)
    w = {"model.embed_tokens.weight": n(V, H) * 4}
    for i in range(cfg["num_hidden_layers"]):
        p = "model.layers.%d." % i
        w[p + "input_layernorm.weight"] = norm()
        for nm, o in (("q", nh * hd), ("k", kv * hd), ("v", kv * hd)):
            w[p + "self_attn.%s_proj.weight" % nm] = n(o, H)
            if qkv_bias:
                w[p + "self_attn.%s_proj.bias" % nm] = n(o)
        w[p + "self_attn.o_proj.weight"] = n(H, nh * hd)
        w[p + "post_attention_layernorm.weight"] = norm()
        w[p + "mlp.gate_proj.weight"] = n(I, H)
        w[p + "mlp.up_proj.weight"] = n(I, H)
        w[p + "mlp.down_proj.weight"] = n(H, I)
    w["model.norm.weight"] = norm()
    if not cfg.get("tie_word_embeddings"):
        w["lm_head.weight"] = n(V, H)
    return w


def inv_freq(cfg):
    _, _, hd = dims(cfg)
    rp = cfg.get("rope_parameters") or cfg.get("rope_scaling") or {}
    theta = rp.get("rope_theta", cfg.get("rope_theta", 10000.0))
    f = 1.0 / theta ** (np.arange(0, hd, 2, dtype=np.float64) / hd)
    kind = rp.get("rope_type", rp.get("type", "default"))
    if kind == "linear":
        f = f / rp["factor"]
    elif kind == "llama3":
        low, high, old = rp["low_freq_factor"], rp["high_freq_factor"], rp["original_max_position_embeddings"]
        out = []
        for x in f:
            wl = 2 * math.pi / x
            if wl < old / high:
                out.append(x)
            elif wl > old / low:
                out.append(x / rp["factor"])
            else:
                s = (old / wl - low) / (high - low)
                out.append((1 - s) * x / rp["factor"] + s * x)
        f = np.array(out)
    elif kind not in ("default", None):
        raise ValueError(kind)
    return f


def rope(x, pos, f):
    ang = np.outer(pos, f)
    c, s = np.cos(ang)[:, None, :], np.sin(ang)[:, None, :]
    h = x.shape[-1] // 2
    a, b = x[..., :h], x[..., h:]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def llama_forward(cfg, w, ids, docs=None, pos=None):
    """float64 logits. docs: document number per position (block-diagonal causal mask)."""
    W = lambda n: np.asarray(w[n], np.float64)
    nh, kv, hd = dims(cfg)
    gem = cfg["model_type"] == "gemma"
    T = len(ids)
    pos = np.arange(T) if pos is None else np.asarray(pos)
    docs = np.zeros(T, int) if docs is None else np.asarray(docs)
    mask = (np.arange(T)[:, None] >= np.arange(T)[None]) & (docs[:, None] == docs[None])
    f = inv_freq(cfg)
    emb = W("model.embed_tokens.weight")

    def norm(x, n):
        g = W(n) + (1.0 if gem else 0.0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + cfg["rms_norm_eps"]) * g

    def lin(x, n):
        y = x @ W(n + ".weight").T
        return y + W(n + ".bias") if n + ".bias" in w else y

    h = emb[np.asarray(ids)]
    if gem:
        h = h * math.sqrt(cfg["hidden_size"])
    for i in range(cfg["num_hidden_layers"]):
        p = "model.layers.%d." % i
        x = norm(h, p + "input_layernorm.weight")
        q = rope(lin(x, p + "self_attn.q_proj").reshape(T, nh, hd), pos, f)
        k = rope(lin(x, p + "self_attn.k_proj").reshape(T, kv, hd), pos, f)
        v = lin(x, p + "self_attn.v_proj").reshape(T, kv, hd)
        k, v = np.repeat(k, nh // kv, 1), np.repeat(v, nh // kv, 1)
        sc = np.einsum("thd,shd->hts", q, k) / math.sqrt(hd)
        sc = np.where(mask[None], sc, -np.inf)
        o = np.einsum("hts,shd->thd", softmax(sc), v).reshape(T, nh * hd)
        h = h + lin(o, p + "self_attn.o_proj")
        x = norm(h, p + "post_attention_layernorm.weight")
        g = lin(x, p + "mlp.gate_proj")
        if gem:
            g = 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g ** 3)))
        else:
            g = g / (1 + np.exp(-g))
        h = h + lin(g * lin(x, p + "mlp.up_proj"), p + "mlp.down_proj")
    h = norm(h, "model.norm.weight")
    head = W("lm_head.weight") if "lm_head.weight" in w else emb
    return h @ head.T


# ---------------------------------------------------------------- Falcon-like reference
FALCON = dict(architectures=["FalconForCausalLM"], model_type="falcon", vocab_size=48, hidden_size=32,
              num_hidden_layers=2, num_attention_heads=4, layer_norm_epsilon=1e-5, alibi=False, bias=False,
              multi_query=True, new_decoder_architecture=False, parallel_attn=True, bos_token_id=11,
              eos_token_id=11, torch_dtype="float32")


def falcon_cfg(**kw):
    c = dict(FALCON)
    for k, v in kw.items():
        if v is DROP:
            c.pop(k, None)
        else:
            c[k] = v
    return c


def falcon_kv(cfg):
    nh = cfg["num_attention_heads"]
    if cfg["new_decoder_architecture"]:
        return cfg.get("num_kv_heads") or nh
    return 1 if cfg["multi_query"] else nh


def falcon_init(cfg, seed=0, std=0.25, lm_head=True):
    r = np.random.default_rng(seed)
    H, V, nh = cfg["hidden_size"], cfg["vocab_size"], cfg["num_attention_heads"]
    hd, kv = H // nh, falcon_kv(cfg)
    n = lambda *s: (r.standard_normal(s) * std).astype(np.float32)
    w = {"transformer.word_embeddings.weight": n(V, H) * 4}

    def ln(p):
        w[p + ".weight"] = (1 + 0.2 * r.standard_normal(H)).astype(np.float32)
        w[p + ".bias"] = n(H)

    def lin(p, o, i):
        w[p + ".weight"] = n(o, i)
        if cfg["bias"]:
            w[p + ".bias"] = n(o)

    for i in range(cfg["num_hidden_layers"]):
        p = "transformer.h.%d." % i
        if cfg["new_decoder_architecture"]:
            ln(p + "ln_attn"), ln(p + "ln_mlp")
        else:
            ln(p + "input_layernorm")
            if not cfg["parallel_attn"]:
                ln(p + "post_attention_layernorm")
        lin(p + "self_attention.query_key_value", (nh + 2 * kv) * hd, H)
        lin(p + "self_attention.dense", H, H)
        lin(p + "mlp.dense_h_to_4h", 4 * H, H)
        lin(p + "mlp.dense_4h_to_h", H, 4 * H)
    ln("transformer.ln_f")
    if lm_head:
        w["lm_head.weight"] = n(V, H)
    return w


def alibi_slopes(n):
    c = 2 ** math.floor(math.log2(n))
    base = 2.0 ** (-(2.0 ** -(math.log2(c) - 3)))
    s = [base ** k for k in range(1, c + 1)]
    if c != n:
        b2 = 2.0 ** (-(2.0 ** -(math.log2(2 * c) - 3)))
        s += [b2 ** k for k in range(1, 1 + 2 * min(c, n - c), 2)]
    return np.array(s)


ERF = np.vectorize(math.erf)


def falcon_forward(cfg, w, ids):
    W = lambda n: np.asarray(w[n], np.float64)
    H, nh = cfg["hidden_size"], cfg["num_attention_heads"]
    hd, kv, T = H // nh, falcon_kv(cfg), len(ids)
    pos = np.arange(T)
    mask = pos[:, None] >= pos[None]

    def ln(x, n):
        m, v = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - m) / np.sqrt(v + cfg["layer_norm_epsilon"]) * W(n + ".weight") + W(n + ".bias")

    def lin(x, n):
        y = x @ W(n + ".weight").T
        return y + W(n + ".bias") if n + ".bias" in w else y

    h = W("transformer.word_embeddings.weight")[np.asarray(ids)]
    f = 1.0 / cfg.get("rope_theta", 10000.0) ** (np.arange(0, hd, 2, dtype=np.float64) / hd)
    for i in range(cfg["num_hidden_layers"]):
        p = "transformer.h.%d." % i
        new = cfg["new_decoder_architecture"]
        xa = ln(h, p + ("ln_attn" if new else "input_layernorm"))
        z = lin(xa, p + "self_attention.query_key_value")
        if new:
            z = z.reshape(T, kv, nh // kv + 2, hd)
            q = z[:, :, :-2].reshape(T, nh, hd)
            k, v = np.repeat(z[:, :, -2], nh // kv, 1), np.repeat(z[:, :, -1], nh // kv, 1)
        elif cfg["multi_query"]:
            z = z.reshape(T, nh + 2, hd)
            q = z[:, :-2]
            k, v = np.repeat(z[:, -2:-1], nh, 1), np.repeat(z[:, -1:], nh, 1)
        else:
            z = z.reshape(T, nh, 3, hd)
            q, k, v = z[:, :, 0], z[:, :, 1], z[:, :, 2]
        if not cfg["alibi"]:
            q, k = rope(q, pos, f), rope(k, pos, f)
        sc = np.einsum("thd,shd->hts", q, k)
        if cfg["alibi"]:
            sl = bf16_value(bf16_bits(alibi_slopes(nh).astype(np.float32))).astype(np.float64)
            b = bf16_value(bf16_bits((sl[:, None] * pos[None]).astype(np.float32))).astype(np.float64)
            sc = sc + b[:, None, :]
        sc = np.where(mask[None], sc / math.sqrt(hd), -np.inf)
        o = np.einsum("hts,shd->thd", softmax(sc), v).reshape(T, H)
        a = lin(o, p + "self_attention.dense")
        if new:
            xm = ln(h, p + "ln_mlp")
        elif cfg["parallel_attn"]:
            xm = xa
        else:
            h = h + a
            xm = ln(h, p + "post_attention_layernorm")
        m = lin(xm, p + "mlp.dense_h_to_4h")
        m = 0.5 * m * (1 + ERF(m / math.sqrt(2)))
        m = lin(m, p + "mlp.dense_4h_to_h")
        h = h + m + (a if (new or cfg["parallel_attn"]) else 0)
    h = ln(h, "transformer.ln_f")
    return h @ W("lm_head.weight" if "lm_head.weight" in w else "transformer.word_embeddings.weight").T


# ---------------------------------------------------------------- expectations
IDS = [1, 5, 9, 2, 33, 7, 7, 40, 13, 21]


def forward_expect(d, logits, ids=IDS, atol=2e-4):
    put_json(os.path.join(d, "logits.json"), [[float("%.9g" % v) for v in row] for row in logits])
    return {"ids": list(ids), "logits_file": "logits.json", "atol": atol, "rtol": 1e-4,
            "note": "compute in float32; logits are [position][vocab]"}


def nparams(w):
    return int(sum(a.size for a in w.values()))


# ---------------------------------------------------------------- a byte-level tokenizer with chosen specials
def byte_chars():
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    m, n = {}, 0
    for b in range(256):
        if b in keep:
            m[b] = chr(b)
        else:
            m[b] = chr(256 + n)
            n += 1
    return m


SPECIALS = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
SID = {s: 256 + i for i, s in enumerate(SPECIALS)}
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def added(i, s, **kw):
    d = dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    d.update(kw)
    return d


def byte_tokenizer(specials=SPECIALS, post=None):
    bc = byte_chars()
    vocab = {bc[b]: b for b in range(256)}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added(256 + i, s) for i, s in enumerate(specials)],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": post, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                                "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": []}}


def write_tok(d, template=CHATML, pad="<|pad|>", eos="<|im_end|>", post=None, extra=None, tok=None):
    put_json(os.path.join(d, "tokenizer.json"), tok or byte_tokenizer(post=post))
    c = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": eos,
         "model_max_length": 64, "clean_up_tokenization_spaces": False}
    if pad:
        c["pad_token"] = pad
    if template is not None:
        c["chat_template"] = template
    c.update(extra or {})
    put_json(os.path.join(d, "tokenizer_config.json"), c)


def tok_ids(text):
    """ids for the byte tokenizer, specials recognised"""
    out, i = [], 0
    while i < len(text):
        for s in SPECIALS:
            if text.startswith(s, i):
                out.append(SID[s])
                i += len(s)
                break
        else:
            out += list(text[i].encode())
            i += 1
    return out


def chatml_ids(messages, bos=False):
    """ids plus a three-valued loss flag per token: 1 must train, 0 must not, None either is fine"""
    ids, fl = ([SID["<|bos|>"]], [0]) if bos else ([], [])
    for m in messages:
        a = m["role"] == "assistant"
        h = tok_ids("<|im_start|>" + m["role"] + "\n")
        c = tok_ids(m["content"]) + [SID["<|im_end|>"]]
        ids += h + c + tok_ids("\n")
        fl += [0] * len(h) + [1 if a else 0] * len(c) + [None if a else 0]
    return ids, fl


def jl(rows):
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


def chat(*turns):
    return {"messages": [{"role": r, "content": c} for r, c in turns]}
