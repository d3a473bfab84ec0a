"""``slipstream proxy``: check what can be wrong at the start, then run the parent process."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_proxy.data.plane import load_function
from slipstream_proxy.keys import Keys
from slipstream_proxy.parent import Parent, bind, is_loopback, lock

log = logging.getLogger(__name__)


def run(config: Config, config_path: Path | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code. Raises ``StartError`` or ``ConfigError`` before anything runs."""
    if config.proxy.redact:
        load_function(config.proxy.redact)
    keyed = bool(len(Keys(config.keys_file)))
    if not keyed and not is_loopback(config.proxy.host):
        raise StartError(
            f"proxy.host is {config.proxy.host} and there are no API keys: make one with `slipstream keys add`, or bind to 127.0.0.1"
        )
    fd = lock(config.root)
    try:
        return _run(config, keyed=keyed)
    finally:
        os.close(fd)


def _run(config: Config, *, keyed: bool) -> int:
    sock = bind(config.proxy.host, config.proxy.port)
    parent = Parent(config, sock, keyed=keyed)

    def stop(*_: Any) -> None:
        parent.stopping = True

    before = {s: signal.signal(s, stop) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        parent.start()
        parent.wait_up()
        if not parent.stopping:
            parent.announce()
        parent.watch()
    finally:
        clean = parent.stop()
        sock.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if clean else 1
