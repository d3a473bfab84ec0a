"""Which of vLLM's parsers read tool calls and thoughts out of a model's text: by what its tokenizer and its chat
template can do, then by its family.

A parser that does not fit is worse than none: vLLM refuses to start with it, or finds no call in what the model says.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.config import Config
from slipstream.errors import StartError

TOOL_PARSERS = (
    ("qwen3_coder", "qwen3_xml"),
    ("qwen3-coder", "qwen3_xml"),
    ("qwen", "hermes"),
    ("hermes", "hermes"),
    ("llama-4", "llama4_pythonic"),
    ("llama", "llama3_json"),
    ("mistral", "mistral"),
    ("mixtral", "mistral"),
    ("deepseek_v3", "deepseek_v3"),
    ("granite", "granite"),
    ("gpt_oss", "openai"),
    ("gpt-oss", "openai"),
    ("glm", "glm45"),
    ("kimi", "kimi_k2"),
    ("minimax", "minimax_m2"),
    ("gemma", "functiongemma"),
    ("olmo3", "olmo3"),
    ("phi4", "phi4_mini_json"),
    ("phi-4", "phi4_mini_json"),
)
REASONING_PARSERS = (
    ("qwen3", "qwen3"),
    ("deepseek_r1", "deepseek_r1"),
    ("deepseek-r1", "deepseek_r1"),
    ("gpt_oss", "openai_gptoss"),
    ("glm", "glm45"),
    ("granite", "granite"),
    ("kimi", "kimi_k2"),
    ("minimax", "minimax_m2"),
    ("olmo3", "olmo3"),
)
"""Part of a model's type or name → parser."""
TOOL_TOKENS = {
    "llama3_json": ("<|python_tag|>",),
    "llama4_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]",),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
}
REASONING_TOKENS = {"deepseek_r1": ("<think>", "</think>"), "olmo3": ("Ġ</", "</", "think", ">")}
"""Tokens without which vLLM refuses to start with the parser. The others read text, and need none."""
TEMPLATE_CALLS = (("<function=", "qwen3_xml"), ("<arg_key>", "glm45"), ("", "hermes"))
"""How calls inside of ``<tool_call>`` look, and what reads them."""
IN_TOOL_CALL = frozenset({"granite"})
"""Families whose templates have ``<tool_call>`` too, and a reader of their own."""


@dataclass(slots=True)
class ModelFiles:
    """What a model's folder says. A model on the hub is known by its name alone until it is here."""

    template: str | None = None
    """Chat template; None: there is none to read."""
    vocabulary: str | None = None
    """The tokenizer's files as text; None: they cannot be read without the tokenizer itself."""

    def has(self, token: str) -> bool:
        """Whether the tokenizer has the token, as far as can be seen."""
        return self.vocabulary is None or any(t in self.vocabulary for t in (f'"{token}"', json.dumps(token)))

    def missing(self, tokens: tuple[str, ...]) -> str | None:
        return next((t for t in tokens if not self.has(t)), None)


@dataclass(slots=True)
class Parsers:
    tool: str | None
    reasoning: str | None
    says: list[str] = field(default_factory=list)
    """What was chosen, and why there is none."""


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def files_of(model: str) -> ModelFiles:
    """What can be read without a download."""
    folder = Path(model).expanduser()
    described = _text(folder / "tokenizer_config.json")
    vocabulary = _text(folder / "tokenizer.json")
    template = _text(folder / "chat_template.jinja") + _text(folder / "chat_template.json")
    if not template and "chat_template" in described:
        template = described
    # Mistral's own tokenizer renders messages without a template
    known = bool(template) or (bool(described or vocabulary) and not (folder / "tekken.json").is_file())
    return ModelFiles(
        template if known else None,
        vocabulary + described + _text(folder / "added_tokens.json") if vocabulary else None,
    )


def choose_parsers(config: Config, described: dict[str, object]) -> Parsers:
    """The parsers as configured, else those that fit. ``described``: the model's ``config.json``, empty where it is
    not known. Raises ``StartError`` for a configured one that vLLM would refuse.
    """
    engine = config.engine
    path = Path(str(engine.model)).expanduser()  # of a folder only its own name: where it lies says nothing
    own = path.resolve().name if path.is_dir() else str(engine.model)
    name = f"{described.get('model_type', '')} {own}".lower()
    files = files_of(str(engine.model)) if path.is_dir() else ModelFiles()
    tool, why = _configured("tool_parser", engine.tool_parser, TOOL_TOKENS, files) or _tool(name, files)
    asked = _configured("reasoning_parser", engine.reasoning_parser, REASONING_TOKENS, files)
    reasoning = asked[0] if asked else _reasoning(name, files, known=bool(described))
    says = [f"tool parser: {tool or f'none ({why})'}", f"reasoning parser: {reasoning or 'none'}"]
    return Parsers(tool, reasoning, says)


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


def _tool(name: str, files: ModelFiles) -> tuple[str | None, str]:
    """A parser, or None and why."""
    family = next((p for key, p in TOOL_PARSERS if key in name), None)
    if files.template is not None and "tool" not in files.template:
        return None, "its chat template takes no tools; if it calls some, set engine.tool_parser"
    if files.template and "<tool_call>" in files.template and family not in IN_TOOL_CALL:
        return next(p for mark, p in TEMPLATE_CALLS if mark in files.template), ""
    if family is None:
        return None, "its family is not known; if it calls tools, set engine.tool_parser"
    if token := files.missing(TOOL_TOKENS.get(family, ())):
        return None, f"its tokenizer has no {token}, which {family} needs; if it calls tools, set engine.tool_parser"
    return family, ""


def _reasoning(name: str, files: ModelFiles, *, known: bool) -> str | None:
    family = next((p for key, p in REASONING_PARSERS if key in name), None)
    # a folder whose chat template never says ``think`` has nothing for a reasoning parser to cut
    silent = known and "think" not in (files.template or "")
    return None if family is None or silent or files.missing(REASONING_TOKENS.get(family, ())) else family


def remedy(words: list[str]) -> str:
    """What to do about a parser that vLLM named as it ended; empty: it named none."""
    text = "\n".join(words).lower().replace("_", "-").replace(" ", "-")
    for setting, marks in (
        ("tool_parser", ("tool-call-parser", "toolparser", "tool-parser", "auto-tool-choice")),
        ("reasoning_parser", ("reasoning-parser", "reasoningparser")),
    ):
        if any(mark in text for mark in marks):
            return f'set engine.{setting} to one that fits the model, or to "none" (--set engine.{setting}=none)'
    return ""
