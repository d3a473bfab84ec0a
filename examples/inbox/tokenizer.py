"""The small model's tokenizer and chat template.

Word level over the inbox's closed vocabulary, single bytes for everything else. Each piece of the format is one token,
so that a tool call is four: piece, word, piece, end. Every token has one spelling only, and the template writes a tool
call as the model does, so a conversation that is rendered again gives back the very ids that were sampled.
"""

from __future__ import annotations

from typing import Any

from inbox import DAYS, MAILS, NAMES, QUESTIONS, SYSTEM, THINGS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

PAD, END = "<|endoftext|>", "<|im_end|>"
ROLES = {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant", "tool")}
SEARCH = '<tool_call>\n{"name": "search", "arguments": {"keywords": "'
READ = '<tool_call>\n{"name": "read", "arguments": {"id": '
ANSWER = '<tool_call>\n{"name": "answer", "arguments": {"text": "'
CLOSE_TEXT = '"}}\n</tool_call>'
CLOSE_NUMBER = "}}\n</tool_call>"
PIECES = (SEARCH, READ, ANSWER, CLOSE_TEXT, CLOSE_NUMBER)
UNKNOWN = "unknown"

# `arguments` reaches the template as a dict (vLLM parses it) or as the string that the API carries.
CHAT_TEMPLATE = (
    "{%- if messages[0].role != 'system' and tools %}"
    "{{- '<|im_start|>system\\ntools:' }}{% for t in tools %}{{ ' ' + t.function.name }}{% endfor %}{{ '<|im_end|>' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content %}{{ m.content }}{% endif %}"
    "{%- if m.role == 'system' and loop.first and tools %}"
    "{{- '. tools:' }}{% for t in tools %}{{ ' ' + t.function.name }}{% endfor %}"
    "{%- endif %}"
    "{%- for c in m.tool_calls or [] %}"
    '{{- \'<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{- '}\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def words() -> list[str]:
    """The closed vocabulary: every word that a mailbox, a question or the format can hold."""
    text = " ".join((*QUESTIONS, SYSTEM)).replace("{thing}", "").replace("{name}", "")
    listed = [*NAMES, *THINGS, *DAYS, *text.split(), "mail", "no", "tools", "search", "read", "answer", UNKNOWN]
    return list(dict.fromkeys([*listed, *(str(i) for i in range(MAILS))]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 430 tokens."""
    vocab: dict[str, int] = {}
    for token in (PAD, END, *ROLES.values(), *PIECES):
        vocab[token] = len(vocab)
    spelled = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *words(), *("Ġ" + word for word in words())]
    for token in spelled:
        vocab.setdefault(token, len(vocab))
    # With ignore_merges a word of the vocabulary is one token; any other falls apart into bytes, as there are no merges.
    model = Tokenizer(BPE(vocab=vocab, merges=[], ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?[a-z]+| ?[0-9]+|\s|."), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END, *ROLES.values())])
    # Not special: a tool parser has to see them in the decoded text.
    model.add_tokens([AddedToken(t, special=False, normalized=False) for t in PIECES])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False, padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def spelling_pairs(tokenizer: PreTrainedTokenizerFast) -> list[tuple[int, int]]:
    """Ids of each word without and with its leading space, for embeddings that start out alike."""
    vocab: dict[str, int] = tokenizer.get_vocab()
    return [(vocab[word], vocab["Ġ" + word]) for word in words()]


def tool_call(name: str, arguments: str, call_id: str = "call") -> dict[str, Any]:
    """An assistant message with one tool call, as the API carries it. `arguments` is a JSON text."""
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
