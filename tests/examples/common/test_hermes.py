"""The common tokenizer: one spelling a token, few tokens a call, conversations that continue exactly."""

from __future__ import annotations

import json

import pytest
from common import hermes
from transformers import AutoTokenizer

WORDS = ["move", "left", "up", "order", "is", "late", "tools", "7", "12"]
SEARCH = hermes.opening("find", "words")
READ = hermes.opening("read", "id", text=False)
LEFT = hermes.fixed_call("move", direction="left")
PIECES = [SEARCH, READ, LEFT, hermes.CLOSE_TEXT, hermes.CLOSE_NUMBER]
TOOLS = [{"type": "function", "function": {"name": "find"}}, {"type": "function", "function": {"name": "read"}}]


@pytest.fixture(scope="module", params=["built", "saved"])
def tokenizer(request, tmp_path_factory):
    built = hermes.build_tokenizer(WORDS, PIECES)
    if request.param == "built":
        return built
    folder = tmp_path_factory.mktemp("tokenizer")
    built.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_any_text_survives(tokenizer):
    for text in ("order 12 is late", "Größe 漢字 🙂\t\n  x", '{"a": [1, 22]}', " ", "", LEFT + "move"):
        assert tokenizer.decode(hermes.encode(tokenizer, text)) == text


@pytest.mark.parametrize(
    ("name", "arguments", "tokens"),
    [("find", {"words": "late"}, 4), ("read", {"id": 12}, 4), ("move", {"direction": "left"}, 2)],
)
def test_a_call_is_few_tokens(tokenizer, name, arguments, tokens):
    asked = [{"role": "user", "content": "order"}]
    prompt = hermes.render(tokenizer, asked, TOOLS, ask=True)
    whole = hermes.render(tokenizer, [*asked, hermes.tool_call(name, arguments)], TOOLS)
    assert whole[: len(prompt)] == prompt
    assert len(whole) - len(prompt) == tokens
    message = hermes.parse(tokenizer.decode(whole[len(prompt) :], skip_special_tokens=True))
    function = message["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == (name, arguments)


def test_conversations_continue_token_by_token(tokenizer):
    messages = [
        {"role": "system", "content": "order"},
        {"role": "user", "content": "order 12 is late"},
        hermes.tool_call("find", {"words": "late"}),
        {"role": "tool", "content": "order 7 is late"},
        hermes.tool_call("move", {"direction": "left"}),
        {"role": "tool", "content": "up"},
        {"role": "assistant", "content": "order 7"},
    ]
    assert hermes.not_rerendered(tokenizer, messages, TOOLS) == []
    # a call that the model would have spelled otherwise is found
    messages[2] = hermes.tool_call("find", '{"words":"late"}')
    assert hermes.not_rerendered(tokenizer, messages, TOOLS) == [2]


def test_a_reply_can_have_several_calls_and_words_before_them():
    one = '<tool_call>\n{"name": "find", "arguments": {"words": "late"}}\n</tool_call>'
    message = hermes.parse("so: " + one + LEFT)
    assert message["content"] == "so: "
    assert [c["function"]["name"] for c in message["tool_calls"]] == ["find", "move"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "read"}\n</tool_call>',
        "<tool_call>\n{no}\n</tool_call>",
        "<tool_call>[1]</tool_call>",
        "late",
        "",
    ],
)
def test_what_is_no_call_is_text(text):
    assert hermes.parse(text) == {"role": "assistant", "content": text}


def test_spelling_pairs_are_the_two_spellings():
    built = hermes.build_tokenizer(WORDS, PIECES)
    for bare, spaced in hermes.spelling_pairs(built, WORDS):
        assert built.decode([spaced]) == " " + built.decode([bare])
