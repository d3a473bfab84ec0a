"""A running episode, as a worker remembers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream_proxy.log.records import mark_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from slipstream_proxy.data.wire.identity import Tags


class Pinned:
    # No dataclass: the ``__init__`` of one is not compiled.
    __slots__ = ("adapter", "arm", "chances", "checked", "how")

    def __init__(self, adapter: str, arm: str, how: str, chances: str) -> None:
        """``how`` it was decided: as ``CallHead.pin`` says. ``chances``: see ``assignment.Assignment``."""
        self.adapter, self.arm, self.how, self.chances = adapter, arm, how, chances
        self.checked = -1
        """The state of ``LiveView`` under which its adapter was found to be loaded."""


class CommonHead:
    """What the heads of an episode's latest calls have alike, as ``text``."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


Name = tuple[str, str]
"""(key's id, episode as the client names it)."""


_NO_TAGS: Final[dict[str, str]] = {}
_NO_PINS: Final[dict[str, Pinned]] = {}


class RunningEpisode:
    __slots__ = ("common", "done", "engine", "generation", "id", "name", "pins", "seen", "split", "tags", "task")

    def __init__(self, name: Name, generation: int, said: Tags, now: float) -> None:
        self.id = name[1] if generation == 1 else f"{name[1]}~{generation}"
        """As stored: with ``~2`` after the first of the name was done."""
        self.name, self.generation = name, generation
        self.task, self.split = said.task, said.split or "train"
        # Both are replaced and never changed: what many episodes have alike is one dict.
        self.tags: dict[str, str] = said.tags or _NO_TAGS
        self.pins: dict[str, Pinned] = _NO_PINS
        """By model."""
        self.seen = now
        self.done = False
        self.engine = ""
        """Where its latest call went."""
        self.common: CommonHead | None = None
        """What its calls' records share, as the last record had it."""

    def is_among(self, forgotten: Collection[str]) -> bool:
        """``forgotten``: as ``LiveView.forgotten``."""
        return bool(forgotten) and f"{self.name[0]}/{mark_of(self.id)}" in forgotten
