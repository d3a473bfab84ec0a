"""The small model's tokenizer: one spelling a token, four tokens a tool call, conversations that continue exactly."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from common import hermes
from inbox import inbox, pretrain
from inbox import tokenizer as small
from transformers import AutoTokenizer

MODEL = Path(inbox.__file__).parent / "model"


@pytest.fixture(scope="module", params=["built", "saved", "committed"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tokenizer as it is made, as AutoTokenizer loads it again, and as it lies beside the weights."""
    if request.param == "committed":
        return AutoTokenizer.from_pretrained(MODEL)
    built = small.build_tokenizer()
    if request.param == "built":
        return built
    folder = tmp_path_factory.mktemp("tokenizer")
    built.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def render(tokenizer: Any, messages: list[dict[str, Any]], *, ask: bool) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tools=inbox.TOOLS, add_generation_prompt=ask, tokenize=False)
    return encode(tokenizer, text)


def test_any_text_survives(tokenizer: Any) -> None:
    for text in ("when is the rent for dana", "Größe 漢字 🙂\t\n  x", '{"a": [1, 22, 333]}', "danaomar 12 99", " ", ""):
        assert tokenizer.decode(encode(tokenizer, text)) == text


def test_words_of_the_task_are_single_tokens(tokenizer: Any) -> None:
    for word in (*inbox.NAMES, *inbox.THINGS, *inbox.DAYS, *map(str, range(inbox.MAILS))):
        assert len(encode(tokenizer, word)) == 1
        assert len(encode(tokenizer, f" {word}")) == 1


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("search", '{"keywords": "dana"}'), ("read", '{"id": 11}'), ("answer", '{"text": "monday"}')],
)
def test_a_tool_call_is_four_tokens_that_a_hermes_parser_reads(tokenizer: Any, name: str, arguments: str) -> None:
    before = [{"role": "user", "content": "when is the rent for dana"}]
    prompt = render(tokenizer, before, ask=True)
    whole = render(tokenizer, [*before, hermes.tool_call(name, arguments)], ask=False)
    assert whole[: len(prompt)] == prompt
    completion = whole[len(prompt) :]
    assert len(completion) == 4
    assert completion[-1] == tokenizer.eos_token_id
    text = tokenizer.decode(completion, skip_special_tokens=True)
    assert text.startswith("<tool_call>\n")
    assert text.endswith("\n</tool_call>")
    parsed = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    assert parsed == {"name": name, "arguments": json.loads(arguments)}


def test_conversations_continue_token_by_token(tokenizer: Any) -> None:
    """Decode a reply, parse it as JSON, render it again: the next prompt starts with the same ids."""
    rng = random.Random(0)
    for task in inbox.make_tasks("train", 100):
        messages, _ = pretrain.transcript(task, rng)
        for end, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = render(tokenizer, messages[:end], ask=True)
            completion = render(tokenizer, messages[: end + 1], ask=False)[len(prompt) :]
            text = tokenizer.decode(completion, skip_special_tokens=True)
            call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
            # As text, as the API carries it, and as a dict, as the engine hands it to the template.
            for arguments in (json.dumps(call["arguments"]), call["arguments"]):
                again = hermes.tool_call(call["name"], arguments)
                after = render(tokenizer, [*messages[:end], again, {"role": "tool", "content": "no mail"}], ask=True)
                assert after[: len(prompt) + len(completion)] == prompt + completion


def test_without_system_prompt_the_tools_are_still_named(tokenizer: Any) -> None:
    text = tokenizer.decode(render(tokenizer, [{"role": "user", "content": "no"}], ask=False))
    assert "tools: search read answer" in text
    plain = tokenizer.apply_chat_template([{"role": "user", "content": "no"}], tokenize=False)
    assert plain == "<|im_start|>user\nno<|im_end|>"


def test_embedding_pairs_are_the_two_spellings() -> None:
    built = small.build_tokenizer()
    for bare, spaced in hermes.spelling_pairs(built, small.words()):
        assert built.decode([spaced]) == " " + built.decode([bare])


def test_the_built_one_is_the_saved_one() -> None:
    built = small.build_tokenizer()
    assert json.loads(built.backend_tokenizer.to_str()) == json.loads((MODEL / "tokenizer.json").read_text())
    assert built.chat_template == (MODEL / "chat_template.jinja").read_text()
