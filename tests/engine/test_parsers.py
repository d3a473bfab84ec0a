"""vLLM itself takes the parsers that are chosen for a model's folder, and they read what the model says.

The templates of many models are in TRL's package, as they were published. For the others there is a call and a thought
in the form that the model's publisher documents.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")
import trl
from benchmarks.models.speakers import tekken_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from slipstream.config import load_config
from slipstream.engines.vllm.parsers import (
    REASONING_PARSERS,
    REASONING_TOKENS,
    TOOL_CALL_PARSERS,
    TOOL_PARSERS,
    TOOL_TOKENS,
    Parsers,
    choose_parsers,
)
from slipstream.engines.vllm.template import run

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


KNOWN = sorted({p for _, p in (*TOOL_PARSERS, *TOOL_CALL_PARSERS)} | set(TOOL_TOKENS))


@pytest.mark.parametrize("name", KNOWN)
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


PUBLISHED = {
    "cohere": (None, None), "cohere2": (None, None), "deepseek_r1_distill:qwen2": ("deepseek_v3", "deepseek_r1"),
    "deepseekv3:deepseek_v3": ("deepseek_v3", "deepseek_r1"), "diffusion_gemma": ("gemma4", None), "gemma:gemma2": (None, None),
    "gemma3": (None, None), "gemma4": ("gemma4", "gemma4"), "gemma4_v2:gemma4": ("gemma4", "gemma4"),
    "gemma4_v3:gemma4": ("gemma4", "gemma4"), "gemma4_v4:gemma4": ("gemma4", "gemma4"), "gemma4_v5:gemma4": ("gemma4", "gemma4"),
    "glm4moe:glm4_moe": ("glm45", "glm45"), "gptoss:gpt_oss": ("openai", "openai_gptoss"), "idefics3": (None, None),
    "lfm2": ("lfm2", None), "lfm2_v2:lfm2": ("lfm2", None), "lfm2_2_5:lfm2": ("lfm2", None), "lfm2_2_5_v2:lfm2": ("lfm2", None),
    "lfm2_2_5_vl:lfm2_vl": ("lfm2", None), "llama3:llama": (None, None), "llama3_1:llama": ("llama3_json", None),
    "llama3_2:llama": ("llama3_json", None), "llava_next": (None, None), "muse_glimmer": ("muse_glimmer", None),
    "nemotron_3_nano:nemotron_h": ("qwen3_xml", "nemotron_v3"), "nemotron_3_super:nemotron_h": ("qwen3_xml", "nemotron_v3"),
    "nemotron_3_ultra:nemotron_h": ("qwen3_xml", "nemotron_v3"), "nemotron_3_5_lightning:nemotron_h": ("qwen3_xml", "nemotron_v3"),
    "phi3": (None, None), "phi3_5:phi3": (None, None), "qwen2_5:qwen2": ("hermes", None), "qwen2_5_vl": (None, None),
    "qwen3": ("hermes", "qwen3"), "qwen3_instruct_2507:qwen3": ("hermes", None), "qwen3_vl": ("hermes", None),
    "qwen3_5_think:qwen3_5": ("qwen3_xml", "qwen3"), "qwen3_5_nothink:qwen3_5": ("qwen3_xml", "qwen3"),
    "qwen3_6:qwen3_5": ("qwen3_xml", "qwen3"), "qwen3_8:qwen3_5": ("qwen3_xml", "qwen3"), "smolvlm": (None, None),
}  # fmt: skip
"""TRL's file, and the model's type where it has another → its parsers."""
JSON = '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}'
XML = "<function=get_weather>\n<parameter=city>Oslo</parameter>\n<parameter=days>2</parameter>\n</function>"
PYTHON = "[get_weather(city='Oslo', days=2)]"
DOCUMENTED = {
    "Kimi-K2:kimi_k2": (
        ("<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
         '{"city": "Oslo", "days": 2}<|tool_call_end|><|tool_calls_section_end|>'), "kimi_k2",
    ),
    "MiniMax-M2:minimax_m2": (
        ('<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
         '<parameter name="days">2</parameter>\n</invoke>\n</minimax:tool_call>'), "minimax_m2",
    ),
    "Seed-OSS:seed_oss": (f"<seed:tool_call>\n{XML}\n</seed:tool_call>", "seed_oss"),
    "DeepSeek-V3.1:deepseek_v3": (
        ('<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Oslo", "days": 2}<｜tool▁call▁end｜>'
         "<｜tool▁calls▁end｜>"), "deepseek_v31",
    ),
    "Mistral-Small-3:mistral": (f'[TOOL_CALLS] [{JSON[:-1]}, "id": "abcdefghi"}}]', "mistral"),
    "Granite-3.3:granite": (f"<|tool_call|>[{JSON}]", "granite"),
    "Granite-4:granitemoehybrid": (f"<tool_call>\n{JSON}\n</tool_call>", "hermes"),
    "Hermes-3:llama": (f"<tool_call>\n{JSON}\n</tool_call>", "hermes"),
    "SmolLM3:smollm3": (f"<tool_call>\n{JSON}\n</tool_call>", "hermes"),
    "Qwen3-Coder:qwen3_moe": (f"<tool_call>\n{XML}\n</tool_call>", "qwen3_xml"),
    "Olmo-3:olmo3": ('<function_calls>\nget_weather(city="Oslo", days=2)\n</function_calls>', "olmo3"),
    "Apertus:apertus": ('<|tools_prefix|>[{"get_weather": {"city": "Oslo", "days": 2}}]<|tools_suffix|>', "apertus"),
    "InternLM2.5:internlm2": (
        '<|action_start|><|plugin|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2}}<|action_end|>', "internlm",
    ),
    "Phi-4-mini:phi4": (f"functools[{JSON}]", "phi4_mini_json"),
    "Llama-4:llama4": (PYTHON, "llama4_pythonic"),
    "FunctionGemma:gemma3_text": (
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:<escape>2<escape>}<end_function_call>", "functiongemma",
    ),
}  # fmt: skip
"""Model and its type → a call as it writes one, and the parser."""
BY_ITSELF = ("openai", "openai_gptoss")
"""vLLM reads Harmony before any parser."""
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    }}}
]  # fmt: skip


def byte_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Each byte is a token, and so is what looks like a special one in ``text``."""
    alphabet = {c: n for n, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=made)
    special = set(re.findall(r"</?[|｜]?[\w:▁]+[|｜]?>|\[/?[A-Z_]+\]", text))
    fast.add_tokens(sorted(special | {"<|python_tag|>", "<|tool_call_start|>", "<|tool_call_end|>"}))
    return fast


def chosen(folder: Path, model_type: str, template: str, tokens: PreTrainedTokenizerFast) -> Parsers:
    tokens.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "chat_template.jinja").write_text(template)
    return choose_parsers(load_config(env={}, flags=[f"engine.model={folder}"]), {"model_type": model_type})


def calls_in(text: str, parser: str, tokens: PreTrainedTokenizerFast) -> list[tuple[str, object]]:
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], tools=TOOLS, model="m")
    read = ToolParserManager.get_tool_parser(parser)(tokens, asked.tools).extract_tool_calls(text, asked)
    return [(c.function.name, json.loads(c.function.arguments)) for c in read.tool_calls]


CALLED = [("get_weather", {"city": "Oslo", "days": 2})]


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_template_s_own_call_and_thought_are_read(tmp_path: Path, model: str) -> None:
    file, _, model_type = model.partition(":")
    template = (Path(trl.__file__).parent / "chat_templates" / f"{file}.jinja").read_text()
    tokens = byte_tokenizer(template)
    found = chosen(tmp_path / "m", model_type or file, template, tokens)
    assert (found.tool, found.reasoning) == PUBLISHED[model]
    facts = run(template)
    assert facts is not None
    if found.tool not in (None, *BY_ITSELF) and facts.call:
        assert calls_in(facts.call, str(found.tool), tokens) == CALLED
    if found.reasoning not in (None, *BY_ITSELF):
        quiet = {"chat_template_kwargs": {"enable_thinking": False}} if found.quiet else {}
        parser = ReasoningParserManager.get_reasoning_parser(str(found.reasoning))(tokens, **quiet)
        asked = ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], model="m")
        begin, end = (
            ("<|channel>thought\n", "<channel|>") if found.reasoning == "gemma4" else ("<think>\n", "\n</think>")
        )
        thought, said = parser.extract_reasoning(f"{'' if facts.opened else begin}hm{end}yes", asked)
        assert ((thought or "").strip(), (said or "").strip()) == ("hm", "yes") or found.quiet
        if found.quiet or "<think>" not in template:
            assert parser.extract_reasoning("yes", asked) == (None, "yes")
    assert found.quiet is (file == "qwen3_5_nothink")
    assert found.reasoning is not None or not facts.opened


@pytest.mark.parametrize("model", DOCUMENTED)
def test_a_documented_call_is_read(tmp_path: Path, model: str) -> None:
    call, parser = DOCUMENTED[model]
    literal = json.dumps(call, ensure_ascii=False)
    template = f"{{% if tools %}}{{{{ tools }}}}{{% endif %}}{{% for m in messages %}}{{% if m.tool_calls %}}{{{{ {literal} }}}}{{% endif %}}{{% endfor %}}"
    tokens = byte_tokenizer(call)
    name, _, model_type = model.partition(":")
    found = chosen(tmp_path / name, model_type, template, tokens)
    assert found.tool == parser
    assert calls_in(call, parser, tokens) == CALLED


@pytest.mark.parametrize("template", [None, "{{ tools }}[TOOL_CALLS]{{ m }}[THINK]{{ t }}[/THINK]"])
def test_a_thought_in_mistral_s_own_tokens_is_read(tmp_path: Path, template: str | None) -> None:
    """Both with Mistral's own tokenizer, which needs no template, and with one of transformers' form."""
    folder = tmp_path / "m"
    if template:
        tokens: Any = byte_tokenizer(template)
        found = chosen(folder, "mistral3", template, tokens)
    else:
        tekken_of(folder)
        (folder / "config.json").write_text('{"model_type": "mistral"}')
        tokens = importlib.import_module("vllm.tokenizers.mistral").MistralTokenizer.from_pretrained(str(folder))
        found = choose_parsers(load_config(env={}, flags=[f"engine.model={folder}"]), {"model_type": "mistral"})
    assert (found.tool, found.reasoning, found.quiet) == ("mistral", "mistral", False)
    parser = ReasoningParserManager.get_reasoning_parser("mistral")(tokens)
    asked = ChatCompletionRequest(messages=[{"role": "user", "content": "hi"}], model="m")
    assert parser.extract_reasoning("[THINK]hm[/THINK]yes", asked) == ("hm", "yes")
    assert parser.extract_reasoning("yes", asked) == (None, "yes")
