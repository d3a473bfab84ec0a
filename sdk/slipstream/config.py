"""The one configuration: TOML file < environment (``SLIPSTREAM_PROXY__PORT=…``) < flags (``--set proxy.port=…``).

An unknown key is refused with the nearest known name, and every mistake says where it was made.
"""

from __future__ import annotations

import copy
import difflib
import logging
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from slipstream.errors import ConfigError
from slipstream.settings import Config
from slipstream.shared.urls import without_password
from slipstream.tenants import check_tenants

__all__ = ["CONFIG_ENV", "Config", "load_config"]

log = logging.getLogger(__name__)
ENV_PREFIX = "SLIPSTREAM_"
CONFIG_ENV = "SLIPSTREAM_CONFIG_JSON"
"""The effective configuration, as it is handed to children."""
FOLDER_SETTINGS = (("data_dir",), ("adapters", "dir"), ("store", "archive"))
"""Settings that name a folder. In a file they are relative to the file's own folder, but for a URL."""
_SETTLE = "gate.settle says after how many ended runs a version without suspicion is accepted"
DELETED_SETTINGS = {
    ("engine", "host"): "`up` binds vLLM to 127.0.0.1, because calls past the proxy are not recorded",
    ("judge", "temperature"): "it is 0, or what judge.params says",
    ("judge", "max_tokens"): "judge.params may have it",
    ("trainer", "max_grad"): "a batch whose gradient norm is above 1000 is skipped",
    ("trainer", "min_entropy"): "trainer.max_kl bounds a step",
    ("trainer", "words_prompt"): "the words stand as the user wrote them",
    ("gate", "min_pairs"): _SETTLE,
    ("gate", "max_episodes"): _SETTLE,
}
"""Settings of earlier releases → what stands in their place. They are left out, and that is said once."""
_said: set[str] = set()


def _at(path: Sequence[str]) -> Any:
    """The type of what stands at ``path``; None where nothing does."""
    kind: Any = Config
    for part in path:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(part)
            kind = field.annotation if field else None
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
        else:
            return None
    return kind


def _unknown(path: tuple[str, ...]) -> str:
    """Says so, with the nearest name of the same section, else the same name in another section."""
    section = _at(path[:-1])
    names = list(section.model_fields) if isinstance(section, type) and issubclass(section, BaseModel) else []
    near = [".".join((*path[:-1], n)) for n in difflib.get_close_matches(path[-1], names, 1, 0.6)]
    near = near or [
        f"{s}.{path[-1]}" for s in Config.model_fields if path[-1] in getattr(_at((s,)), "model_fields", ())
    ]
    return f"unknown setting {'.'.join(path)}" + (f"; did you mean {' or '.join(near)}?" if near else "")


def _explain(error: ValidationError, source: str, sources: dict[tuple[str, ...], str]) -> str:
    """A line per setting: where it was said, its name, what is wrong with it."""
    lines: dict[tuple[str, ...], str] = {}
    for e in error.errors():
        path = tuple(str(p) for p in e["loc"])
        while path and e["type"] != "extra_forbidden" and _at(path) is None:
            path = path[:-1]  # pydantic adds the names of a union's members
        where = next((sources[path[:n]] for n in range(len(path), 0, -1) if path[:n] in sources), source)
        message = e["msg"].removeprefix("Value error, ")
        if e["type"] == "extra_forbidden":
            lines[path] = f"{where}: {_unknown(path)}"
        elif not path:
            lines[path] = f"{where}: {message}"
        else:
            got = (
                ""
                if path[-1] == "api_key" or isinstance(e["input"], dict)
                else f" (got {without_password(repr(e['input']))})"
            )
            lines.setdefault(path, f"{where}: {'.'.join(path)}: {message}{got}")
    return "\n".join(lines.values())


def _leave_out_deleted(tree: dict[str, Any], source: str, sources: Mapping[tuple[str, ...], str]) -> None:
    """An old file still starts."""
    for (section, name), instead in DELETED_SETTINGS.items():
        part = tree.get(section)
        if not isinstance(part, dict) or name not in part:
            continue
        tree[section] = {n: value for n, value in part.items() if n != name}
        where = sources.get((section, name), source)
        text = f"{where}: {section}.{name} is no setting any more, and is left out: {instead}"
        if text not in _said:
            _said.add(text)
            log.warning(text)


def _put(tree: dict[str, Any], path: Sequence[str], value: Any, source: str) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{source}: {'.'.join(path)}: {part} is a value, not a section")
    tree[path[-1]] = value


def _beside(folder: Path, read: dict[str, Any], base: Mapping[str, object]) -> None:
    """Folders that a file names, or leaves at their default, are beside it, wherever the command is run."""
    if folder == Path():
        return
    if "data_dir" not in base:
        read.setdefault("data_dir", Config.model_fields["data_dir"].default)
    for *sections, name in FOLDER_SETTINGS:
        section = read
        for part in sections:
            section = section[part] if isinstance(section.get(part), dict) else {}
        if isinstance(named := section.get(name), str) and "://" not in named:
            section[name] = str(folder / Path(named).expanduser())


def _value(path: Sequence[str], text: str) -> Any:
    """A TOML value where the text is one (``0.5``, ``true``, ``["a"]``), else the text itself.

    Where only text can stand, ``12345`` is text too: a key of digits needs no quotes.
    """
    only_text = _at(path) in (str, str | None) and text[:1] not in {'"', "'"}
    try:
        return text if only_text else tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def _keys(name: str) -> tuple[str, ...]:
    """``models."gpt-4.1".base`` → its three parts, as TOML reads a dotted key."""
    try:
        tree: Any = tomllib.loads(f"{name} = 0")
    except tomllib.TOMLDecodeError:
        return tuple(name.split("."))
    path: list[str] = []
    while isinstance(tree, dict):
        key, tree = next(iter(tree.items()))
        path.append(key)
    return tuple(path)


def load_config(
    path: str | Path | None = None,
    *,
    env: Mapping[str, str] | None = None,
    flags: Iterable[str] = (),
    base: Mapping[str, Any] | None = None,
) -> Config:
    """Read the effective configuration. ``flags``: ``section.name=value``. Raises ``ConfigError``, a line a mistake."""
    tree: dict[str, Any] = copy.deepcopy(dict(base or {}))
    sources: dict[tuple[str, ...], str] = {}
    source = "config"
    if path is not None:
        source = str(path)
        try:
            read = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as e:
            raise ConfigError(f"{path}: {e.strerror}") from e
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
            raise ConfigError(f"{path}: not TOML: {e}") from e
        _beside(Path(path).parent, read, tree)
        for name, part in read.items():
            tree[name] = (
                {**tree.get(name, {}), **part} if isinstance(part, dict) and isinstance(tree.get(name), dict) else part
            )
    for name, text in (os.environ if env is None else env).items():
        parts = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
        known = len(parts) > 1 or parts[0] in Config.model_fields
        if name.startswith(ENV_PREFIX) and known:
            sources[parts] = f"environment {name}"
            _put(tree, parts, _value(parts, text), sources[parts])
    for flag in flags:
        name, eq, text = flag.partition("=")
        if not eq or not name:
            raise ConfigError(f"--set {flag}: write section.name=value")
        parts = _keys(name)
        sources[parts] = f"--set {name}"
        _put(tree, parts, _value(parts, text), sources[parts])
    _leave_out_deleted(tree, source, sources)
    if tree.get("tenant") and tree["tenant"] != (base or {}).get("tenant"):
        raise ConfigError(f'{source}: tenant is no setting: an empty table [tenants."NAME"] declares one')
    for name in ("quota", "share"):
        given = tree.get(name)
        said = any(value is not None for value in given.values()) if isinstance(given, dict) else bool(given)
        if said and not (base or {}).get("tenant"):  # what a parent hands on has all settings
            raise ConfigError(f'{source}: {name} is a tenant\'s, and nobody else has one: set tenants."NAME".{name}')
    try:
        config = Config.model_validate(tree)
    except ValidationError as e:
        raise ConfigError(_explain(e, source, sources)) from e
    check_tenants(config, source)
    return config
