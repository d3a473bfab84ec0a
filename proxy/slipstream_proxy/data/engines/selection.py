"""Which of the engines that have an adapter takes a call: the one where its episode was, or where runs of its task are;
else the less loaded of two. Each worker knows its own calls. However many engines there are, it takes as long.

Two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing" (2001). The bound: Mirrokni et al.,
"Consistent Hashing with Bounded Loads" (2018).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

NEW_RUN_BOUND: Final = 1.06
"""An engine gets a new run by its task as long as it has at most so many times the mean."""
RUN_BOUND: Final = 1.5
"""A running episode stays at its engine as long as that has at most so many times the mean of the calls."""
FEW_CALLS: Final = 2
"""More than the mean that an engine may always have."""
MAX_TASKS: Final = 4096
"""Tasks whose engine is remembered."""
TRIED_ENGINES: Final = 3
"""Engines that a call may be sent to, one after the other."""


class AbleEngines:
    """Engines that can serve one adapter now, in the order that all workers have."""

    __slots__ = ("places", "urls")

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self.places = {url: n for n, url in enumerate(self.urls)}


class EngineSelection:
    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        """Engine → calls under way."""
        self._all_calls = 0
        self._runs: dict[str, int] = {}
        """Engine → episodes that began there of late."""
        self._all_runs = 0
        self._near: dict[str, str] = {}
        """Task → the engine of its latest run."""
        self._turn = 0

    def begin(self, url: str) -> None:
        """A call is sent there; ``end`` must follow."""
        self._calls[url] = self._calls.get(url, 0) + 1
        self._all_calls += 1

    def end(self, url: str) -> None:
        self._calls[url] = self._calls.get(url, 1) - 1
        self._all_calls -= 1

    def pick(self, able: AbleEngines, episode: str, task: str, at: str) -> list[str]:
        """The engine to take, and those if it does not answer. ``task`` or ``at`` (where the episode's last call
        went) may be empty.
        """
        urls = able.urls
        count = len(urls)
        if count < 2:
            return urls[:]  # its own: callers take out of it what they have tried
        if at in able.places and self._calls.get(at, 0) <= RUN_BOUND * self._all_calls / count + FEW_CALLS:
            first = at
        else:
            first = self._place(able, episode, task)
        here = able.places[first]
        after = urls[here - 1]
        return [first, after] if count == 2 else [first, after, urls[here - 2]]

    def _place(self, able: AbleEngines, episode: str, task: str) -> str:
        """The engine of a new run."""
        urls = able.urls
        count = len(urls)
        near = self._near.get(task, "") if task else ""
        if near not in able.places or not self._has_room(near, count):
            name = crc32((task or episode).encode("utf-8", "surrogatepass"))
            near = self._less(urls[name % count], urls[(name // count + 1 + name) % count])
            if not self._has_room(near, count):
                self._turn += 1
                any_two = self._turn * 2654435761
                near = self._less(near, self._less(urls[any_two % count], urls[(any_two >> 16) % count]))
            if task:
                if len(self._near) >= MAX_TASKS:
                    del self._near[next(iter(self._near))]
                self._near[task] = near
        self._note(near, count)
        return near

    def _has_room(self, url: str, count: int) -> bool:
        calls, runs = self._calls.get(url, 0), self._runs.get(url, 0)
        return (
            calls <= NEW_RUN_BOUND * self._all_calls / count + FEW_CALLS
            and runs <= NEW_RUN_BOUND * self._all_runs / count + FEW_CALLS
        )

    def _less(self, one: str, other: str) -> str:
        a, b = self._calls.get(one, 0), self._calls.get(other, 0)
        if a == b:
            a, b = self._runs.get(one, 0), self._runs.get(other, 0)
        return other if b < a else one

    def _note(self, url: str, count: int) -> None:
        """An episode began there. One that began long ago counts less."""
        if url not in self._runs:
            self._runs[url] = self._all_runs // count
            self._all_runs += self._runs[url]
        self._runs[url] += 1
        self._all_runs += 1
        if self._all_runs > 256 * count:
            self._runs = {name: runs // 2 for name, runs in self._runs.items()}
            self._all_runs = sum(self._runs.values())
