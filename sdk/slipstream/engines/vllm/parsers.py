"""Which of vLLM's parsers read tool calls and thoughts out of a model's text: by what its tokenizer and its chat
template can do, then by its family.

A parser that does not fit is worse than none: vLLM refuses to start with it, or finds no call in what the model says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.config import Config
from slipstream.engines.findings import Finding, fail
from slipstream.engines.vllm.template import TemplateFacts, run
from slipstream.errors import StartError
from slipstream.shared.chat_template import template_in
from slipstream.shared.hub import model_config, model_folder

TOOL_CALL_PARSERS = (
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<start_function_call>", "functiongemma"),
    ("<|tool_call>", "gemma4"),
    ("<|channel|>", "openai"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<seed:tool_call>", "seed_oss"),
    ("<atem:invoke", "muse_glimmer"),
    ("<|tools_prefix|>", "apertus"),
    ("<|START_ACTION|>", "cohere_command3"),
    ("<|action_start|>", "internlm"),
    ("<｜DSML｜", "deepseek_v32"),
    ("<｜tool▁sep｜>get_weather\n```json", "deepseek_v3"),
    ("\\n' + '```json'", "deepseek_v3"),
    ("<｜tool▁call▁begin｜>", "deepseek_v31"),
    ("<function_calls>", "olmo3"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|/tool_call|>", "phi4_mini_json"),
    ("<|tool_call|>", "granite"),
    ("<function=", "qwen3_xml"),
    ("<arg_key>", "glm45"),
    ("<tool_call>", "hermes"),
    ("functools[", "phi4_mini_json"),
    ('"get_weather", "parameters"', "llama3_json"),
)
"""What stands in a call → what reads it. The first one counts."""
OWN_FORMS = ("ernie4_5", "hunyuan", "step3", "xlam", "jamba", "longcat", "mimo", "minicpm", "gigachat")
"""Families with forms of their own around ``<tool_call>``, which vLLM has a reader for."""
TOOL_PARSERS = (
    *(("qwen3_coder", "qwen3_xml"), ("qwen3-coder", "qwen3_xml"), ("qwen3_5", "qwen3_xml"), ("qwen3.", "qwen3_xml")),
    *(
        ("qwen", "hermes"),
        ("hermes", "hermes"),
        ("smollm3", "hermes"),
        ("granite-4", "hermes"),
        ("granitemoe", "hermes"),
    ),
    *(("llama-4", "llama4_pythonic"), ("llama4", "llama4_pythonic"), ("llama", "llama3_json")),
    *(("mistral", "mistral"), ("mixtral", "mistral"), ("devstral", "mistral")),
    *(("deepseek-v3.2", "deepseek_v32"), ("deepseek-v3.1", "deepseek_v31")),
    *(("deepseek-v3", "deepseek_v3"), ("deepseek_v3", "deepseek_v3"), ("granite", "granite")),
    *(("gpt_oss", "openai"), ("gpt-oss", "openai"), ("glm-4.5", "glm45"), ("glm-4.6", "glm45"), ("glm4_moe", "glm45")),
    *(("kimi-k2", "kimi_k2"), ("kimi_k2", "kimi_k2"), ("minimax", "minimax_m2"), ("lfm2", "lfm2")),
    *(("gemma-4", "gemma4"), ("gemma4", "gemma4"), ("functiongemma", "functiongemma")),
    *(("olmo3", "olmo3"), ("olmo-3", "olmo3"), ("phi4", "phi4_mini_json"), ("phi-4-mini", "phi4_mini_json")),
    *(("ernie4_5", "ernie45"), ("hunyuan", "hunyuan_a13b"), ("step3", "step3"), ("xlam", "xlam"), ("jamba", "jamba")),
    *(
        ("longcat", "longcat"),
        ("mimo", "mimo"),
        ("minicpm5", "minicpm5"),
        ("gigachat", "gigachat3"),
    ),
    *(("seed_oss", "seed_oss"), ("seed-oss", "seed_oss"), ("apertus", "apertus"), ("internlm", "internlm")),
)
REASONING_PARSERS = (
    *(("gpt_oss", "openai_gptoss"), ("gpt-oss", "openai_gptoss"), ("gemma4", "gemma4"), ("gemma-4", "gemma4")),
    *(
        ("qwen3", "qwen3"),
        ("deepseek_r1", "deepseek_r1"),
        ("deepseek-r1", "deepseek_r1"),
        ("deepseek-v3.1", "deepseek_v3"),
    ),
    *(("glm4_moe", "glm45"), ("glm-4.5", "glm45"), ("glm-4.6", "glm45"), ("granite", "granite"), ("kimi", "kimi_k2")),
    *(("minimax", "minimax_m2"), ("olmo3", "olmo3"), ("olmo-3", "olmo3"), ("nemotron_h", "nemotron_v3")),
    *(("seed_oss", "seed_oss"), ("seed-oss", "seed_oss"), ("ernie4_5", "ernie45"), ("hunyuan", "hunyuan_a13b")),
    *(("step3", "step3"), ("mimo", "mimo")),
)
"""Part of a model's type or name → parser."""
TOOL_TOKENS = {
    "llama3_json": ("<|python_tag|>",),
    "llama4_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "jamba": ("<tool_calls>", "</tool_calls>"),
}
REASONING_TOKENS = {
    **dict.fromkeys(("deepseek_r1", "ernie45"), ("<think>", "</think>")),
    "step3": ("</think>",),
    "mistral": ("[TOOL_CALLS]",),
    "olmo3": ("Ġ</", "</", "think", ">"),
}
"""Tokens without which vLLM refuses to start with the parser. The others read text, and need none."""
GRAMMAR_FROM = 11
"""Version of Mistral's tokenizer from which vLLM asks it for a grammar."""
THOUGHT_OPENINGS = ("<think>", "<seed:think>", "<|channel", "<|START_THINKING|>", "[THINK]", "thought process")
"""How thoughts begin."""
OWN_RENDERERS = ("deepseek", "minicpmv", "clip", "siglip", "blip")
"""How the types of models begin whose messages vLLM can render without a chat template."""
MISTRAL_THOUGHT = ("[THINK]", "[/THINK]")


@dataclass(slots=True)
class ModelFiles:
    """What a model's folder says. A model on the hub is known by its name alone until it is here."""

    template: str | None = None
    """Chat template; None: there is none to read."""
    vocabulary: str | None = None
    """The tokenizer's files as text; None: they cannot be read without the tokenizer itself."""
    tekken: str = ""
    """The ``tekken.json`` of Mistral's own tokenizer, if vLLM renders messages with it, and not with the template."""

    def has(self, token: str) -> bool:
        """Whether the tokenizer has the token, as far as can be seen."""
        return self.vocabulary is None or any(t in self.vocabulary for t in (f'"{token}"', json.dumps(token)))

    def missing(self, tokens: tuple[str, ...]) -> str | None:
        return next((t for t in tokens if not self.has(t)), None)


@dataclass(slots=True)
class Parsers:
    tool: str | None
    reasoning: str | None
    quiet: bool = False
    """The model thinks only where a call asks for it, and the parser has to be told so."""
    tekken: bool = False
    """VLLM is told to render messages with Mistral's own tokenizer."""
    grammar: bool = False
    """VLLM would put that tokenizer's grammar on each chat completion."""
    says: list[str] = field(default_factory=list)
    """What was chosen, and why there is none."""


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def _tekken(model: str, folder: Path, template: str, args: Sequence[str]) -> str:
    """VLLM takes Mistral's own tokenizer by itself beside weights in Mistral's own form, whatever the template is. Of a
    model on the hub only the small files are here.
    """
    said = re.search(r"--tokenizer[-_]mode[= ](\S+)", " ".join(args))
    hub = folder != Path(model).expanduser() and (folder / "params.json").is_file()
    own = not template or hub or any(folder.rglob("consolidated*.safetensors"))
    return _text(folder / "tekken.json") if (said[1] == "mistral" if said else own) else ""


def files_of(model: str, args: Sequence[str] = ()) -> ModelFiles:
    """What can be read without a download. ``args``: what vLLM is told beside what Slipstream chooses."""
    folder = model_folder(model) or Path(model)
    described = _text(folder / "tokenizer_config.json")
    vocabulary = _text(folder / "tokenizer.json")
    template = template_in(folder)
    if tekken := _tekken(model, folder, template, args):
        return ModelFiles(tekken=tekken)
    known = bool(template or described or vocabulary)
    return ModelFiles(
        template if known else None,
        vocabulary + described + _text(folder / "added_tokens.json") if vocabulary else None,
    )


def without_template(config: Config) -> Finding | None:
    """Why chat completions will be refused. None: they will not, or nobody knows yet."""
    engine = config.engine
    if engine.model is None or model_folder(engine.model) is None:
        return None
    described, told = model_config(engine.model), " ".join(engine.args)
    # VLLM has renderers, or templates, of its own for some
    own = "vision_config" in described or str(described.get("model_type")).startswith(OWN_RENDERERS)
    if (
        own
        or re.search(r"--(chat[-_]template|tokenizer[-_]mode)\b", told)
        or files_of(engine.model, engine.args).template != ""
    ):
        return None
    what = f"{engine.model} has no chat template, as base models have none: vLLM answers each chat completion with 400"
    fix = 'set engine.args = ["--chat-template", "FILE"], or put FILE into the folder as chat_template.jinja'
    return fail(what, "no chat completion is answered", fix)


def choose_parsers(config: Config, described: dict[str, object]) -> Parsers:
    """The parsers as configured, else those that fit. ``described``: the model's ``config.json``, empty where it is
    not known. Raises ``StartError`` for a configured one that vLLM would refuse.
    """
    engine = config.engine
    path = Path(str(engine.model)).expanduser()  # of a folder only its own name: where it lies says nothing
    own = path.resolve().name if path.is_dir() else str(engine.model)
    name = f"{described.get('model_type', '')} {own}".lower()
    here = model_folder(engine.model) is not None
    files = files_of(str(engine.model), engine.args) if here else ModelFiles()
    facts = run(files.template) if files.template else None
    tool, why = _configured("tool_parser", engine.tool_parser, TOOL_TOKENS, files) or _tool(name, files, facts)
    asked = _configured("reasoning_parser", engine.reasoning_parser, REASONING_TOKENS, files)
    reasoning = asked[0] if asked else _reasoning(name, files, facts, known=bool(described))
    says = [
        f"tool parser: {tool}" if tool else f"tool parser: none ({why}). A call with tools gets status 400",
        f"reasoning parser: {reasoning or 'none'}",
    ]
    if lacking := without_template(config):
        says.insert(0, f"{lacking.what}: {lacking.fix}")
    if files.tekken:
        says.append("tokenizer: Mistral's own (tekken.json); a chat template is not used")
    if not here:
        says.append(f"the parsers are guessed from the name: the files of {engine.model} are not here yet")
    quiet = bool(reasoning and facts and facts.closed and facts.hybrid)
    version = re.search(r'"version":\s*"v(\d+)', files.tekken)
    grammar = bool(files.tekken) and tool == "mistral" and (version is None or int(version[1]) >= GRAMMAR_FROM)
    return Parsers(tool, reasoning, quiet, bool(files.tekken), grammar, says)


def _configured(
    setting: str, value: str | None, needs: dict[str, tuple[str, ...]], files: ModelFiles
) -> tuple[str | None, str] | None:
    if value is None:
        return None
    if token := files.missing(needs.get(value, ())):
        raise StartError(
            f"engine.{setting} = {value!r}: it needs the token {token}, which the model's tokenizer does not have; "
            f'choose another, or set engine.{setting} = "none"'
        )
    return (None, f"engine.{setting}") if value == "none" else (value, "")


def _tool(name: str, files: ModelFiles, facts: TemplateFacts | None) -> tuple[str | None, str]:
    """A parser, or None and why."""
    family = "mistral" if files.tekken else next((p for key, p in TOOL_PARSERS if key in name), None)
    takes = files.template is None or (facts.tools if facts else "tool" in files.template)
    text = (facts.call if facts else "") or files.template or ""
    form = next((p for mark, p in TOOL_CALL_PARSERS if mark in text), None)
    if any(own in name for own in OWN_FORMS) and form in ("hermes", "qwen3_xml"):
        form = None
    if not takes and form is None:
        return None, "its chat template takes no tools; if it calls some, set engine.tool_parser"
    found = form or family
    if found is None:
        return None, "its form of a call is not known; if it calls tools, set engine.tool_parser"
    if token := files.missing(TOOL_TOKENS.get(found, ())):
        return None, f"its tokenizer has no {token}, which {found} needs; if it calls tools, set engine.tool_parser"
    return found, ""


def _reasoning(name: str, files: ModelFiles, facts: TemplateFacts | None, *, known: bool) -> str | None:
    """A parser that does not fit hides answers, so that there is one only where thoughts are known to come."""
    if files.tekken:  # where no thought comes, this parser takes all for the answer
        return "mistral" if "magistral" in name or all(f'"{t}"' in files.tekken for t in MISTRAL_THOUGHT) else None
    family = next((p for key, p in REASONING_PARSERS if key in name), None)
    template = files.template or ""
    if template or known:  # a folder without a template has nothing for a parser to cut
        if not any(mark in template for mark in THOUGHT_OPENINGS):
            return None
        if family is None and facts and "<think>" in template:
            family = "qwen3" if facts.hybrid else "deepseek_r1" if facts.opened else None
        if family is None and "[THINK]" in template and not files.missing(MISTRAL_THOUGHT):
            family = "mistral"
        if family is None and facts and facts.closed and "deepseek_v3" in name:
            family = "deepseek_v3"
    elif any(part in name for part in ("instruct", "coder")):
        return None
    return None if family is None or files.missing(REASONING_TOKENS.get(family, ())) else family
