"""The door for plug-ins: what a tenth of the users needs is a package of its own, which the core does not import.

A package names its ``Plugin`` under the entry-point group ``slipstream.plugins``; that it is installed is enough. The
parts of a plug-in are named as ``module:name`` and imported where they are needed, so that a command's help imports no
web server. A plug-in that cannot be imported ends nothing: it stands in ``broken`` with its reason, which ``status``
and ``doctor`` say.

Settings of the plug-in ``NAME`` stand in ``[plugins.NAME]``; ``enabled = false`` there turns it off.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from slipstream.errors import ConfigError
from slipstream.shared.functions import load_object

ENTRY_POINT_GROUP = "slipstream.plugins"
ENABLED_SETTING = "enabled"


class Command(NamedTuple):
    """A subcommand of ``slipstream``."""

    group: str
    """Under which heading of the help it stands: start, look, steer or data."""
    text: str
    """Its line in ``slipstream --help``."""
    module: str | None = None
    """The dotted name of a module with ``add(parser)`` and ``run(args) -> exit code``. A plug-in names it; None: the
    module of the command's name in its group's room, ``slipstream.cli.GROUP``."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """What a plug-in brings. All but the name and the text may be left out."""

    name: str
    """One word, as in ``[plugins.NAME]``."""
    text: str
    """What it is for, in one line."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """By what is typed: ``report``, or a verb of a command, ``judge eval``."""
    settings: str | None = None
    """``module:Class`` of its settings, a ``slipstream.settings.base.Section``."""
    control: str | None = None
    """``module:Class`` of its part in the control plane, a ``slipstream_proxy.control.api.plugins.ControlPlugin``:
    routes, tables, background jobs, metrics and views of the page."""


@dataclass(frozen=True, slots=True)
class InstalledPlugins:
    """``found``: by name. ``broken``: name → why it cannot be used."""

    found: Mapping[str, Plugin]
    broken: Mapping[str, str]


def _load(point: EntryPoint) -> Plugin:
    made = point.load()
    if not isinstance(made, Plugin):
        raise ConfigError(f"{point.value} is a {type(made).__name__}, and no slipstream.plugins.Plugin")
    if made.name != point.name:
        raise ConfigError(f"its entry point is named {point.name!r}, and the plug-in {made.name!r}")
    return made


@functools.cache
def installed() -> InstalledPlugins:
    """The plug-ins of this environment, read once a process."""
    found: dict[str, Plugin] = {}
    broken: dict[str, str] = {}
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        try:
            found[point.name] = _load(point)
        except Exception as e:  # a stranger's package may fail in any way, and must not end ours
            broken[point.name] = f"{type(e).__name__}: {e}"
    return InstalledPlugins(found, broken)


def plugin_commands(of: str | None = None) -> dict[str, Command]:
    """The commands of all plug-ins; ``of``: the verbs that they add to this one. Of two plug-ins with the same command
    the first by name has it.
    """
    made: dict[str, Command] = {}
    for plugin in installed().found.values():
        for typed, command in plugin.commands.items():
            before, _, name = typed.rpartition(" ")
            if before == (of or ""):
                made.setdefault(name, command)
    return made


def is_enabled(section: Mapping[str, Any]) -> bool:
    """Whether a plug-in with these settings is used."""
    return section.get(ENABLED_SETTING, True) is not False


def _own(section: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are the plug-in's, and not the door's."""
    return {name: value for name, value in section.items() if name != ENABLED_SETTING}


def settings_class(plugin: Plugin) -> type[BaseModel] | None:
    """The class of its settings. Raises ``ConfigError`` where it cannot be imported."""
    if plugin.settings is None:
        return None
    found = load_object(f"plugins.{plugin.name}", plugin.settings, "class")
    if not (isinstance(found, type) and issubclass(found, BaseModel)):
        raise ConfigError(f"the plug-in {plugin.name}: {plugin.settings} is no class of settings")
    return found


def check_sections(sections: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises ``ValueError``, with the setting's name, for what no plug-in of this environment takes."""
    for name, section in sections.items():
        if not is_enabled(section):
            continue
        plugins = installed()
        if name in plugins.broken:
            raise ValueError(f"plugins.{name}: the plug-in can't be imported: {plugins.broken[name]}")
        if name not in plugins.found:
            near = difflib.get_close_matches(name, plugins.found, 1)
            known = f"did you mean {near[0]}?" if near else f"installed are {', '.join(plugins.found) or 'none'}"
            raise ValueError(f"plugins.{name}: no plug-in of this name is installed; {known}")
        _check_section(plugins.found[name], section)


def _check_section(plugin: Plugin, section: Mapping[str, Any]) -> None:
    given = _own(section)
    kind = settings_class(plugin)
    if kind is None:
        if given:
            raise ValueError(f"plugins.{plugin.name}.{next(iter(given))}: this plug-in has no settings")
        return
    try:
        kind.model_validate(given)
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False)[0]
        where = ".".join(("plugins", plugin.name, *map(str, first["loc"])))
        text = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            text = f"unknown setting; known are {', '.join(kind.model_fields)}"
        raise ValueError(f"{where}: {text}") from e


def settings_of(sections: Mapping[str, Mapping[str, Any]], plugin: Plugin) -> BaseModel | None:
    """Its settings in these (``Config.plugins``); None: it has none. Raises ``ConfigError``."""
    kind = settings_class(plugin)
    if kind is None:
        return None
    try:
        return kind.model_validate(_own(sections.get(plugin.name, {})))
    except ValidationError as e:
        raise ConfigError(f"plugins.{plugin.name}: {e}") from e


def used(sections: Mapping[str, Mapping[str, Any]]) -> list[Plugin]:
    """The plug-ins that ``Config.plugins`` does not turn off."""
    return [p for p in installed().found.values() if is_enabled(sections.get(p.name, {}))]
