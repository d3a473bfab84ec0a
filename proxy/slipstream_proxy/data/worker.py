"""A data-plane worker: ``python -m slipstream_proxy.data.worker NUMBER FD`` with the configuration in
``SLIPSTREAM_CONFIG_JSON``.

``FD`` is the listening socket that the parent bound; without it the worker binds by itself (for tests).

Not compiled: it runs once, and chooses whether the others are.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.config import Config
from slipstream.shared.log import setup_logging
from slipstream_proxy.process import compiled
from slipstream_proxy.process.garbage import keep_started

IS_COMPILED = __name__ == "__main__" and compiled.use()

from slipstream_proxy.data.plane import Plane  # noqa: E402
from slipstream_proxy.data.server.acceptor import Acceptor  # noqa: E402
from slipstream_proxy.data.server.listener import sweep  # noqa: E402
from slipstream_proxy.data.tenants import TenantPlanes  # noqa: E402 - behind ``use``

if TYPE_CHECKING:
    from collections.abc import Iterable

log = logging.getLogger("slipstream_proxy.data.worker")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
"""``malloc.h``."""
GIVE_BACK_EVERY_S, SPARE_BYTES = 30.0, 32 * 2**20
"""Seconds between looks at the memory, and bytes by which it may grow before free pages are given back."""


def keep_memory() -> None:
    """Let glibc keep what is freed. Else large bodies make it give the top of its heap back and take it again with
    each call, and a third of a 30 KB call's time goes to page faults.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, size in ((_TRIM_THRESHOLD, 64 * 2**20), (_TOP_PAD, 2**20), (_MMAP_THRESHOLD, 4 * 2**20)):
            mallopt(option, size)


async def give_back() -> None:
    """Freed memory that a rush has left, to the operating system: beyond what ``keep_memory`` is for."""
    trim, least = getattr(ctypes.CDLL(None), "malloc_trim", None), _resident()
    while trim is not None:
        await asyncio.sleep(GIVE_BACK_EVERY_S)
        if _resident() > least + SPARE_BYTES:
            await asyncio.to_thread(trim, SPARE_BYTES)


def _resident() -> int:
    """Bytes; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


async def _save_metrics(plane: Plane) -> None:
    """For the scrape that another worker answers, and for `status`."""
    while True:
        await asyncio.to_thread(plane.metrics.save, plane.metrics_file, plane.metrics.parts())
        await asyncio.sleep(2.0)


async def _follow_control(plane: Plane) -> None:
    await plane.link.follow()


async def drain(plane: Plane, planes: Iterable[Plane] = ()) -> None:
    """Until nothing runs, or ``drain_timeout`` is over. New requests are answered, and their connections close.
    ``planes``: the tenants', too.
    """
    plane.state.draining = True
    loop = asyncio.get_running_loop()
    until = loop.time() + plane.config.proxy.drain_timeout
    while (any(p.services.in_flight for p in (plane, *planes)) or len(plane.state.rests)) and loop.time() < until:
        await asyncio.sleep(0.02)


async def serve(config: Config, number: int, sock: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT, then drain and flush the spool."""
    keyed = os.environ.get("SLIPSTREAM_KEYED")
    plane = Plane(config, number, keyed == "1" if keyed is not None else None)
    plane.metrics.resume(plane.metrics_file)
    tenants = TenantPlanes(plane, (_follow_control, _save_metrics))
    server = plane.make_server(tenants)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    listener = Acceptor(server, sock, plane.metrics)
    beside = (plane.link.follow(), tenants.follow(), sweep(server, plane.pools), _save_metrics(plane), give_back())
    tasks = [loop.create_task(t) for t in beside]
    log.info("worker %d is up%s", number, " (compiled)" if IS_COMPILED else "")
    await stop.wait()
    log.info("worker %d drains", number)
    await drain(plane, tenants)
    listener.close()
    for call in [call for one in tenants for call in one.services.in_flight]:
        call.client_gone()
        call.sink.break_off()
    await server.shutdown(2.0)
    for task in tasks:
        task.cancel()
    await tenants.close()
    await plane.close()


def main() -> int:
    import uvloop

    setup_logging()
    config = Config.model_validate_json(os.environ["SLIPSTREAM_CONFIG_JSON"])
    number, fd = int(sys.argv[1]), int(sys.argv[2])
    sock = socket.socket(fileno=fd)
    sock.setblocking(False)
    keep_memory()
    keep_started(20_000)
    uvloop.run(serve(config, number, sock))
    return 0


if __name__ == "__main__":
    sys.exit(main())
