"""Which parsers are chosen: by what the tokenizer and the template can do, then by family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support import MODEL

from slipstream.config import Config, load_config
from slipstream.engines.vllm.command import engine_command
from slipstream.engines.vllm.parsers import choose_parsers, without_template
from slipstream.errors import StartError
from slipstream.operate.doctor.doctor import check_configured
from slipstream.operate.doctor.ports import Running
from slipstream.shared.hub import model_config

HERMES = "{% if tools %}{{ tools }}{% endif %}<tool_call>\n{{ m.tool_calls }}\n</tool_call>"
CODER = "{% if tools %}{{ tools }}{% endif %}<tool_call>\n<function={{ name }}></tool_call>"
LLAMA3 = "{%- if tools is not none %}{{ '<|python_tag|>' }}{% endif %}"
NO_TOOLS = "{% for m in messages %}<|{{ m.role }}|> {{ m.content }}{% endfor %}"


def config(*flags: str) -> Config:
    return load_config(env={}, flags=flags)


def folder(path: Path, model_type: str, template: str | None, *tokens: str) -> Path:
    """A model's folder as far as parsers look at it. ``template`` None: no tokenizer is there at all."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
        added = [{"id": 9 + n, "content": token, "special": True} for n, token in enumerate(tokens)]
        tree = {"added_tokens": added, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
        (path / "tokenizer.json").write_text(json.dumps(tree))
    return path


def chosen(path: Path, *flags: str) -> tuple[str | None, str | None]:
    found = choose_parsers(config(f"engine.model={path}", *flags), model_config(str(path)))
    return found.tool, found.reasoning


@pytest.mark.parametrize(
    ("model", "tool", "reasoning"),
    [
        ("Qwen/Qwen3-4B", "hermes", "qwen3"),
        ("Qwen/Qwen2.5-7B-Instruct", "hermes", None),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_xml", None),
        ("Qwen/Qwen3-4B-Instruct-2507", "hermes", None),
        ("Qwen/Qwen3.5-4B", "qwen3_xml", "qwen3"),
        ("google/gemma-3-4b-it", None, None),
        ("google/gemma-4-E2B-it", "gemma4", "gemma4"),
        ("deepseek-ai/DeepSeek-V3", "deepseek_v3", None),
        ("allenai/Olmo-3-7B-Think", "olmo3", "olmo3"),
        ("HuggingFaceTB/SmolLM3-3B", "hermes", None),
        ("LiquidAI/LFM2-1.2B", "lfm2", None),
        ("NousResearch/Hermes-3", "hermes", None),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3_json", None),
        ("meta-llama/Llama-4-Scout", "llama4_pythonic", None),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral", None),
        ("openai/gpt-oss-20b", "openai", None),
        ("zai-org/GLM-4.5-Air", "glm45", "glm45"),
        ("ibm-granite/granite-4.0-micro", "hermes", "granite"),
        ("some/unknown", None, None),
    ],
)
def test_parsers_by_name(model: str, tool: str | None, reasoning: str | None) -> None:
    found = choose_parsers(config(f"engine.model={model}"), {})
    assert found.tool == tool
    assert found.reasoning == reasoning or model.startswith("openai/")
    assert "guessed from the name" in found.says[-1]


@pytest.mark.parametrize(
    ("model_type", "template", "tokens", "tool"),
    [
        ("llama", LLAMA3, ("<|python_tag|>",), "llama3_json"),
        ("llama", LLAMA3, (), None),
        ("llama", NO_TOOLS, ("<|python_tag|>",), None),
        ("llama", NO_TOOLS, (), None),
        ("llama", HERMES, (), "hermes"),
        ("llama", HERMES, ("<|python_tag|>",), "hermes"),
        ("llama", "", (), None),
        ("mistral", "{{ tools }}", (), None),
        ("mistral", "{{ tools }}", ("[TOOL_CALLS]",), "mistral"),
        ("deepseek_v3", "{{ tools }}", ("<｜tool▁calls▁begin｜>",), None),
        ("deepseek_v3", "{{ tools }}", ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"), "deepseek_v3"),
        ("qwen3", HERMES, (), "hermes"),
        ("qwen3", CODER, (), "qwen3_xml"),
        ("glm4_moe", "{{ tools }}<tool_call>{{ name }}<arg_key>", (), "glm45"),
        ("granite", HERMES, (), "hermes"),
        ("mystery", HERMES, (), "hermes"),
        ("mystery", "{{ tools }}", (), None),
    ],
)
def test_by_tokenizer_and_template(
    tmp_path: Path, model_type: str, template: str, tokens: tuple[str, ...], tool: str | None
) -> None:
    path = folder(tmp_path / "m", model_type, template, *tokens)
    assert chosen(path)[0] == tool
    command = engine_command(config(f"engine.model={path}"), gpu=False)
    assert ("--tool-call-parser" in command.argv) is (tool is not None)
    if tool is None:
        (said,) = (line for line in command.says if line.startswith("tool parser: none (its "))
        assert "set engine.tool_parser). A call with tools gets status 400" in said


def test_tokens_that_json_escapes(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "deepseek_v3", "{{ tools }}", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    assert "\\u" in (path / "tokenizer.json").read_text()
    assert chosen(path)[0] == "deepseek_v3"


def tekken(path: Path, version: str, *special: str) -> None:
    listed = [{"rank": n, "token_str": token, "is_control": True} for n, token in enumerate(special)]
    (path / "tekken.json").write_text(json.dumps({"config": {"version": version}, "special_tokens": listed}))


def said(path: Path, *flags: str) -> tuple[dict[str, str], str]:
    """(what vLLM is told of tokenizer and parsers, what `slipstream up` says)."""
    command = engine_command(config(f"engine.model={path}", *flags), gpu=False)
    told = zip(command.argv, command.argv[1:], strict=False)
    wanted = ("--tokenizer-mode", "--tool-call-parser", "--reasoning-parser")
    return {a: b for a, b in told if a in wanted} | {n: v for n, v in command.env.items() if "FREE" in n}, "\n".join(
        command.says
    )


def test_messages_without_a_template_are_rendered_by_mistral_s_own_tokenizer(tmp_path: Path) -> None:
    """By itself vLLM looks for it only beside weights in Mistral's own form, and else refuses each call for want of a
    template.
    """
    path = folder(tmp_path / "m", "ministral3", None)
    assert "--tokenizer-mode" not in said(path)[0]
    tekken(path, "v13")
    argv, says = said(path)
    free = {"SLIPSTREAM_ENGINE_FREE_REPLIES": "1"}
    assert argv == {"--tokenizer-mode": "mistral", "--tool-call-parser": "mistral", **free}
    assert "Mistral's own (tekken.json)" in says and "puts no grammar on a reply of which the call asks no form" in says
    argv, says = said(path, "engine.tool_parser=none")
    assert argv == {"--tokenizer-mode": "mistral"} and "grammar" not in says
    (path / "chat_template.jinja").write_text("{{ tools }}")
    assert "--tokenizer-mode" not in said(path)[0], "vLLM takes the template"


def test_beside_weights_in_mistral_s_own_form_its_tokenizer_comes_before_the_template(tmp_path: Path) -> None:
    """As vLLM does it by itself. From version 11 on that means a grammar."""
    path = folder(tmp_path / "m", "mistral", NO_TOOLS, "[TOOL_CALLS]")
    (path / "consolidated.safetensors").touch()
    assert said(path)[0] == {}, "it has another tokenizer"
    tekken(path, "v3")
    argv, says = said(path)
    assert argv == {"--tokenizer-mode": "mistral", "--tool-call-parser": "mistral"}
    assert "a chat template is not used" in says and "grammar" not in says
    tekken(path, "v11")
    assert "puts no grammar" in said(path)[1]
    assert said(path, 'engine.args=["--tokenizer-mode=hf"]')[0] == {}


def test_who_wants_the_grammar_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "m", "mistral", None)
    tekken(path, "v13")
    monkeypatch.setenv("SLIPSTREAM_ENGINE_FREE_REPLIES", "0")
    argv, says = said(path)
    assert argv["SLIPSTREAM_ENGINE_FREE_REPLIES"] == "0"
    assert "vLLM puts a grammar on each chat completion" in says


def test_thoughts_in_tokens_of_mistral_s_own(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "mistral", None)
    tekken(path, "v13", "[TOOL_CALLS]", "[THINK]", "[/THINK]")
    assert said(path)[0]["--reasoning-parser"] == "mistral"
    assert "reasoning parser: none" in said(path, "engine.reasoning_parser=none")[1]
    old = folder(tmp_path / "Magistral-Small-2506", "mistral", None)  # it writes <think> in letters
    tekken(old, "v11", "[TOOL_CALLS]")
    assert said(old)[0]["--reasoning-parser"] == "mistral"
    thinks = "{{ tools }}[TOOL_CALLS][THINK]"
    tokens = ("[TOOL_CALLS]", "[THINK]", "[/THINK]")
    assert chosen(folder(tmp_path / "template", "mistral3", thinks, *tokens)) == ("mistral", "mistral")
    assert chosen(folder(tmp_path / "letters", "mistral3", thinks, "[TOOL_CALLS]")) == ("mistral", None)


def test_reasoning_by_what_the_template_says(tmp_path: Path) -> None:
    assert chosen(folder(tmp_path / "llama" / "kimi", "qwen3", None)) == ("hermes", None)
    assert chosen(folder(tmp_path / "thinks", "qwen3", HERMES + "<think>")) == ("hermes", "qwen3")
    assert chosen(folder(tmp_path / "r1", "deepseek_r1", "<think>"))[1] is None
    assert chosen(folder(tmp_path / "r2", "deepseek_r1", "<think>", "<think>", "</think>"))[1] == "deepseek_r1"


def test_as_configured(tmp_path: Path) -> None:
    path = folder(tmp_path / "qwen", "qwen3", None)
    assert chosen(path, "engine.tool_parser=pythonic", "engine.reasoning_parser=glm45") == ("pythonic", "glm45")
    assert chosen(path, "engine.tool_parser=none", "engine.reasoning_parser=none") == (None, None)
    assert chosen(MODEL) == ("hermes", None)


def test_one_that_vllm_would_refuse_is_refused_before_it_starts(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "llama", NO_TOOLS)
    with pytest.raises(StartError, match=r'<\|python_tag\|>.*set engine\.tool_parser = "none"'):
        chosen(path, "engine.tool_parser=llama3_json")


def test_the_template_for_tools_is_taken_of_several(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", "mystery", None)
    several = [{"name": "default", "template": NO_TOOLS}, {"name": "tool_use", "template": HERMES}]
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert chosen(path)[0] == "hermes"


def test_a_template_that_cannot_be_run_is_read(tmp_path: Path) -> None:
    assert chosen(folder(tmp_path / "m", "mystery", "{% unknown %}{{ tools }}<tool_call>"))[0] == "hermes"


def test_a_model_that_thinks_only_when_asked(tmp_path: Path) -> None:
    """Its parser is told so: else it takes each answer for a thought, and the agent gets no content."""
    think = "{% if enable_thinking %}<think>{% else %}<think>\n\n</think>{% endif %}"
    path = folder(tmp_path / "m", "qwen3_5", CODER + "{% if add_generation_prompt %}" + think + "{% endif %}")
    command = engine_command(config(f"engine.model={path}"), gpu=False)
    at = command.argv.index("--default-chat-template-kwargs")
    assert json.loads(command.argv[at + 1]) == {"enable_thinking": False}
    assert "--default-chat-template-kwargs" not in engine_command(config(f"engine.model={MODEL}"), gpu=False).argv


def test_a_model_without_a_chat_template_is_named_before_the_engine_starts(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", "gemma3_text", "")
    said = choose_parsers(config(f"engine.model={base}"), model_config(str(base))).says
    lacking = without_template(config(f"engine.model={base}"))
    assert lacking is not None and said[0] == f"{lacking.what}: {lacking.fix}"
    assert "with 400" in said[0] and 'engine.args = ["--chat-template", "FILE"]' in said[0]
    (finding,) = [
        f for f in check_configured(config(f"engine.model={base}"), Running()) if "no chat template" in f.what
    ]
    assert finding.level == "fail" and "--chat-template" in str(finding.fix)
    assert without_template(config(f"engine.model={base}", 'engine.args=["--chat-template", "mine.jinja"]')) is None
    for name, kind, template in (
        ("chat", "gemma3_text", NO_TOOLS),
        ("own", "deepseek_v32", ""),
        ("unknown", "llama", None),
    ):
        assert without_template(config(f"engine.model={folder(tmp_path / name, kind, template)}")) is None
    assert without_template(config("engine.model=org/not-here")) is None
