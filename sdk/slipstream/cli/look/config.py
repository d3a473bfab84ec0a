from __future__ import annotations

import argparse
import json

import tomli_w
from pydantic import BaseModel

from slipstream.cli.common import add_config, add_json, add_profile, read_config
from slipstream.shared.urls import has_password

SECRET_FIELDS = {"api_key", "logins"}


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_profile(parser)
    add_json(parser)
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


def setting(name: str, value: object, description: str | None) -> list[str]:
    """The lines of one setting, its words above it."""
    words = [f"# {description}"] if description else []
    if value is None:
        return [*words, f"# {name} is not set"]
    if secret(name, value):
        return [*words, f"# {name} is set, and secret"]
    return [*words, tomli_w.dumps({name: value}).strip()]


def show(model: BaseModel, *, plain: bool, path: str = "") -> list[str]:
    """The section's lines: plain fields first, then its sub-sections, as TOML wants it."""
    lines: list[str] = []
    later: list[str] = []
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        words = None if plain else field.description
        if isinstance(value, BaseModel):
            later += ["", f"[{path}{name}]", *show(value, plain=plain, path=f"{path}{name}.")]
        elif not isinstance(value, dict) or secret(name, value):
            lines += setting(name, value, words)
        elif any(isinstance(v, BaseModel) for v in value.values()):
            for key, section in value.items():
                header = f"{path}{name}.{json.dumps(key)}"
                later += ["", f"[{header}]", *show(section, plain=plain, path=f"{header}.")]
        else:
            later += ["", *([f"# {words}"] if words else []), f"[{path}{name}]", tomli_w.dumps(value).strip()]
    return lines + later


def run(args: argparse.Namespace) -> int:
    config = read_config(args)
    if args.json:
        print(json.dumps(without_secrets(config.model_dump(mode="json")), indent=2))
    else:
        print("\n".join(show(config, plain=args.plain)))
    return 0
