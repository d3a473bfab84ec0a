"""vLLM itself takes the parsers that are chosen for a model's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("vllm")
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from slipstream.config import load_config
from slipstream.operate.parsers import REASONING_PARSERS, REASONING_TOKENS, TOOL_PARSERS, TOOL_TOKENS, choose_parsers

PLAIN = {"<unk>": 0, "a": 1, "b": 2}


def tokenizer(*tokens: str) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(PLAIN, unk_token="<unk>")))
    made.add_tokens(list(tokens), special_tokens=True)
    return made


def starts(kind: Callable[[object], object], *tokens: str) -> bool:
    """Whether vLLM takes the parser with a tokenizer of these tokens."""
    try:
        kind(tokenizer(*tokens))
    except (RuntimeError, KeyError, ValueError):
        return False
    return True


def tool(name: str, *tokens: str) -> bool:
    return starts(ToolParserManager.get_tool_parser(name), *tokens)


def reasoning(name: str, *tokens: str) -> bool:
    return starts(ReasoningParserManager.get_reasoning_parser(name), *tokens)


@pytest.mark.parametrize("name", sorted({p for _, p in TOOL_PARSERS} | set(TOOL_TOKENS)))
def test_the_tokens_that_a_tool_parser_needs(name: str) -> None:
    assert tool(name) is (name not in TOOL_TOKENS)
    assert tool(name, *TOOL_TOKENS.get(name, ()))


@pytest.mark.parametrize("name", sorted({p for _, p in REASONING_PARSERS} | set(REASONING_TOKENS)))
def test_the_tokens_that_a_reasoning_parser_needs(name: str) -> None:
    assert reasoning(name) is (name not in REASONING_TOKENS)
    assert reasoning(name, *REASONING_TOKENS.get(name, ()))


@pytest.mark.parametrize("model_type", sorted({key for key, _ in TOOL_PARSERS}))
@pytest.mark.parametrize("template", ["{{ tools }}", "{{ tools }}<tool_call>", "{{ messages }}"])
def test_any_family_with_a_plain_tokenizer(tmp_path: Path, model_type: str, template: str) -> None:
    tokenizer().save_pretrained(tmp_path)
    described: dict[str, object] = {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "chat_template.jinja").write_text(template)
    found = choose_parsers(load_config(env={}, flags=[f"engine.model={tmp_path}"]), described)
    assert found.tool is None or tool(found.tool)
    assert found.reasoning is None or reasoning(found.reasoning)
