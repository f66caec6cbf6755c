"""Models cut for any number of ranks, steps split in any way, and launchers that say half of it."""
import math
import os

import numpy as np

from caselib import *
from loading import llama_case

J = os.path.join
TINY = dict(vocab_size=20, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1)


def ce_sum(logits, ids, labels):
    """sum of -log p(label) over positions with label >= 0; labels[t] is the target at position t."""
    lp = logits - logits.max(-1, keepdims=True)
    lp = lp - np.log(np.exp(lp).sum(-1, keepdims=True))
    s, n = 0.0, 0
    for t, y in enumerate(labels):
        if y >= 0:
            s -= lp[t, y]
            n += 1
    return s, n


def shift(ids, train):
    """next-token targets; position t trains iff token t+1 is in the loss"""
    return [ids[t + 1] if t + 1 < len(ids) and train[t + 1] else -100 for t in range(len(ids))]


def fd_grads(cfg, w, lossfn, h=1e-5):
    """central differences in float64 of lossfn(w) for every parameter"""
    w = {k: np.array(v, np.float64) for k, v in w.items()}
    g = {}
    for k, a in w.items():
        gk = np.zeros_like(a)
        it = a.reshape(-1)
        gf = gk.reshape(-1)
        for i in range(it.size):
            o = it[i]
            it[i] = o + h
            up = lossfn(w)
            it[i] = o - h
            dn = lossfn(w)
            it[i] = o
            gf[i] = (up - dn) / (2 * h)
        g[k] = gk
    return g


def gnorm(g):
    return float(math.sqrt(sum(float((v * v).sum()) for v in g.values())))


def put_model(d, cfg, w, dtype="F32"):
    write_model(J(d, "model"), cfg, items_of(w, dtype))


def step_loss(cfg, w, rows):
    s = n = 0
    for ids, m in rows:
        a, b = ce_sum(llama_forward(cfg, w, ids), ids, shift(ids, m))
        s, n = s + a, n + b
    return s, n


def step_expect(d, cfg, w, rows, only=None):
    _, n = step_loss(cfg, w, rows)
    lf = lambda ww: step_loss(cfg, ww, rows)[0] / n
    g = fd_grads(cfg, w, lf)
    put_json(J(d, "grads.json"), {k: np.round(v, 9).tolist() for k, v in g.items() if k in ("model.norm.weight", "model.layers.0.self_attn.k_proj.weight",
                                                                                          "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight")})
    return dict(train="ok", loss=float(lf({k: np.asarray(v, np.float64) for k, v in w.items()})), target_tokens=int(n), grad_norm=gnorm(g), grads_file="grads.json")


@case("SH01", "shard", "pytorch/torchtitan#4593, Lightning-AI/lightning-thunder#248, pytorch/pytorch#150490", "rows fewer than ranks, sizes no rank count divides")
def _(d):
    cfg = llama_cfg(hidden_size=6, num_attention_heads=3, num_key_value_heads=1, intermediate_size=5, vocab_size=41, num_hidden_layers=1)
    w = llama_init(cfg, 1001)
    sv, its = llama_case(d, cfg, w)
    return dict(shard="ok", worlds=[1, 2, 3, 4, 5, 7, 8, 16], gathered_raw_sha256={i[0]: sha(i[3]) for i in its},
                must="sum of shard bytes (padding aside) equals the whole for every tensor; ranks with an empty shard still take part in each collective",
                forward=forward_expect(d, llama_forward(cfg, sv, IDS)))


@case("SH06", "shard", "pytorch/torchtitan#1842, #2206; huggingface/transformers#34191; ml-explore/mlx-lm#1413", "the loss is a mean over target tokens of the whole step, however it is split")
def _(d):
    cfg = llama_cfg(**TINY)
    w = llama_init(cfg, 1006)
    put_model(d, cfg, w)
    rows = [([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 0, 0, 0, 0, 0, 1]), ([3, 3, 9, 12, 5, 19, 0], [0, 1, 1, 1, 1, 1, 1]),
            ([7, 8], [0, 1]), ([10, 11, 12, 13, 14, 15], [0, 0, 1, 1, 1, 0])]
    put_json(J(d, "batch.json"), [{"input_ids": i, "loss_mask": m} for i, m in rows])
    e = step_expect(d, cfg, w, rows)
    e.update(splits=[{"world": 1, "micro_batch": 4, "accumulate": 1}, {"world": 1, "micro_batch": 1, "accumulate": 4},
                     {"world": 2, "micro_batch": 1, "accumulate": 2}, {"world": 4, "micro_batch": 1, "accumulate": 1}],
             must="loss and gradient norm are the same for every split", rtol=2e-4)
    return e


@case("SH10", "shard", "pytorch/pytorch#104690, #91167; huggingface/peft#1702", "frozen and trainable parameters in one block")
def _(d):
    cfg = llama_cfg()
    w = llama_init(cfg, 1010)
    put_model(d, cfg, w)
    tr = [n for n in w if "self_attn.q_proj" in n or "norm" in n]
    return dict(train="ok", trainable=tr, trainable_parameters=int(sum(w[n].size for n in tr)), parameters=nparams(w), worlds=[1, 2, 3],
                must="frozen tensors bit-identical after steps; optimizer state only for trainable ones; plan counts gradients and state only for them",
                adam_state_bytes_f32=int(sum(w[n].size for n in tr)) * 8)


@case("SH14", "shard", "pytorch/torchtitan#3807, pytorch/torchtitan#2577", "two key/value heads on three and four ranks")
def _(d):
    cfg = llama_cfg(num_attention_heads=6, num_key_value_heads=2, hidden_size=48)
    w = llama_init(cfg, 1014)
    sv, its = llama_case(d, cfg, w)
    return dict(shard="ok", worlds=[3, 4, 5], forward=forward_expect(d, llama_forward(cfg, sv, IDS)),
                must="fully sharded data parallel does not depend on head counts; logits equal at each world size")


@case("LA07", "launch", "deepspeedai/DeepSpeed#6979, thu-coai/CDial-GPT#103", "environment tables that must be refused or understood")
def _(d):
    base = dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    v = lambda **k: {a: b for a, b in {**base, **k}.items() if b is not None}
    t = [("complete", v(), "accept", []), ("no_rank", v(RANK=None), "error", ["RANK"]), ("no_world", v(WORLD_SIZE=None), "error", ["WORLD_SIZE"]),
         ("rank_too_big", v(RANK="2"), "error", ["RANK", "2"]), ("rank_text", v(RANK="one"), "error", ["RANK", "one"]),
         ("rank_negative", v(RANK="-1"), "error", ["RANK"]), ("world_zero", v(WORLD_SIZE="0"), "error", ["WORLD_SIZE"]),
         ("port_big", v(MASTER_PORT="66660"), "error", ["MASTER_PORT", "66660"]), ("port_text", v(MASTER_PORT="29x"), "error", ["MASTER_PORT"]),
         ("no_addr", v(MASTER_ADDR=None), "error", ["MASTER_ADDR"]), ("no_local_rank", v(LOCAL_RANK=None), "accept or error", ["LOCAL_RANK"]),
         ("single", {}, "accept as world 1", []), ("spaces", v(RANK=" 0 "), "accept or error", ["RANK"]), ("empty", v(RANK=""), "error", ["RANK"])]
    put_json(J(d, "env.json"), [{"name": n, "env": e, "verdict": r, "must_mention": m} for n, e, r, m in t])
    return dict(launch="table", table="env.json", must="decide before any socket is opened, within 2 s")
