from __future__ import annotations

import argparse
import json
import re
from typing import Any

from pydantic import BaseModel

from slipstream.cli.common import add_config, read_config

SECRETS = {"api_key"}
PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")


def add(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--plain", action="store_true", help="values without their descriptions")


def toml(value: Any) -> str:
    """A TOML value; JSON's form is one for strings, numbers, booleans and lists of them."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def secret(name: str, value: object) -> bool:
    """A key, or a URL with a password in it: a comment says that it is there."""
    return bool(value) and (name in SECRETS or (isinstance(value, str) and PASSWORD.search(value) is not None))


def show(model: BaseModel, *, plain: bool, path: str = "") -> list[str]:
    """The section's lines: plain fields first, then its sub-sections, as TOML wants it."""
    lines: list[str] = []
    later: list[tuple[str, BaseModel]] = []
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            later.append((name, value))
            continue
        if isinstance(value, dict) and any(isinstance(v, BaseModel) for v in value.values()):
            later += [(f"{name}.{json.dumps(k)}", v) for k, v in value.items()]
            continue
        if field.description and not plain:
            lines.append(f"# {field.description}")
        if value is None:
            lines.append(f"# {name} is not set")
        elif secret(name, value):
            lines.append(f"# {name} is set, and secret")
        else:
            lines.append(f"{name} = {toml(value)}")
    for name, section in later:
        lines += ["", f"[{path}{name}]", *show(section, plain=plain, path=f"{path}{name}.")]
    return lines


def run(args: argparse.Namespace) -> int:
    print("\n".join(show(read_config(args), plain=args.plain)))
    return 0
