"""The kinds of engines, as ``slipstream.settings.engine.ENGINE_CLASSES`` lists them."""

from __future__ import annotations

from slipstream.config import Config
from slipstream.engines.engine import Engine, EngineAway, EngineQuestion, Steps
from slipstream.errors import ConfigError
from slipstream.settings import engine as settings
from slipstream.shared.functions import load_object

ENGINE_OBJECTS: dict[str, Engine] = {}
"""Kind → the one object of its class."""


def engine_of(kind: str) -> Engine:
    """The engine of a kind, or of a user's class (``module:Class``). Raises ``ConfigError``."""
    if kind not in ENGINE_OBJECTS:
        found = load_object("engine.kind", settings.ENGINE_CLASSES.get(kind, kind), "Class")
        if not (isinstance(found, type) and issubclass(found, Engine)):
            raise ConfigError(f"engine.kind = {kind!r} is no subclass of slipstream.engines.engine.Engine")
        engine = ENGINE_OBJECTS[kind] = found()
        if found.kind != kind and found.kind in settings.ENGINE_CLASSES:
            engine.kind = kind  # a subclass of another kind, which stays what it is
        ENGINE_OBJECTS[engine.kind] = engine
    return ENGINE_OBJECTS[kind]


for _kind in settings.ENGINE_CLASSES:
    engine_of(_kind)
DEFAULT_ENGINE = ENGINE_OBJECTS["vllm"]
"""The kind that ``slipstream up`` starts, and that an engine is taken for until it has said what it is."""


def detect(kind: str, model: str) -> Steps[tuple[Engine, str]]:
    """→ The engine, and how it calls itself: by what it says, else by how it answers.

    ``kind``: ``engine.kind``. ``model``: the trained model's name. Raises ``EngineAway`` where that cannot be told now.
    """
    if kind != "auto":
        return engine_of(kind), engine_of(kind).title
    listed = yield EngineQuestion("GET", "/v1/models")
    if listed.status != 200:
        raise EngineAway(f"/v1/models answered {listed.status}: {listed.text[:200]}")
    cards = [card for card in listed.object.get("data") or () if isinstance(card, dict)]
    kinds = [engine_of(kind) for kind in settings.ENGINE_CLASSES]
    for engine in kinds:
        title = yield from engine.recognise(cards)
        if title is not None:
            return engine, title
    names = [str(card.get("id")) for card in cards]
    asked = model if model in names or not names else names[0]
    for engine in kinds:
        if (yield from engine.behaves(asked)):
            return engine, f"as {engine.title}" if engine is DEFAULT_ENGINE else engine.title
    return DEFAULT_ENGINE, DEFAULT_ENGINE.title


def started(config: Config) -> Engine:
    """The kind that ``slipstream up`` starts for this configuration."""
    return DEFAULT_ENGINE if config.engine.kind == "auto" else engine_of(config.engine.kind)
