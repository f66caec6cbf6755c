#!/usr/bin/env python3
"""Makes the golden files of this folder: small GGUF files and what other programs read in them.

    python3 testdata/gguf/make_gguf.py

Made with Python's gguf 0.19.0, numpy 2.4.6, tokenizers 0.23.3, sentencepiece 0.2.3; seeds stand below.

blocks.gguf, blocks.f32   a tensor of every element type, of random blocks, and its numbers by the gguf package, one
                          tensor after the other; keys of every value type
tiny.gguf, tiny/          a Llama of 2 blocks with a byte-level tokenizer, and the folder that
                          scripts/smollm2_from_wheel.py makes of it
tiny_ids.json             texts with their ids, by the tokenizers package over tiny/tokenizer.json
families_ids.json         the same by the parts that transformers 5.24.0 gives the tokenizers of other families
pieces.gguf               as tiny.gguf, with a SentencePiece vocabulary trained here
pieces_ids.json           texts with their ids, by the sentencepiece package
"""
import io, json, subprocess, sys, tempfile
from pathlib import Path
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFValueType as V, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

HERE = Path(__file__).resolve().parent
TEXTS = [
    "Hello, world!", " leading and trailing ", "a\n\n  b\tc\r\nd", "12345 67,890.12", "It's we'll they'd I'M don't",
    "na\u00efve caf\u00e9 \u4f60\u597d \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467", "<|im_start|>user\nhi<|im_end|>\n",
    "fn main() { println!(\"{}\", x += 1); }", "", " ", "   ", "the cat sat on the mat", "\u0000\u0001 \ufeff \u00a0x\u2028y",
    "The rain in Spain stays mainly in the plain.", "ab<|endoftext|>cd", "\u0661\u0662\u0663 \u00bd \u2167", "e\u0301 A\u030a",
    "<s>hi</s> <unk>", "\u2581x \u2581 y", "trailing newline\n",
]
CORPUS = ("the cat sat on the mat and the rain in Spain stays mainly in the plain. It's we'll they'd don't. hello world, "
          "a naive cafe sells 12345 cups; user and assistant talk of the weather, and then they go home together again. ") * 4


def blocks():
    rng = np.random.default_rng(7)
    writer = GGUFWriter(HERE / "blocks.gguf", "test")
    for key, value, kind in [("u8", 200, V.UINT8), ("i8", -100, V.INT8), ("u16", 60000, V.UINT16), ("i16", -30000, V.INT16),
                             ("u32", 4000000000, V.UINT32), ("i32", -2000000000, V.INT32), ("f32", 0.5, V.FLOAT32), ("bool", True, V.BOOL),
                             ("text", "caf\u00e9", V.STRING), ("u64", 2**63, V.UINT64), ("i64", -2**62, V.INT64), ("f64", 0.1, V.FLOAT64)]:
        writer.add_key_value(f"test.{key}", value, kind)
    writer.add_array("test.texts", ["a", "", "bc"])
    writer.add_array("test.numbers", [1, -2, 3])
    numbers = []
    for kind in [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K]:
        length, size = GGML_QUANT_SIZES[kind]
        rows, columns = 2, 256
        data = rng.integers(0, 256, (rows, columns // length * size), dtype=np.uint8)
        if kind in (T.F32, T.F16, T.BF16):
            data = rng.standard_normal((rows, columns)).astype(np.float32) if kind == T.F32 else (
                rng.standard_normal((rows, columns)).astype(np.float16) if kind == T.F16 else
                quantize(rng.standard_normal((rows, columns)).astype(np.float32), kind))
        else:
            # The f16 scales become finite and of both signs.
            at = {T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.Q4_1: [0, 2], T.Q5_1: [0, 2]}.get(kind, [0])
            cut = data.reshape(-1, size)
            for offset in at:
                cut[:, offset:offset + 2] = rng.standard_normal((len(cut), 1)).astype(np.float16).view(np.uint8)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        numbers.append(np.asarray(dequantize(data, kind), np.float32).reshape(-1))
    finish(writer)
    (HERE / "blocks.f32").write_bytes(np.concatenate(numbers).astype("<f4").tobytes())


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny(name, vocab):
    """A Llama without its tokenizer."""
    rng = np.random.default_rng(8)
    hidden, wide, heads, kv_heads = 64, 96, 4, 2
    writer = GGUFWriter(HERE / name, "llama")
    writer.add_name("tiny")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_rope_dimension_count(hidden // heads)

    def add(name, kind, *shape):
        numbers = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
        data = numbers if kind == T.F32 else quantize(numbers, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    add("token_embd.weight", T.Q8_0, vocab, hidden)
    for block in range(2):
        add(f"blk.{block}.attn_norm.weight", T.F32, hidden)
        add(f"blk.{block}.ffn_down.weight", T.Q4_1, hidden, wide)
        add(f"blk.{block}.ffn_gate.weight", T.Q5_0, wide, hidden)
        add(f"blk.{block}.ffn_up.weight", T.Q4_0, wide, hidden)
        add(f"blk.{block}.ffn_norm.weight", T.F32, hidden)
        add(f"blk.{block}.attn_k.weight", T.Q4_1, kv_heads * hidden // heads, hidden)
        add(f"blk.{block}.attn_output.weight", T.Q4_1, hidden, hidden)
        add(f"blk.{block}.attn_q.weight", T.Q4_1, hidden, hidden)
        add(f"blk.{block}.attn_v.weight", T.BF16, kv_heads * hidden // heads, hidden)
    add("output_norm.weight", T.F32, hidden)
    return writer


WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
FAMILIES = [("gpt-2", False, None, False), ("llama-bpe", False, WORDS % "{1,3}", True), ("qwen2", True, WORDS % "", False)]


def byte_level():
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([CORPUS], trainers.BpeTrainer(
        vocab_size=340, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    writer = tiny("tiny.gguf", len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in special else 1 for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in model["merges"]])
    for add, id in [(writer.add_bos_token_id, 1), (writer.add_eos_token_id, 2), (writer.add_unk_token_id, 0), (writer.add_pad_token_id, 2)]:
        add(id)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}")
    finish(writer)
    script = HERE.parent.parent / "scripts" / "smollm2_from_wheel.py"
    subprocess.run([sys.executable, script, "--gguf", HERE / "tiny.gguf", "--out", HERE / "tiny"], check=True)
    tokenizer = Tokenizer.from_file(str(HERE / "tiny" / "tokenizer.json"))
    write_ids("tiny_ids.json", lambda text: tokenizer.encode(text).ids)
    lines = []
    for name, normalizer, pattern, ignores_merges in FAMILIES:
        model = json.loads(tokenizer.to_str())
        model["model"]["ignore_merges"] = ignores_merges
        family = Tokenizer.from_str(json.dumps(model))
        if normalizer:
            family.normalizer = normalizers.NFC()
        if pattern:
            family.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
                                                            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        else:
            family.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        lines += [json.dumps({"pre": name, "text": text, "ids": family.encode(text).ids}) for text in TEXTS]
    (HERE / "families_ids.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")


def pieces():
    import sentencepiece
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.split(". ")), model_writer=made, vocab_size=380, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, unk_surface=" \u2047 ", minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    ids = range(model.get_piece_size())
    kinds = [2 if model.is_unknown(id) else 3 if model.is_control(id) else 6 if model.is_byte(id) else 1 for id in ids]
    writer = tiny("pieces.gguf", len(ids))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(id) for id in ids])
    writer.add_token_scores([model.get_score(id) for id in ids])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    finish(writer)
    # Text that spells a control token is text to sentencepiece and a token to a Hugging Face tokenizer.
    write_ids("pieces_ids.json", model.encode, [text for text in TEXTS if text and "<s>" not in text])


def write_ids(name, encode, texts=TEXTS):
    lines = [json.dumps({"text": text, "ids": list(encode(text))}) for text in texts]
    (HERE / name).write_text("[\n" + ",\n".join(lines) + "\n]\n")


blocks()
byte_level()
pieces()
