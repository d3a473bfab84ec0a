"""Writes down who changed what by hand, and what the gate decided; and which keys were made on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time

from slipstream.contract import AuditEntry
from slipstream.errors import SlipstreamError
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import end, in_thread
from slipstream_proxy.control.storage.access import StoreAccess
from slipstream_proxy.control.storage.feed import EndlessReplies
from slipstream_proxy.control.storage.mutation_log import Mutations
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.keys import TENANT_REMOVED_ACTION, Keys, log_of
from slipstream_proxy.log.ids import new_id

log = logging.getLogger(__name__)
SHOWN_WITHIN = 2.0
"""Seconds that an answer waits for its entry to be in the store."""
LOOK_EVERY = 1.0


async def decided(mutations: Mutations, action: str, target: str, detail: JsonObject) -> None:
    """Keep an entry of what the gate did by itself."""
    entry = AuditEntry(id=new_id(), at=time.time(), name="gate", action=action, target=target, detail=detail)
    await mutations.keep("audit", entry.model_dump(mode="json"))


class AuditTrail:
    """``start`` follows the log of keys beside ``keys.json``, which the command line writes."""

    def __init__(self, access: StoreAccess, endless: EndlessReplies) -> None:
        self.access, self.endless = access, endless
        self._keys: Keys | None = None
        self._read = 0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(), name="audit")]

    async def stop(self) -> None:
        await end(self._tasks)

    async def note(
        self, key: str, action: str, target: str, detail: JsonObject | None = None, *, write: str | None = None
    ) -> None:
        """Keep an entry. The change is made already: if the entry is lost, the change stands and the log names it.

        ``write``: the identity of the write that it is about (``Ctx.write``).
        """
        try:
            await self.put(key, action, target, detail or {}, write=write and f"{write}-audit")
        except Problem as p:
            log.error("%s of %s by key %s is not in the audit log: %s", action, target, key, p)

    async def put(self, key: str, action: str, target: str, detail: JsonObject, *, write: str | None = None) -> None:
        """Keep an entry that is all there is of the change. Raises ``Problem`` 503 if it is lost."""
        entry = AuditEntry(
            id=new_id(),
            at=self.access.now(),
            key=key,
            name=self.name_of(key),
            action=action,
            target=target,
            detail=detail,
        )
        await self.access.mutate("audit", entry.model_dump(mode="json"), wait=SHOWN_WITHIN, id=write)

    def name_of(self, key: str) -> str | None:
        """The name of an API key; None: it has none, or is gone."""
        try:
            self._keys = self._keys or Keys(self.access.config.keys_file)
            tenant = self.access.config.tenant
            known = self._keys.list()  # an operator acts in a tenant's place, too
            return next((k.name for k in known if k.id == key and (k.tenant in ("", tenant))), None)
        except SlipstreamError:
            return None

    async def _follow(self) -> None:
        while True:
            try:
                if self._keys is not None:
                    self.endless.end_without(self._keys.secrets())
                if self.access.store_answers:
                    await self._catch_up()
            except Exception as e:
                log.warning("the log of keys cannot be read: %s", e)
            await asyncio.sleep(LOOK_EVERY)

    async def _catch_up(self) -> None:
        path = log_of(self.access.config.keys_file)
        try:
            size = path.stat().st_size
        except OSError:
            return
        if size == self._read:
            return
        text = await in_thread(path.read_bytes)
        read = [entry for line in text.splitlines(keepends=True) if (entry := entry_of(line)) is not None]
        tenant = self.access.config.tenant  # the operator sees all
        entries = [entry for entry in read if not tenant or entry.detail.get("tenant") == tenant]
        ends = [n for n, entry in enumerate(entries) if tenant and entry.action == TENANT_REMOVED_ACTION]
        entries = entries[ends[-1] + 1 :] if ends else entries  # those before were another one's of its name
        known = await self.access.ask(self.access.store.audit.known, [e.id for e in entries])
        for entry in entries:
            if entry.id not in known:
                await self.access.mutate("audit", entry.model_dump(mode="json"), wait=SHOWN_WITHIN)
        self._read = len(text)


def entry_of(line: bytes) -> AuditEntry | None:
    """A line of the log of keys; None: it is being written, or is none."""
    if not line.endswith(b"\n"):
        return None
    try:
        said = json.loads(line)
        return AuditEntry(
            id="k-" + hashlib.blake2b(line, digest_size=10).hexdigest(),
            at=float(said["at"]),
            name=str(said["by"]),
            action=str(said["action"]),
            target=str(said["key"]),
            detail=said["detail"],
        )
    except (ValueError, KeyError, TypeError):
        return None
