"""The small model's tokenizer and chat template.

Word level over what a game can say, single bytes for everything else. A move is four tokens: the tool call's beginning, the
square, its close, the end of the turn. A conversation that is rendered again gives back the very ids that were sampled.
"""

from __future__ import annotations

from typing import Any

from tictactoe import DRAWN, INSTRUCTIONS, LOST, TAKEN, WON
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

PAD, END = "<|endoftext|>", "<|im_end|>"
ROLES = {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant", "tool")}
PLAY, CLOSE = '<tool_call>\n{"name": "play", "arguments": {"square": ', "}}\n</tool_call>"

# Hermes format, as Qwen's own templates write it. Only the names of the tools are shown: the model knows one.
# `arguments` reaches the template as a dict (vLLM parses it) or as the string that the API carries.
CHAT_TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\ntools:' }}{% for t in tools %}{{ ' ' + t.function.name }}{% endfor %}"
    "{{- '<|im_end|>' }}{%- endif %}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.content %}{{ m.content }}{% endif %}"
    "{%- for c in m.tool_calls or [] %}"
    '{{- \'<tool_call>\\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}"
    "{{- '}\\n</tool_call>' }}"
    "{%- endfor %}"
    "{{- '<|im_end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPLIT = r" ?[A-Za-z]+| ?[0-9]|\s|."


def words() -> list[str]:
    """Every word that a game or the format can hold."""
    text = f"{INSTRUCTIONS} {WON} {DRAWN} {LOST} {TAKEN} tools play".replace(".", " ").replace(",", " ")
    return list(dict.fromkeys([*text.split(), *map(str, range(1, 10))]))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, with its chat template: about 340 tokens."""
    vocab: dict[str, int] = {}
    for token in (PAD, END, *ROLES.values(), PLAY, CLOSE):
        vocab[token] = len(vocab)
    for token in (*sorted(pre_tokenizers.ByteLevel.alphabet()), *words(), *("Ġ" + word for word in words())):
        vocab.setdefault(token, len(vocab))
    # With ignore_merges a word of the vocabulary is one token; any other falls apart into bytes, as there are no merges.
    model = Tokenizer(BPE(vocab=vocab, merges=[], ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END, *ROLES.values())])
    # Not special: a tool parser has to see them in the decoded text.
    model.add_tokens([AddedToken(t, special=False, normalized=False) for t in (PLAY, CLOSE)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False, padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def spelling_pairs(tokenizer: PreTrainedTokenizerFast) -> list[tuple[int, int]]:
    """Ids of each word without and with its leading space, for embeddings that start out alike."""
    vocab: dict[str, int] = tokenizer.get_vocab()
    return [(vocab[word], vocab["Ġ" + word]) for word in words()]


def move_message(square: int, call_id: str = "call") -> dict[str, Any]:
    """An assistant message that plays a square (1 to 9), as the API carries it."""
    function = {"name": "play", "arguments": f'{{"square": {square}}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
