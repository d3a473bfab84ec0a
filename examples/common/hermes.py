"""A tokenizer for a closed vocabulary, and a chat template in the *hermes* format.

Word level over the words that a task can say, single bytes for everything else. The beginnings and ends of tool calls are
tokens of their own, so a call takes a few tokens. Each token has one spelling, and the template writes a call as the model
does: a conversation that is rendered again gives back the very ids that were sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

__all__ = [
    "CHAT_TEMPLATE",
    "CLOSE_NUMBER",
    "CLOSE_TEXT",
    "END",
    "PAD",
    "ROLES",
    "build_tokenizer",
    "encode",
    "fixed_call",
    "not_rerendered",
    "opening",
    "parse",
    "render",
    "spelling_pairs",
    "tool_call",
    "tool_turn",
]

PAD, END = "<|endoftext|>", "<|im_end|>"
ROLES = {role: f"<|im_start|>{role}\n" for role in ("system", "user", "assistant", "tool")}
CLOSE_TEXT = '"}}\n</tool_call>'
CLOSE_NUMBER = "}}\n</tool_call>"
SPLIT = r" ?[A-Za-z]+| ?[0-9]+|\s|."
"""What a word is: letters or digits, with the space before them."""
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)

# As Qwen's own templates write it, but only the names of the tools are shown: the model knows what they take.
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


def tool_turn(text: str) -> str:
    """What stands between a tool call and the assistant's next words, where the tool said this."""
    return f"{ROLES['tool']}{text}{END}{ROLES['assistant']}"


def opening(name: str, key: str, *, text: bool = True) -> str:
    """The piece that begins a call of a tool up to the value of its first argument, a text or a number.

    Its end is ``CLOSE_TEXT`` or ``CLOSE_NUMBER``.
    """
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"{key}": ' + ('"' if text else "")


def fixed_call(name: str, **arguments: object) -> str:
    """A whole call as one piece, where the arguments can only be few: `fixed_call("move", direction="left")`."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def build_tokenizer(
    words: Sequence[str], pieces: Sequence[str], *, split: str = SPLIT, template: str = CHAT_TEMPLATE
) -> PreTrainedTokenizerFast:
    """The tokenizer: the format's tokens, 256 bytes, and each word without and with a space before it.

    `pieces` are tokens wherever they stand in a text (beginnings and ends of calls). `words` match `split` whole.
    """
    vocab: dict[str, int] = {}
    for token in (PAD, END, *ROLES.values(), *pieces):
        vocab[token] = len(vocab)
    for token in (*sorted(pre_tokenizers.ByteLevel.alphabet()), *words, *("Ġ" + word for word in words)):
        vocab.setdefault(token, len(vocab))
    # With ignore_merges a word of the vocabulary is one token; any other falls apart into bytes, as there are no merges.
    model = Tokenizer(BPE(vocab=vocab, merges=[], ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (PAD, END, *ROLES.values())])
    # Not special: a tool parser has to see them in the decoded text.
    model.add_tokens([AddedToken(t, special=False, normalized=False) for t in pieces])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False, padding_side="left"
    )
    tokenizer.chat_template = template
    return tokenizer


def spelling_pairs(tokenizer: PreTrainedTokenizerFast, words: Iterable[str]) -> list[tuple[int, int]]:
    """Ids of each word without and with its leading space, for embeddings that start out alike."""
    vocab: dict[str, int] = tokenizer.get_vocab()
    return [(vocab[word], vocab["Ġ" + word]) for word in words]


def tool_call(name: str, arguments: str | dict[str, Any], call_id: str = "call") -> dict[str, Any]:
    """An assistant message with one tool call, as the API carries it. `arguments`: a JSON text, or what it holds."""
    said = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": name, "arguments": said}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of a text as it stands."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render(
    tokenizer: PreTrainedTokenizerFast,
    messages: Sequence[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    *,
    ask: bool = False,
) -> list[int]:
    """Ids of a conversation, by way of the chat template. `ask`: up to where the assistant's next words begin."""
    text = tokenizer.apply_chat_template(list(messages), tools=tools, add_generation_prompt=ask, tokenize=False)
    return encode(tokenizer, str(text))


def parse(text: str) -> dict[str, Any]:
    """The assistant's message in a reply's text, as vLLM's hermes parser reads it: calls, or the text where they are no JSON."""
    try:
        found = [json.loads(call) for call in CALL.findall(text)]
        calls = [
            {
                "id": f"call-{i}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
            }
            for i, call in enumerate(found)
        ]
    except (ValueError, TypeError, KeyError):
        calls = []
    if not calls:
        return {"role": "assistant", "content": text}
    return {"role": "assistant", "content": text[: text.index("<tool_call>")] or None, "tool_calls": calls}


def not_rerendered(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Indexes of the assistant's messages whose ids change when the reply is parsed and rendered again; empty is right."""
    wrong = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render(tokenizer, messages[:index], tools, ask=True)
        whole = render(tokenizer, messages[: index + 1], tools)
        text = str(tokenizer.decode(whole[len(prompt) :], skip_special_tokens=True))
        again = render(tokenizer, [*messages[:index], parse(text)], tools)
        if whole[: len(prompt)] != prompt or again != whole:
            wrong.append(index)
    return wrong
