"""Functions that users name in settings: ``module:function``."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slipstream.errors import ConfigError


def load_function(setting: str, spec: str) -> Callable[..., Any]:
    """Import ``spec``, with the working directory on the path. Raises ``ConfigError`` with the setting's name."""
    module, colon, name = spec.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"{setting} = {spec!r}: write module:function")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = pkgutil.resolve_name(spec)
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"{setting} = {spec!r}: {e}") from e
    if not callable(found):
        raise ConfigError(f"{setting} = {spec!r} is no function")
    return found
