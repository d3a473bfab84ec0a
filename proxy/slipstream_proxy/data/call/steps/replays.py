"""Idempotent calls: a request that is sent again under its key gets the reply it got before."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream_proxy.data.call.step import CallStep

if TYPE_CHECKING:
    from slipstream_proxy.data.call.parts import Call


@dataclass(slots=True, frozen=True)
class Replay:
    """A completed reply under an idempotency key."""

    body_hash: bytes
    status: int
    block: bytes
    body: bytes
    stream: bool


class Replays(CallStep):
    """The latest completed replies, up to ``limit`` bytes in all."""

    def __init__(self, limit: int = 32 * 2**20) -> None:
        self._limit = limit
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, bytes], Replay] = OrderedDict()

    def get(self, key: str, idempotency: bytes, body_hash: bytes) -> Replay | None:
        found = self._kept.get((key, idempotency))
        return found if found is not None and found.body_hash == body_hash else None

    def put(self, key: str, idempotency: bytes, replay: Replay) -> None:
        if len(replay.body) > self._limit // 8:
            return
        before = self._kept.pop((key, idempotency), None)
        self._bytes += len(replay.body) - (len(before.body) if before else 0)
        self._kept[(key, idempotency)] = replay
        while self._bytes > self._limit:
            self._bytes -= len(self._kept.popitem(last=False)[1].body)

    def request(self, call: Call) -> bool:
        idempotency = call.asked.request.idempotency
        if idempotency is None or call.asked.key is None:
            return False
        found = self.get(call.asked.key.id, idempotency, call.asked.body_hash)
        if found is None:
            return False
        call.end()
        if found.stream:
            call.sink.send_head(found.status, found.block)
            call.sink.send_end(found.body)
        else:
            call.sink.send_whole(found.status, found.block, found.body)
        return True

    def recorded(self, call: Call, status: int, outcome: str) -> None:
        idempotency = call.asked.request.idempotency
        if idempotency is None or call.asked.key is None or outcome != "ok":
            return
        body = b"".join((*call.reply.kept, call.reply.shown))
        replay = Replay(call.asked.body_hash, status, call.response_fields(), body, stream=call.reply.stream)
        self.put(call.asked.key.id, idempotency, replay)
