"""What is found by its name: functions of users (``module:function``), and modules in a package's rooms."""

from __future__ import annotations

import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.errors import ConfigError, StartError
from slipstream.shared.imports import root_cause
from slipstream.shared.processes.remedies import remedy


def load_object(setting: str, spec: str, wanted: str = "function") -> object:
    """Import ``module:name``, from the working directory first if it has one of that name. Raises ``ConfigError`` that
    names the setting.

    ``wanted``: what the name should be of.
    """
    module, colon, name = spec.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"{setting} = {spec!r}: write module:{wanted}")
    here, top = Path.cwd(), module.partition(".")[0]
    own = str(here) not in sys.path and ((here / f"{top}.py").is_file() or (here / top).is_dir())
    if own:
        sys.path.insert(0, str(here))
    try:
        return pkgutil.resolve_name(spec)
    except Exception as e:  # the user's module may fail in any way
        raise ConfigError(f"{setting} = {spec!r}: {type(e).__name__}: {e}") from e
    finally:
        if own:  # its other files are no libraries of what is imported later, and its own imports still find them
            sys.path.remove(str(here))
            sys.path.append(str(here))


def load_function(setting: str, spec: str) -> Callable[..., Any]:
    """The same of a function."""
    found = load_object(setting, spec)
    if not callable(found):
        raise ConfigError(f"{setting} = {spec!r} is no function")
    return found


def module_in(package: str, rooms: Sequence[str], name: str) -> str:
    """The dotted name of the module ``name``, in whatever room of the package it lies."""
    names = (f"{package}.{room}.{name}" for room in rooms)
    return next(name for name in names if importlib.util.find_spec(name) is not None)


def need(module: str, extra: str) -> ModuleType:
    """Import a part of the distribution whose extra may not be installed, or whose packages may not fit together."""
    try:
        return importlib.import_module(module)
    except ConfigError:
        raise
    except Exception as e:  # a package's own code may fail in any way
        cause = root_cause(e)
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            text = other_system(cause) or f"{cause.name} is not installed: pip install 'slipstream[{extra}]'"
            raise StartError(text) from e
        words = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        fix = remedy(words) or "`slipstream doctor` says what does not fit"
        raise StartError(f"the packages of slipstream[{extra}] can't be imported: {words}\n{fix}") from e


def other_system(e: ModuleNotFoundError) -> str | None:
    """What to do where Python itself lacks a module, as on Windows. None: a package is not installed."""
    if e.name not in sys.stdlib_module_names:
        return None
    return (
        f"this part runs on Linux ({sys.platform} has no {e.name}): run it there, or in a container or WSL. Commands "
        "that ask a running proxy work here: give its --url"
    )
