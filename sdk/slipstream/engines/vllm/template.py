"""What a chat template does: it is run, so that a call and a prompt look as the model knows them."""

from __future__ import annotations

import functools
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template

JsonDict = dict[str, Any]
PROBE_TOOL_NAME = "get_weather"
_ARGUMENTS = {"city": "Oslo", "days": 2}
_ASKED = {"role": "user", "content": "How is the weather?"}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": PROBE_TOOL_NAME,
            "description": "The weather of some days.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where."},
                    "days": {"type": "integer", "description": "How many."},
                },
                "required": ["city"],
            },
        },
    }
]
_TRAINING = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Tags that only transformers knows."""


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """``call``: a tool call as the model writes it; empty where the template drops it. ``tools``: it shows tools to the
    model. ``prompt``: what comes last before a reply. ``hybrid``: ``enable_thinking`` switches thinking on or off.
    """

    call: str
    tools: bool
    prompt: str
    hybrid: bool

    @property
    def opened(self) -> bool:
        """Each reply begins within a thought."""
        return self.prompt.rstrip().endswith(("<think>", "<seed:think>"))

    @property
    def closed(self) -> bool:
        """A reply begins behind a thought, unless thinking is asked for."""
        return self.prompt.rstrip().endswith(("</think>", "</seed:think>"))


def run(template: str) -> TemplateFacts | None:
    """None: it cannot be run here."""
    try:
        prompt = _render(template, [_ASKED], add_generation_prompt=True)
        shown = _render(template, [_ASKED], tools=_TOOLS, add_generation_prompt=True)
        ways = {_render(template, [_ASKED], add_generation_prompt=True, enable_thinking=on) for on in (True, False)}
    except Exception:  # a template may raise whatever it likes
        return None
    begun = _render(template, [_ASKED])
    return TemplateFacts(_call(template), shown != prompt, _behind(begun, prompt), len(ways) > 1)


def _call(template: str) -> str:
    """Some templates take the arguments as an object, others as JSON, and some want no content beside a call."""
    forms = itertools.product((_ARGUMENTS, json.dumps(_ARGUMENTS)), ("", None))
    return next(
        (said for arguments, content in forms if PROBE_TOOL_NAME in (said := _said(template, arguments, content))), ""
    )


def _said(template: str, arguments: object, content: str | None) -> str:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": PROBE_TOOL_NAME, "arguments": arguments}}
    said = {"role": "assistant", "content": content, "tool_calls": [call]}
    try:
        return _behind(_render(template, [_ASKED], tools=_TOOLS), _render(template, [_ASKED, said], tools=_TOOLS))
    except Exception:  # it does not take this form
        return ""


def _behind(before: str, whole: str) -> str:
    """What ``whole`` has behind the part that both begin with."""
    pairs = zip(before, whole, strict=False)
    return whole[sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) :]


def _render(template: str, messages: list[JsonDict], **more: object) -> str:
    """As transformers does. Raises what the template raises, or ``ImportError``."""
    values: JsonDict = {"tools": None, "bos_token": "<s>", "eos_token": "</s>", **more}
    return str(_compiled(template).render(messages=messages, **values))


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda _: "2026-01-01"}
    return environment.from_string(_TRAINING.sub("", template))


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: object) -> str:
    """Jinja's own sorts keys (findings/README.md)."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> None:
    raise ValueError(message)
