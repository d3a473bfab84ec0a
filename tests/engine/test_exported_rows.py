"""An ``sft`` row, rendered by a model's real chat template, is what vLLM read and the model said: by vLLM's own code."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import trl
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import (
    _consolidate_system_messages,
    _convert_developer_to_system,
    _detect_content_format,
    _detect_developer_role_support,
)

from slipstream.contract import EpisodeDetail
from slipstream.shared.chat_template import for_template, takes_parts, template_of
from slipstream_export.rows import readable, sft_row
from slipstream_proxy.dialects.sampling import sampling_of
from slipstream_trainer.batch.dataset import rendered, samples_of

TEMPLATES = sorted(p for p in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
FAMILIES = (
    "qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_6", "qwen3_vl", "llama3_1", "llama3_2", "gptoss", "gemma4", "gemma4_v5",
    "glm4moe", "nemotron_3_nano", "lfm2_v2", "muse_glimmer",
)  # fmt: skip
TOOL: Any = {
    "function": {"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}, "name": "look", "description": "look up"},
    "type": "function",
}  # fmt: skip


def called(ident: str, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    calls = [{"id": ident, "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


PARTS = [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}]
ASKED: Any = {
    "parts, thoughts and an object": [
        {"role": "user", "content": PARTS},
        called("c1aaaaaaa", '{"q": 1, "deep": {"a": ["b", "\\u00e9"]}}', reasoning="I look it up."),
        {"role": "tool", "tool_call_id": "c1aaaaaaa", "content": "found"},
    ],
    "thoughts by their other name": [
        {"role": "user", "content": "look"},
        called("c1aaaaaaa", "{}", reasoning_content="I look it up.", refusal=None),
        {"role": "tool", "tool_call_id": "c1aaaaaaa", "content": [{"type": "text", "text": "fo"}, {"type": "text", "text": "und"}]},
    ],
    "several turns": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi", "reasoning": "A greeting.", "tool_calls": []},
        {"role": "user", "content": "look"},
        called("c1aaaaaaa", "", reasoning="Now."),
        {"role": "tool", "tool_call_id": "c1aaaaaaa", "content": "found"},
    ],
    "what a developer says, late": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "developer", "content": PARTS},
        {"role": "user", "content": "look"},
    ],
    "a system and a developer": [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": "look"},
    ],
    "a developer alone": [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "look"}],
    "a line for Claude Code's provider": [
        {"role": "system", "content": "x-anthropic-billing-header: cch=1;\nBe kind."},
        {"role": "user", "content": "look"},
    ],
    "such a line in a part of its own": [
        {"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: cch=1;"}, *PARTS]},
        {"role": "user", "content": "look"},
    ],
}  # fmt: skip
SAID: Any = {
    "text": {"role": "assistant", "content": "It is there."},
    "thoughts": {"role": "assistant", "content": "It is there.", "reasoning": "Found."},
    "a call": called("c2aaaaaaa", '{"q": "more"}', reasoning="Once more."),
}


@pytest.fixture(scope="module")
def tokenizer_of(tmp_path_factory):
    """Family → (tokenizer, the model's folder): a byte is a token, the template is the family's."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    raw.pre_tokenizer, raw.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )

    def make(name: str) -> tuple[Any, Path]:
        made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
        made.chat_template = (TEMPLATES[0].parent / f"{name}.jinja").read_text()
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text("{}")
        made.save_pretrained(folder)
        return made, folder

    return make


def ids_of(tokenizer: Any, conversation: list[Any], tools: Any, *, ask: bool, **given: Any) -> list[int]:
    text = tokenizer.apply_chat_template(conversation, tools=tools, add_generation_prompt=ask, tokenize=False, **given)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def as_vllm(tokenizer: Any, messages: list[Any], *, ask: bool) -> list[int]:
    """What vLLM's own reading of a request gives the template."""
    asked = ChatCompletionRequest.model_validate({"messages": copy.deepcopy(messages), "model": "m", "tools": [TOOL]})
    kind = _detect_content_format(tokenizer.chat_template, default="string")
    model: Any = SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)
    conversation, *_ = parse_chat_messages(asked.messages, model, kind)
    if any(m["role"] == "developer" for m in conversation) and not _detect_developer_role_support(
        tokenizer.chat_template
    ):
        conversation = _consolidate_system_messages(_convert_developer_to_system(conversation))
    if "reasoning" not in tokenizer.chat_template and "thinking" in tokenizer.chat_template:
        for message in conversation:  # gpt-oss' own encoding does what its template does with this name
            if "reasoning" in message:
                message["thinking"] = message["reasoning"]
    return ids_of(tokenizer, conversation, [t.model_dump() for t in asked.tools or []], ask=ask)


def row_of(asked: list[Any], said: Any, folder: Path, dialect: str = "chat", sampling: Any = None) -> dict[str, Any]:
    call = {
        "id": "e-0", "episode": "e", "number": 0, "at": 0.0, "seconds": 1.0, "dialect": dialect, "model": "m", "adapter": None, "status": 200,
        "outcome": "ok", "trainable": True, "untrainable_reason": None, "messages": asked, "reply": [said], "tools": [TOOL], "sampling": sampling or {},
    }  # fmt: skip
    episode = {
        "id": "e", "key": "-", "task": "t", "split": "train", "model": "m", "adapter": None, "state": "done", "started": 0.0, "ended": 1.0,
        "calls": 1, "reward": 1.0, "call_list": [call],
    }  # fmt: skip
    found = sft_row(EpisodeDetail.model_validate(episode))
    assert found is not None
    row: dict[str, Any] = json.loads(json.dumps(readable(found, template_of(str(folder)))))
    return row


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_what_the_engine_read_and_said(tokenizer_of, family: str, asked: str, said: str) -> None:
    tokenizer, folder = tokenizer_of(family)
    prompt = as_vllm(tokenizer, ASKED[asked], ask=True)
    whole = as_vllm(tokenizer, [*ASKED[asked], SAID[said]], ask=False)
    row = row_of(ASKED[asked], SAID[said], folder)
    tools = json.loads(row["tools"])
    assert ids_of(tokenizer, row["messages"][:-1], tools, ask=True) == prompt
    assert ids_of(tokenizer, row["messages"], tools, ask=False) == whole
    if (
        whole[: len(prompt)] == prompt
    ):  # else the template writes no reply after its own prompt, and the trainer says so
        read, replied = rendered(tokenizer, ASKED[asked], SAID[said], [TOOL], set())
        assert (read, read + replied) == (prompt, whole)
        last = samples_of([row], tokenizer, sft=True)[-1]
        assert last.trainable and [*last.prompt_P, *last.completion_C] == whole


SWITCHES: Any = [
    {"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": True}},
    {"reasoning_effort": "none"}, {"reasoning_effort": "low"}, {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
]  # fmt: skip


@pytest.mark.parametrize("family", ["qwen3", "qwen3_6", "gptoss", "gemma4", "glm4moe", "nemotron_3_nano"])
def test_a_row_sets_in_the_template_what_the_request_set(tokenizer_of, family: str) -> None:
    tokenizer, folder = tokenizer_of(family)
    found = set()
    for asked in SWITCHES:
        request = ChatCompletionRequest.model_validate({"messages": ASKED["several turns"], "model": "m", **asked})
        said = request.build_chat_params(None, "auto").chat_template_kwargs
        given = {n: v for n, v in said.items() if n in ("enable_thinking", "reasoning_effort") and v is not None}
        row = row_of(ASKED["several turns"], SAID["thoughts"], folder, sampling=sampling_of(asked))
        assert row["chat_template_kwargs"] == given
        prompt = ids_of(tokenizer, row["messages"][:-1], None, ask=True, **given)
        found.add(tuple(prompt))
        whole = ids_of(tokenizer, row["messages"], None, ask=False, **given)
        if whole[: len(prompt)] == prompt:
            read, replied = rendered(tokenizer, ASKED["several turns"], SAID["thoughts"], None, set(), given)
            assert (read, read + replied) == (prompt, whole)
            last = samples_of([{**row, "tools": None}], tokenizer, sft=True)[-1]
            assert [*last.prompt_P, *last.completion_C] == whole
    assert len(found) > 1, "it changes what is read"


@pytest.mark.parametrize("family", ["qwen2_5", "gemma4"])
@pytest.mark.parametrize("dialect", ["messages", "responses"])
def test_a_row_of_another_format_is_of_the_chat_that_the_engine_was_asked(tokenizer_of, family, dialect) -> None:
    _, folder = tokenizer_of(family)
    for asked in ASKED.values():
        for said in SAID.values():
            assert row_of(asked, said, folder, dialect) == row_of(asked, said, folder)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.stem)
def test_which_templates_take_parts_is_what_vllm_says(path: Path) -> None:
    if "{%- generation" in path.read_text() or "{% generation" in path.read_text():
        pytest.skip("for training alone")
    assert takes_parts(path.read_text()) == (_detect_content_format(path.read_text(), default="string") == "openai")


def test_what_a_model_wrote_as_arguments_stays_in_its_reply() -> None:
    broken = called("c", "{no json")
    read, said = for_template([broken, broken], None, said=True)
    assert [m["tool_calls"][0]["function"]["arguments"] for m in (read, said)] == [{}, "{no json"]
