from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import tomli_w
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from slipstream.cli.common import add_config, add_json, add_profile, read_config
from slipstream.settings.base import Section, when_needed
from slipstream.shared.urls import has_password

SECRET_FIELDS = {"api_key", "logins"}
COMMENT_WIDTH = 78
"""Characters of a comment's line behind its sign."""


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_profile(parser)
    add_json(parser)
    parser.add_argument("--all", action="store_true", help="those that few need too, each with who needs it")
    parser.add_argument("--plain", action="store_true", help="values without their descriptions")


def secret(name: str, value: object) -> bool:
    """A key, or a URL with a password in it, wherever it stands: a comment says that it is there."""
    if isinstance(value, dict):
        return bool(value) and (name in SECRET_FIELDS or any(secret(k, v) for k, v in value.items()))
    if isinstance(value, list):
        return any(secret(name, v) for v in value)
    return bool(value) and (name in SECRET_FIELDS or (isinstance(value, str) and has_password(value)))


def without_secrets(tree: dict[str, object]) -> dict[str, object]:
    return {
        k: without_secrets(v) if isinstance(v, dict) and k not in SECRET_FIELDS else "(secret)" if secret(k, v) else v
        for k, v in tree.items()
    }


def comment(words: Sequence[str]) -> list[str]:
    return [f"# {line}" for text in words for line in textwrap.wrap(text, COMMENT_WIDTH)]


def setting(name: str, value: object, words: Sequence[str]) -> list[str]:
    """The lines of one setting, its words above it."""
    said = comment(words)
    if value is None:
        return [*said, f"# {name} is not set"]
    if secret(name, value):
        return [*said, f"# {name} is set, and secret"]
    return [*said, tomli_w.dumps({name: value}).strip()]


class ShownSettings(NamedTuple):
    """What is asked for."""

    rare: bool
    """Those of the second level that stand at their default, too."""
    plain: bool
    """Values without words."""

    def leaves_out(self, field: FieldInfo, value: object) -> bool:
        """What is set shows at any level: it is in effect."""
        return not self.rare and when_needed(field) is not None and value == default_of(field)

    def words(self, field: FieldInfo) -> list[str]:
        if self.plain:
            return []
        needed = when_needed(field)
        return [field.description or "", *([f"You need it if {needed}."] if needed else [])]


def default_of(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True, validated_data={})


def show(model: BaseModel, shown: ShownSettings, path: str = "") -> list[str]:
    """The section's lines: plain fields first, then its sub-sections, as TOML wants it."""
    lines: list[str] = []
    later: list[str] = []
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        words = shown.words(field)
        if isinstance(value, BaseModel):
            said = comment(value.notes()) if isinstance(value, Section) and not shown.plain else []
            if part := show(value, shown, f"{path}{name}."):
                later += ["", f"[{path}{name}]", *said, *part]
        elif shown.leaves_out(field, value):
            continue
        elif not isinstance(value, dict) or secret(name, value):
            lines += setting(name, value, words)
        elif any(isinstance(v, BaseModel) for v in value.values()):
            for key, section in value.items():
                header = f"{path}{name}.{json.dumps(key)}"
                later += ["", f"[{header}]", *show(section, shown, f"{header}.")]
        else:
            later += ["", *comment(words), f"[{path}{name}]", tomli_w.dumps(value).strip()]
    return lines + later


def left_out(model: BaseModel, shown: ShownSettings) -> int:
    """How many settings ``show`` says nothing of."""
    found = 0
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        found += left_out(value, shown) if isinstance(value, BaseModel) else shown.leaves_out(field, value)
    return found


def run(args: argparse.Namespace) -> int:
    config, shown = read_config(args), ShownSettings(args.all, args.plain)
    if args.json:
        print(json.dumps(without_secrets(config.model_dump(mode="json")), indent=2))
        return 0
    print("\n".join(show(config, shown)))
    if more := left_out(config, shown):
        print(f"\n# {more} rarely used settings are at their defaults: `slipstream config --all`")
    return 0
