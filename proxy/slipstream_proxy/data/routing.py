"""Model map: what a client's model name stands for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from fnmatch import fnmatchcase

from slipstream.config import Config, ModelRoute


@dataclass(slots=True, frozen=True)
class Route:
    kind: str
    """``trained``, ``base`` or ``upstream``."""
    model: str
    """The trained model's name, or the name that is sent."""
    trust: bool = False
    upstream: str | None = None
    key_env: str | None = None

    @property
    def key(self) -> str | None:
        return os.environ.get(self.key_env) if self.key_env else None


class Routes:
    """Exact names first, then globs in the order of the file, then the trained model under its own name; others go to the engine as they are."""

    def __init__(self, config: Config) -> None:
        self.default = config.model_name
        self._map = config.models
        self._cache: dict[str, Route] = {}

    def of(self, name: str) -> Route:
        found = self._cache.get(name)
        if found is None:
            found = self._find(name)
            if len(self._cache) < 4096 and len(name) < 256:
                self._cache[name] = found
        return found

    def _find(self, name: str) -> Route:
        entry = self._map.get(name)
        if entry is None:
            entry = next((e for pattern, e in self._map.items() if fnmatchcase(name, pattern)), None)
        if entry is not None:
            return _route(entry, name)
        return Route("trained" if name == self.default else "base", name)

    def names(self) -> list[str]:
        """Names that ``/v1/models`` lists: those of the map that are no patterns, and the trained model's."""
        listed = [n for n in self._map if not any(c in n for c in "*?[")]
        return [*listed, *([] if self.default in listed else [self.default])]


def _route(entry: ModelRoute, name: str) -> Route:
    trust = entry.sampling == "trust"
    if entry.trained is not None:
        return Route("trained", entry.trained, trust)
    if entry.base is not None:
        return Route("base", entry.base, trust)
    return Route("upstream", entry.model or name, trust, entry.upstream, entry.api_key_env)
