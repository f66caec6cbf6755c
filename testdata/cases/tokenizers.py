"""Tokenizers that do not fit their model, or are not there."""
import os

from caselib import *

J = os.path.join


def put_model(d, cfg, w, dtype="F32"):
    write_model(J(d, "model"), cfg, items_of(w, dtype))


def data_model(d, seed=3000, **kw):
    cfg = llama_cfg(vocab_size=261, hidden_size=16, num_hidden_layers=1, intermediate_size=16, bos_token_id=256, eos_token_id=259, pad_token_id=260)
    put_model(J(d), cfg, llama_init(cfg, seed))
    write_tok(J(d, "model"), **kw)


TWO = [chat(("user", "hi"), ("assistant", "yo")), chat(("user", "naïve ☕"), ("assistant", "ok"))]


def samples_expect(rows, bos=False):
    out = []
    for r in rows:
        ids, fl = chatml_ids(r["messages"], bos)
        out.append({"input_ids": ids, "in_loss": fl, "target_tokens": [fl.count(1), fl.count(1) + fl.count(None)]})
    return out


@case("TK01", "tok", "huggingface/tokenizers#1609, E5-V#7, huggingface/transformers#12763", "the tokenizer has ids the embedding has no row for")
def _(d):
    cfg = llama_cfg(vocab_size=259, hidden_size=16, num_hidden_layers=1, intermediate_size=16, bos_token_id=256, eos_token_id=257)
    put_model(d, cfg, llama_init(cfg, 9001))
    write_tok(J(d, "model"))
    put(J(d, "data.jsonl"), jl(TWO))
    return dict(data="error", must_mention=["259"], should_mention=["<|im_end|>", "260"], before="training starts",
                note="highest token id 260, embedding rows 259; a resize on request is fine, never a read past the end or a clamp")


@case("TK02", "tok", "QwenLM/Qwen#553", "embedding padded past the tokenizer")
def _(d):
    cfg = llama_cfg(vocab_size=320, hidden_size=16, num_hidden_layers=1, intermediate_size=16, bos_token_id=256, eos_token_id=259)
    put_model(d, cfg, llama_init(cfg, 9002))
    write_tok(J(d, "model"))
    put(J(d, "data.jsonl"), jl(TWO))
    return dict(data="ok", samples=2, tokens=samples_expect(TWO), export={"config.vocab_size": 320, "embedding_rows": 320}, must_not="shrink the embedding")


@case("TK03", "tok", "llm-course#33, ibm-granite/granite-3.1-language-models#2", "no pad token anywhere")
def _(d):
    data_model(d, pad=None)
    rows = [TWO[0], chat(("user", "hi"), ("assistant", "a longer one"))]
    put(J(d, "data.jsonl"), jl(rows))
    return dict(data="ok", batch=2, tokens=samples_expect(rows), must="pad with any id at masked positions; never grow the vocabulary; the exported tokenizer has no pad token that was not there")


@case("TK04", "tok", "huggingface/transformers#22264, focus#3", "byte fallback for characters outside the vocabulary")
def _(d):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab["<0x%02X>" % b] = 3 + b
    for s in ("▁", "h", "i", "▁h", "▁hi"):
        vocab[s] = len(vocab)
    tok = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(i, s) for i, s in enumerate(("<unk>", "<s>", "</s>"))],
           "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
           "pre_tokenizer": None, "post_processor": None,
           "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
           "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True,
                     "byte_fallback": True, "ignore_merges": False, "vocab": vocab, "merges": ["▁ h", "▁h i"]}}
    put_json(J(d, "tokenizer.json"), tok)
    B = lambda t: [3 + b for b in t.encode()]
    V = vocab
    put_json(J(d, "table.json"), {"encode": [{"text": "hi", "ids": [V["▁hi"]]}, {"text": "h☕", "ids": [V["▁h"]] + B("☕")},
                                             {"text": "é i", "ids": [V["▁"]] + B("é") + [V["▁"], V["i"]]}, {"text": "\n", "ids": [V["▁"]] + B("\n")}],
                                  "decode": [{"ids": [V["▁h"]] + B("☕"), "text": "h☕"}, {"ids": B("☕")[:2], "text": "\ufffd\ufffd"},
                                             {"ids": [V["▁h"]] + B("☕")[:2] + [V["i"]], "text": "h\ufffd\ufffdi"}]})
    return dict(tokenizer="exact", table="table.json", note="encode without special tokens")


@case("TK07", "tok", "huggingface/tokenizers#1518, mistral.rs#407", "only a SentencePiece tokenizer.model is present")
def _(d):
    cfg = llama_cfg()
    put_model(d, cfg, llama_init(cfg, 9007))
    put(J(d, "model", "tokenizer.model"), b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")
    put_json(J(d, "model", "tokenizer_config.json"), {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True})
    put(J(d, "data.jsonl"), jl(TWO))
    return dict(load="ok", data="ok or error", if_error={"must_mention": ["tokenizer.json"], "should_mention": ["tokenizer.model"]},
                note="weights-only commands must still work without any tokenizer")
