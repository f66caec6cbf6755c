#!/usr/bin/env python3
"""Makes tokenizer.json, chats.json, templates.json and texts.json, which lie beside this script.

    python make.py

What is expected comes from transformers: renderings from `apply_chat_template`, masks from its own
`return_assistant_tokens_mask`. That mask needs `{% generation %}` markers, so each template here is written
with markers around what the assistant has to produce; the stored template has them taken out, and the
program has to find the same tokens without them.

Made with Python 3.11, tokenizers 0.23.3, transformers 5.24.0, jinja2 3.1.6. There is no randomness in it.
"""
import json
import os
import re

import jinja2
import tokenizers
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIALS = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<turn>", "</turn>"]
CORPUS = [
    "The user asks and the assistant answers. A short answer is a good answer.",
    "system user assistant model role header content turn",
    "What is the name of the river? The river is called the Long Water, and it is cold.",
    "You are a helpful assistant. You answer in one sentence.",
    "yes no maybe one two three, one: two; three!",
] * 4


def save(name, value):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)
        f.write("\n")


def make_tokenizer():
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
                                  special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tok.train_from_iterator(CORPUS, trainer)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tok.token_to_id("<s>"))]),
    ])
    # Both must be switched off by whoever loads this: no text is cut or padded without a request.
    tok.enable_truncation(8)
    tok.enable_padding(length=8, pad_id=0, pad_token="<pad>")
    return tok


CHATML = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
TEMPLATES = {
    "chatml": ("<s>", "<|im_end|>", CHATML),
    "default_system": ("<|im_start|>", "<|im_end|>", "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}" + CHATML),
    "inst": ("<s>", "</s>", """{% if messages[0]['role'] == 'system' %}
    {%- set rest = messages[1:] %}
    {%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}
{%- else %}
    {%- set rest = messages %}
    {%- set system = '' %}
{%- endif %}
{%- for m in rest %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (system if loop.first else '') + m['content'].strip() + ' [/INST]' }}
    {%- else %}
        {%- generation %}{{- ' ' + m['content'] | trim + ' ' + eos_token }}{%- endgeneration %}
    {%- endif %}
{%- endfor %}"""),
    "headers": ("<s>", "<|eot|>", """{% set loop_messages = messages %}
{% for m in loop_messages %}
{% set head = '<|start|>' + m['role'] + '<|end|>\\n\\n' %}
{% if loop.index0 == 0 %}{% set head = bos_token + head %}{% endif %}
{{- head }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] | trim }}{{ '<|eot|>' }}{% endgeneration %}{% else %}{{ m['content'] | trim + '<|eot|>' }}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}"""),
    "renamed_roles": ("<s>", "</turn>", """{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}{% endif %}
<turn>{{ role }}
{% if m.role == 'assistant' %}
{% generation %}{{ m.content.strip() ~ '</turn>' }}{% endgeneration %}{{ '\\n' }}
{%- else %}
{{ m.content.strip() ~ '</turn>' }}
{% endif %}{% endfor %}{% if add_generation_prompt %}<turn>model
{% endif %}"""),
    # Knows no generation prompt: the header is written within the turn.
    "no_prompt": ("<s>", "</s>", "{% for m in messages %}{{ '### ' + m['role'].upper() + ':\\n' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '\\n\\n' }}{% endfor %}"),
}
CHATS = [
    [("user", "hi"), ("assistant", "yo")],
    [("system", "one sentence"), ("user", "What is the name of the river?"), ("assistant", "The river is called the Long Water."), ("user", "naïve ☕?"), ("assistant", "ok ☕☕ ✓")],
    [("user", "assistant"), ("assistant", "user"), ("user", "<|im_end|>"), ("assistant", "  yes\n\nno  ")],
    [("user", "say nothing"), ("assistant", ""), ("user", "more"), ("assistant", "one two")],
]
# Without markers, `transformers` has no mask to give for a template.
UNMARK = re.compile(r"\{%-? (end)?generation %\}")


def chats(path):
    out = []
    for name, (bos, eos, marked) in TEMPLATES.items():
        tok = PreTrainedTokenizerFast(tokenizer_file=path, bos_token=bos, eos_token=eos)
        # Offsets that begin at a token's first byte, the rule that the masks follow.
        tok.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
        # The stored template keeps the whitespace control that the markers had.
        plain = marked.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
        plain = UNMARK.sub("", plain)
        for turns in CHATS:
            messages = [{"role": r, "content": c} for r, c in turns]
            text = tok.apply_chat_template(messages, chat_template=plain, tokenize=False)
            assert text == tok.apply_chat_template(messages, chat_template=marked, tokenize=False), (name, text)
            prompt = tok.apply_chat_template(messages[:-1], chat_template=plain, tokenize=False, add_generation_prompt=True)
            both = tok.apply_chat_template(messages, chat_template=marked, return_dict=True, return_assistant_tokens_mask=True)
            ids, mask = both["input_ids"], both["assistant_masks"]
            assert ids == tok(text, add_special_tokens=False)["input_ids"] and any(mask)
            out.append({"name": name, "bos_token": bos, "eos_token": eos, "template": plain, "messages": messages,
                        "text": text, "prompt": prompt, "input_ids": ids, "in_loss": mask})
    return out


FEATURES = {
    "reversed": "{% for m in messages[::-1] %}{{ m.role }};{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, last='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.last = m.role %}{% endfor %}{{ ns.n }}{{ ns.last }}",
    "slices": "{% set rest = messages[1:] %}{{ rest | length }}{{ rest[0]['content'] }}{{ messages[-1].role[:4] }}",
    "string_methods": "{{ '  a b '.strip() }}|{{ 'x-y'.split('-')[-1] }}|{{ 'abc'.startswith('ab') }}|{{ 'a'.upper() + 'B'.lower() }}|{{ 'abcabc'.replace('b', '') }}|{{ 'n\\n'.rstrip() }}|{{ 'a,b'.split(',') | join('+') }}|{{ 'title case'.title() }}|{{ 'abc'.endswith('c') }}|{{ 'aXb'.find('X') }}",
    "json": "{{ {'b': [1, 'é<&>', none, true, 1.5], 'a': {}} | tojson }}{{ [] | tojson }}",
    "json_indent": "{{ {'b': [1, {'c': 'x'}], 'a': []} | tojson(indent=4) }}",
    "json_options": "{{ {'b': 1, 'a': '☕𝄞'} | tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
    "json_of_message": "{{ messages[0] | tojson }}",
    "whitespace": "A\n  {%- if true -%}\n B\n  {%- endif %}\nC\n  {% if true %}\nD\n  {% endif %}\nE\n",
    "trimmed_blocks": "{% for m in messages %}\n    {{ m.role }}\n{% endfor %}\nx {# comment #}\ny",
    "tools": "{{ 'no' if tools is not defined or tools is none else 'yes' }}{{ 'none' if not tools }}{% if documents %}d{% endif %}",
    "loop_controls": "{% for m in messages %}{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}\n  {% generation %}\n{{ m.content }}{%- endgeneration -%}  \n{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "macro": "{% macro f(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ f(messages[0].content) }}{{ f('a', y='b') }}",
    "dict_methods": "{{ messages[0].get('name', 'anon') }}{% for k, v in messages[0].items() %}{{ k }}={{ v }},{% endfor %}{{ messages[0].keys() | list | length }}{{ 'role' in messages[0] }}",
    "filters": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | join(',') }}{{ (messages | last).role }}{{ ' x ' | trim }}{{ 'abc' | length }}{{ '' | default('d', true) }}",
    "printing": "{{ true }} {{ none }} {{ 1 }} {{ 2.0 }} {{ [1, 'a', none, true] }} {{ {'k': \"it's\"} }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 7 % 4 }} {{ 'a' ~ 1 }} {{ undefined_name }}|",
    "tests": "{{ 'a' is string }}{{ messages is iterable }}{{ messages[0] is mapping }}{{ 3 is odd }}{{ x is defined }}{{ 1 is number }}{{ messages[0].content is not none }}",
    "specials": "{{ bos_token }}{{ eos_token }}{{ 'nothing' if sep_token is not defined else sep_token }}",
    "scopes": "{% set x = 1 %}{% for m in messages %}{% set x = 2 %}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
    "loop_variables": "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem.role if not loop.first }};{% endfor %}",
    "inline_for": "{% for m in messages if m.role != 'system' %}{{ m.role }}{% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
    "set_block": "{% set t %}a{{ 1 }}{% endset %}{{ t }}{{ '%s-%d' | format('x', 3) }}",
    "compare": "{{ messages[0]['role'] == 'user' and not (1 > 2) }}{{ 'b' if messages | length > 5 else 'c' }}{{ 'us' in messages[0].role }}{{ 'q' not in 'abc' }}",
}


def features(path):
    tok = PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<s>", eos_token="</s>")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "it's ☕"}]
    rows = [{"name": n, "template": t, "text": tok.apply_chat_template(messages, chat_template=t, tokenize=False)} for n, t in FEATURES.items()]
    return {"messages": messages, "rows": rows}


TEXTS = ["The river is cold.", "naïve ☕ 𝄞", "", " ", "a\n\n\tb", "<s>The", "The</s>", "<|im_start|>user", "x" * 40, "one: two"]


def texts(path):
    tok = PreTrainedTokenizerFast(tokenizer_file=path, bos_token="<s>", eos_token="</s>")
    return [{"text": t, "input_ids": tok(t)["input_ids"], "without_special": tok(t, add_special_tokens=False)["input_ids"],
             "decoded": tok.decode(tok(t, add_special_tokens=False)["input_ids"], clean_up_tokenization_spaces=False)} for t in TEXTS]


def main():
    path = os.path.join(HERE, "tokenizer.json")
    make_tokenizer().save(path)
    save("chats.json", chats(path))
    save("templates.json", features(path))
    save("texts.json", texts(path))
    print("tokenizers", tokenizers.__version__, "transformers", transformers.__version__, "jinja2", jinja2.__version__)


main()
