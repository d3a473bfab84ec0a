"""Model map: what a client's model name stands for."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.config import Config
from slipstream.engines.engine import NEUTRAL_SAMPLING
from slipstream.settings import ModelRoute
from slipstream.settings.proxy import route_of
from slipstream.shared.tenant_names import names_tenant
from slipstream_proxy.data.wire.errors import RequestRefused

BASE_SUFFIX = "@base"
"""Behind a model's name: the base model, whatever adapter is live. Alone: that of the default model."""


@dataclass(slots=True, frozen=True)
class ModelTarget:
    kind: str
    """``trained``, ``base`` or ``upstream``."""
    model: str
    """The trained model's name, or the name that is sent."""
    trust: bool = False
    upstream: str | None = None
    key_env: str | None = None
    sampling: tuple[tuple[str, float], ...] = ()
    """Fields that replace the client's."""
    shown: str = ""
    """What ``x-slipstream-sampling`` says."""
    share: float = 0.0
    """Share of the episodes that have ``explored`` instead, where their own sampling cannot be trained on."""
    explored: ModelTarget | None = None
    explores: bool = False
    """It is another's ``explored``: its ``sampling`` has all fields."""


class ModelMap:
    """Exact names first, then globs in the file's order, then the trained model's name; others go on unchanged."""

    def __init__(self, config: Config) -> None:
        self.default = config.model_name
        self._map = config.models
        self._cache: dict[str, ModelTarget] = {}
        self._latest = self.default, self._find(self.default)
        """Name and target of the latest call: the next one mostly has the same."""

    def of(self, name: str) -> ModelTarget:
        if name == self._latest[0]:
            return self._latest[1]
        found = self._cache.get(name)
        if found is None:
            found = self._find(name)
            if len(self._cache) < 4096 and len(name) < 256:
                self._cache[name] = found
        self._latest = name, found
        return found

    def _find(self, name: str) -> ModelTarget:
        if name not in self._map and name.endswith(BASE_SUFFIX):
            found = self._find(name[: -len(BASE_SUFFIX)] or self.default)
            kind = "base" if found.kind == "trained" else found.kind
            return ModelTarget(kind, found.model, found.trust, found.upstream, found.key_env)
        entry = route_of(self._map, name)
        if entry is not None:
            return self._route(entry, name)
        if names_tenant(name):
            raise RequestRefused(404, f"there is no model {name}", param="model")
        return ModelTarget("trained" if name == self.default else "base", name)

    def names(self) -> list[str]:
        """Names that ``/v1/models`` lists: those of the map that are no patterns, and the trained model's. What stands
        for a trained model comes first: some clients take the first name.
        """
        listed = [n for n in self._map if not any(c in n for c in "*?[")]
        names = listed if self.default in listed else [*listed, self.default]
        return sorted(names, key=lambda name: (self.of(name).kind != "trained", name != self.default))

    def _route(self, entry: ModelRoute, name: str) -> ModelTarget:
        trust, sampling = entry.sampling == "trust", tuple(entry.override().items())
        if entry.base is not None:
            return ModelTarget("base", entry.base, trust, sampling=sampling, shown=_shown(sampling))
        if entry.upstream is not None:
            return ModelTarget(
                "upstream", entry.model or name, trust, entry.upstream, entry.api_key_env, sampling=sampling
            )
        model, explored = entry.trained or self.default, None
        if entry.explore == "temperature":
            free = tuple((NEUTRAL_SAMPLING | {"temperature": entry.explore_temperature}).items())
            explored = ModelTarget("trained", model, sampling=free, shown=f"{_shown(free[:1])}; explore", explores=True)
        return ModelTarget(
            "trained",
            model,
            trust,
            sampling=sampling,
            shown=_shown(sampling),
            share=entry.explore_share,
            explored=explored,
        )


def _shown(sampling: tuple[tuple[str, float], ...]) -> str:
    return ", ".join([f"{name}={value}" for name, value in sampling])
