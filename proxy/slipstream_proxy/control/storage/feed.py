"""What has just changed, for pages that stay open, and replies that go on until their reader leaves.

A ring of small events, which name things and do not hold them. Readers are places in the ring, so a slow one costs no
memory: what it missed is gone, and it is told so by a ``reset``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from slipstream.shared.backoff import rest
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.log.records import Mutation
from slipstream_proxy.store.values import RecordedCall

__all__ = ["EndlessReplies"]

Secret = tuple[str, float]
"""An API key's id, and when the secret was made."""


class EndlessReplies:
    """They end when the control plane does, or when their reader's key is revoked. Without that, the control plane's
    stop would wait for them until its patience is over.
    """

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], Secret | None] = {}

    @contextmanager
    def one(self, secret: Secret | None = None) -> Iterator[None]:
        """The running task answers such a request meanwhile. ``secret``: with which it is read, if it needs one."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[task] = secret
        try:
            yield
        finally:
            del self._tasks[task]

    def end_without(self, secrets: Collection[Secret]) -> None:
        """End those whose secret is none of these any more."""
        for task, secret in list(self._tasks.items()):
            if secret is not None and secret not in secrets:
                task.cancel()

    async def end(self, _: object = None) -> None:
        """End all of them: for ``Application.on_shutdown``."""
        for task in list(self._tasks):
            task.cancel()


FeedName = Literal["call", "episode", "reward", "group", "adapter", "step", "status"]
MAX_KEPT_EVENTS = 4096
"""Events in the ring, about half a kilobyte each."""
EVENTS_PER_PIECE = 128
"""Events that a reader gets before others have a turn."""
HEARTBEAT_INTERVAL_S = 10.0
STEP_KINDS = frozenset({"step", "skipped", "undone"})
ADAPTER_KINDS = frozenset({"adapter", "canary", "promote", "rollback", "refused", "live", "accept"})


@dataclass(slots=True)
class FeedEvent:
    """One event. ``key``: whose it is (the API key's id); None: everybody's."""

    number: int
    name: str
    key: str | None
    ids: Mapping[str, str | int | None]
    _text: bytes = b""

    def text(self, epoch: str) -> bytes:
        """As its readers get it: made once for all of them, and not at all while nobody looks."""
        if not self._text:
            data = json.dumps({k: v for k, v in self.ids.items() if v is not None}, default=str)
            self._text = _text(self.name, f"{epoch}-{self.number}", data)
        return self._text


def _text(name: str, id: str, data: str) -> bytes:
    return f"event: {name}\nid: {id}\ndata: {data}\n\n".encode()


class Feed:
    """Lives in the control plane's event loop. Numbers start again with each start: ``epoch`` tells starts apart."""

    def __init__(self, kept: int = MAX_KEPT_EVENTS) -> None:
        self.epoch = secrets.token_hex(4)
        self.last = 0
        """Number of the newest event; the first has 1."""
        self.readers = 0
        self._ring: deque[FeedEvent] = deque(maxlen=kept)
        self._told = asyncio.Event()

    def publish(self, name: FeedName, owner: str | None = None, /, **ids: str | int | None) -> None:
        """Append an event. ``owner``: the key that it belongs to. ``ids`` name what changed; a None is left out."""
        self._append(name, owner, ids)
        self._wake()

    def committed(self, items: Sequence[Item]) -> None:
        """Events of what the store has just taken in; of an episode one, however many of its calls came."""
        touched: dict[tuple[str, str], None] = {}
        for item in items:
            if isinstance(item, RecordedCall):
                head = item.head
                self._append("call", head.key, {"call": head.id, "episode": head.episode, "key": head.key})
                touched[head.key, head.episode] = None
            else:
                touched |= dict.fromkeys(self._mutated(item))
        for key, episode in touched:
            self._append("episode", key, {"episode": episode, "key": key})
        if items:
            self._append("status", None, {})
            self._wake()

    def _mutated(self, item: Mutation) -> Iterable[tuple[str, str]]:
        """→ Episodes (key, id) that it changed."""
        data = item.data
        match item.op:
            case "reward":
                key, episode, name = data["key"], data["episode"], data["reward"].get("name")
                self._append("reward", key, {"episode": episode, "key": key, "name": name})
                return [(key, episode)]
            case "done" | "episode":
                return [(data["key"], data["episode"])]
            case "delete" if data.get("key") is not None:
                return [(data["key"], data["episode"])]
            case "scores":
                key = data.get("key")
                self._append("group", key, {"group": data["group"], "key": key})
                names = {score["episode"] for score in data["scores"].get("scores", ())} if key else ()
                for episode in names:
                    self._append("reward", key, {"episode": episode, "key": key})
                return [(str(key), episode) for episode in names]
            case "ack":
                ack = data["ack"]
                self._append("step", None, {"batch": data["batch"], "step": ack.get("step"), "outcome": ack["outcome"]})
                members = (data.get("members") or {}).get("episodes", ())
                for key, group in dict.fromkeys((key, group) for key, _, group, *_ in members):
                    self._append("group", key, {"group": group, "key": key, "batch": data["batch"]})
                return [(key, episode) for key, episode, *_ in members]
            case "adapter":
                self._append("adapter", None, {"adapter": data["name"], "state": data.get("state")})
            case "event":
                self.told(str(data.get("kind")))
        return ()

    def told(self, kind: str) -> None:
        """A training event of this kind came."""
        name = "step" if kind in STEP_KINDS else "adapter" if kind in ADAPTER_KINDS else "status"
        self._append(name, None, {"kind": kind})

    def _append(self, name: str, key: str | None, ids: dict[str, str | int | None]) -> None:
        self.last += 1
        self._ring.append(FeedEvent(self.last, name, key, ids))

    def _wake(self) -> None:
        told, self._told = self._told, asyncio.Event()
        told.set()

    def place_of(self, last_id: str | None) -> int | None:
        """Where a reader goes on that has seen the event ``last_id``; None: what came since is not known any more."""
        if not last_id:
            return self.last
        epoch, _, number = last_id.partition("-")
        if epoch != self.epoch or not number.isdecimal() or int(number) > self.last:
            return None
        return int(number) if int(number) >= self._oldest() else None

    def _oldest(self) -> int:
        """The number before the oldest event that is kept."""
        return self.last - len(self._ring)

    async def lines(
        self, last_id: str | None, key: str | None, *, heartbeat: float = HEARTBEAT_INTERVAL_S
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events from ``last_id`` on, a comment after ``heartbeat`` seconds of silence. Endless.

        ``key``: whose events besides everybody's; None: all.
        """
        place = self.place_of(last_id)
        yield b"retry: 1000\n\n"
        while True:
            told = self._told
            if place is None or place < self._oldest():
                place = self.last
                yield _text("reset", f"{self.epoch}-{place}", "{}")
            if place < self.last:
                begin = place - self._oldest()
                some = [self._ring[i] for i in range(begin, min(begin + EVENTS_PER_PIECE, len(self._ring)))]
                place = some[-1].number
                if text := b"".join(e.text(self.epoch) for e in some if key is None or e.key in (None, key)):
                    yield text
                await asyncio.sleep(0)
                continue
            if not await rest(heartbeat, told):
                yield b": still here\n\n"
