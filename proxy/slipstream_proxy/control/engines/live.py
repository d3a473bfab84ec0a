"""What is live: one object, streamed to workers as NDJSON, and kept in ``live.json`` for those that start alone."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.shared.backoff import rest
from slipstream_proxy.json_types import JsonObject

log = logging.getLogger(__name__)
HEARTBEAT_INTERVAL_S = 5.0
MAX_FORGOTTEN_EPISODES = 1000
"""Forgotten episodes that workers are told of."""


@dataclass(slots=True)
class ModelLive:
    """One trained model's part. ``arms``: (adapter, arm, share of new episodes). ``kept``: group of episodes → the
    adapter that it keeps. ``first``: who alone gets an arm; empty: all.
    """

    base: str
    live: str
    arms: Sequence[tuple[str, str, float]] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    first: Sequence[str] = ()


class LiveState:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.value: JsonObject = {"models": {}, "engines": []}
        self.hold: JsonObject | None = None
        """The hold of the engines: ``worker``, and ``until`` in seconds since the epoch."""
        self.forgotten: dict[str, None] = {}
        """Forgotten episodes of which calls still come (``key/mark_of``), the newest last."""
        self.version = 0
        self._told: asyncio.Event = asyncio.Event()

    def read(self) -> JsonObject:
        """What was live before, from the file; empty when there is none."""
        try:
            read = json.loads(self.path.read_text())
            return read if isinstance(read, dict) else {}
        except (OSError, ValueError):
            return {}

    def set(
        self,
        models: dict[str, ModelLive],
        engines: list[JsonObject],
        gone: dict[str, tuple[str, float]] | None = None,
        *,
        asks: bool = False,
    ) -> bool:
        """Publish. Returns whether anything is different. ``gone``: version that serves no more → its state, and since
        when. ``asks``: the control plane wants to be told when a call of an agent comes.
        """
        value: JsonObject = {
            "models": {
                name: {
                    "base": m.base,
                    "live": m.live,
                    "arms": [list(a) for a in m.arms],
                    **({"kept": {**m.kept}} if m.kept else {}),
                    **({"first": list(m.first)} if m.first else {}),
                }
                for name, m in sorted(models.items())
            },
            "engines": engines,
        }
        if gone:
            value["gone"] = {name: list(what) for name, what in gone.items()}
        if asks:
            value["asks"] = True
        if self.hold is not None:
            value["hold"] = self.hold
        if self.forgotten:
            value["forgotten"] = list(self.forgotten)[-MAX_FORGOTTEN_EPISODES:]
        if value == self.value and self.version:
            return False
        self.value = value
        self.version += 1
        self._save()
        told, self._told = self._told, asyncio.Event()
        told.set()
        return True

    def _save(self) -> None:
        try:
            fd, temp = tempfile.mkstemp(dir=self.path.parent, prefix=".live-")
            with os.fdopen(fd, "w") as file:
                json.dump(self.value, file)
            Path(temp).replace(self.path)
        except OSError as e:
            log.error("live.json cannot be written: %s", e)

    async def lines(self, heartbeat: float = HEARTBEAT_INTERVAL_S) -> AsyncIterator[bytes]:
        """The object now and at each change, ``{}`` in between."""
        sent = -1
        while True:
            told = self._told
            if sent != self.version:
                sent = self.version
                yield json.dumps(self.value).encode() + b"\n"
                continue
            if not await rest(heartbeat, told):
                yield b"{}\n"
