"""vLLM itself takes the parsers that are chosen for a model's folder."""

from __future__ import annotations

import json
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


def starts(manager: object, name: str, tokens: tuple[str, ...]) -> bool:
    try:
        kind = (
            ToolParserManager.get_tool_parser(name)
            if manager is ToolParserManager
            else ReasoningParserManager.get_reasoning_parser(name)
        )
        kind(tokenizer(*tokens))
    except (RuntimeError, KeyError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", sorted({p for _, p in TOOL_PARSERS} | set(TOOL_TOKENS)))
def test_the_tokens_that_a_tool_parser_needs(name: str) -> None:
    assert starts(ToolParserManager, name, ()) is (name not in TOOL_TOKENS)
    assert starts(ToolParserManager, name, TOOL_TOKENS.get(name, ()))


@pytest.mark.parametrize("name", sorted({p for _, p in REASONING_PARSERS} | set(REASONING_TOKENS)))
def test_the_tokens_that_a_reasoning_parser_needs(name: str) -> None:
    assert starts(ReasoningParserManager, name, ()) is (name not in REASONING_TOKENS)
    assert starts(ReasoningParserManager, name, REASONING_TOKENS.get(name, ()))


@pytest.mark.parametrize("model_type", sorted({key for key, _ in TOOL_PARSERS}))
@pytest.mark.parametrize("template", ["{{ tools }}", "{{ tools }}<tool_call>", "{{ messages }}"])
def test_any_family_with_a_plain_tokenizer(tmp_path: Path, model_type: str, template: str) -> None:
    tokenizer().save_pretrained(tmp_path)
    described = {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "chat_template.jinja").write_text(template)
    found = choose_parsers(load_config(env={}, flags=[f"engine.model={tmp_path}"]), described)
    assert found.tool is None or starts(ToolParserManager, found.tool, ())
    assert found.reasoning is None or starts(ReasoningParserManager, found.reasoning, ())
