"""The way back of everything: a backup, while everything runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import TYPE_CHECKING

from aiohttp import web

from slipstream.contract import KeyScope
from slipstream.tenants import schema_of
from slipstream_backup import archive
from slipstream_backup.tenants import served_tenants
from slipstream_proxy.control.api.http import Ctx, Routes
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.control.storage.access import away
from slipstream_proxy.store.tables.driver import StoreError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TAR_TYPE = "application/x-tar"
SLOW_CLIENT_TIMEOUT_S = 600.0
"""Seconds after which a client that takes nothing is given up."""
BACKUP_ROUTES = Routes()


class _Reply(io.RawIOBase):
    """A reply's body, for a thread that writes a file."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response, self._loop = response, asyncio.get_running_loop()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        part = bytes(data)
        asyncio.run_coroutine_threadsafe(self._response.write(part), self._loop).result(SLOW_CLIENT_TIMEOUT_S)
        return len(part)


@BACKUP_ROUTES.add("GET", "/backup", (KeyScope.ADMIN,), result=TAR_TYPE)
async def get_backup(ctx: Ctx) -> web.StreamResponse:
    """Store, spool, adapters, keys and checkpoints as a tar file, to be unpacked into an empty data_dir."""
    deps, root = ctx.deps, ctx.deps.config.root
    if not await deps.health.check():  # a copy begun now would wait for the database as long as it is away
        raise away()
    try:
        tenants = await in_thread(served_tenants, deps.config)
        made = archive.staged(root, deps.store, deps.ingester, without=[schema_of(name) for name in tenants])
        stage = await in_thread(made.__enter__)
    except (StoreError, OSError) as e:
        raise Problem(503, f"no backup can be made: {e}", fix="see docs/operations.md, Back up and restore") from e
    try:
        response = web.StreamResponse(headers={"content-type": TAR_TYPE})
        await response.prepare(ctx.request)
        with contextlib.closing(_Reply(response)) as out:
            await in_thread(archive.write, out, root, stage, deps.config.adapters_dir, tenants)
        await response.write_eof()
        return response
    finally:
        await in_thread(made.__exit__, None, None, None)
