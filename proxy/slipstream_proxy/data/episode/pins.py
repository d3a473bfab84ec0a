"""Which adapter serves an episode. Control plane and workers decide by one rule, ``assignment.py``.

The control plane is asked where an episode may have a pin already, or where its answer is evidence.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from slipstream_proxy.data.episode.running import Pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from slipstream_proxy.data.engines.control_link import ControlLink
    from slipstream_proxy.data.engines.live import LiveView
    from slipstream_proxy.data.episode.running import RunningEpisode
    from slipstream_proxy.data.observe.metrics import WorkerMetrics
    from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)


class EpisodePins:
    """Which adapter each running episode keeps, as one worker knows it."""

    def __init__(self, live: LiveView, link: ControlLink, metrics: WorkerMetrics) -> None:
        self._live, self._link, self._metrics = live, link, metrics
        self._shared: dict[tuple[str, str, str, str, str], dict[str, Pinned]] = {}
        self._waiting: dict[tuple[str, str, str], list[Callable[[], None]]] = {}
        """(key, episode, model) → who waits for its pin."""
        self._tasks: set[asyncio.Task[None]] = set()

    def known(self, episode: RunningEpisode, model: str) -> Pinned | None:
        """The episode's pin, if it has one."""
        if self._live.asks:
            self._link.tell()
        pin = episode.pins.get(model)
        if pin is None or pin.checked == self._live.version:
            return pin
        return self._checked(episode, model, pin)

    def make(
        self, episode: RunningEpisode, model: str, then: Callable[[], None], *, new: bool = False
    ) -> Pinned | None:
        """The pin of an episode that has none; None: ``then`` is called once it is there. ``new``: the episode begins
        now.

        Where there is nothing to choose the worker decides alone, and the control plane reads it in the call's record.
        """
        if not self._live.connected:
            return self._alone(episode, model, "local")
        if self._live.is_settled(model, new=new):
            return self._alone(episode, model, "sole")
        waiting = self._waiting.get((*episode.name, model))
        if waiting is not None:
            waiting.append(then)
            return None
        self._waiting[(*episode.name, model)] = [then]
        self._begin(self._ask(episode, model))
        return None

    def look_up(self, episode: RunningEpisode, model: str, then: Callable[[Pinned], None], *, new: bool) -> None:
        """Of a call that is not recorded: the adapter of its episode, or what is live. Nothing is pinned."""
        if not self._live.connected or self._live.is_settled(model, new=new):
            then(self._rule(episode, model, "local", split="off"))
        else:
            self._begin(self._look_up(episode, model, then))

    async def _look_up(self, episode: RunningEpisode, model: str, then: Callable[[Pinned], None]) -> None:
        answer = await self._link.pin(episode.name[0], episode.id, model, episode.task, "off", episode.tags)
        try:
            then(self._rule(episode, model, "local", split="off") if answer is None else _told(answer))
        except Exception:
            log.exception("a call failed after its adapter was told")

    def _begin(self, asking: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(asking)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _checked(self, episode: RunningEpisode, model: str, pin: Pinned) -> Pinned:
        """The pin, or the one that the episode moves to because no engine has its adapter any more."""
        if not self._live.has(pin.adapter):
            pin = self.move(episode, model, pin)
        pin.checked = self._live.version
        return pin

    def move(self, episode: RunningEpisode, model: str, pin: Pinned) -> Pinned:
        """Its new pin, where its adapter is loaded nowhere any more."""
        self._metrics.add("slipstream_pin_moves_total", "")
        return self._set(episode, model, self.moved(model, pin))

    def moved(self, model: str, pin: Pinned) -> Pinned:
        """What ``move`` moves to. Nothing is pinned."""
        return Pinned(self._live.replacement(model, pin.adapter), "live", "moved", "")

    def _alone(self, episode: RunningEpisode, model: str, how: str) -> Pinned:
        self._metrics.add("slipstream_pins_total", 'by="rule"' if how == "sole" else 'by="worker"')
        pin = self._set(episode, model, self._rule(episode, model, how, split=episode.split))
        return self._checked(episode, model, pin)

    def _rule(self, episode: RunningEpisode, model: str, how: str, *, split: str) -> Pinned:
        decided = self._live.decide(model, episode.name[0], episode.task, episode.id, split, episode.tags)
        return Pinned(decided.adapter, decided.arm, how, decided.chances)

    def _set(self, episode: RunningEpisode, model: str, pin: Pinned) -> Pinned:
        """Episodes share the dict that most of them have: a worker remembers a hundred thousand."""
        key = (model, pin.adapter, pin.arm, pin.how, pin.chances)
        alone = self._shared.get(key)
        if alone is None:
            if len(self._shared) >= 1024:
                self._shared.clear()
            alone = self._shared[key] = {model: pin}
        others = {name: pin for name, pin in episode.pins.items() if name != model}
        episode.pins = {**others, **alone} if others else alone
        return alone[model]

    async def _ask(self, episode: RunningEpisode, model: str) -> None:
        answer = await self._link.pin(episode.name[0], episode.id, model, episode.task, episode.split, episode.tags)
        if answer is None:
            self._alone(episode, model, "local")
        else:
            self._set(episode, model, _told(answer))
            self._metrics.add("slipstream_pins_total", 'by="control"')
        for then in self._waiting.pop((*episode.name, model), ()):
            try:
                then()
            except Exception:
                log.exception("a call failed after its pin")

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()


def _told(answer: JsonObject) -> Pinned:
    """By the control plane."""
    return Pinned(answer["adapter"], str(answer.get("arm", "live")), "control", str(answer.get("chances", "")))
