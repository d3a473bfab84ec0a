"""``slipstream proxy``: check what can be wrong at the start, then run the parent process."""

from __future__ import annotations

import asyncio
import logging
import os

from slipstream import __version__
from slipstream.config import Config
from slipstream.shared.files import check_format, keep_private
from slipstream.shared.functions import load_function
from slipstream_proxy.keys import Keys
from slipstream_proxy.process.descriptors import raise_limit
from slipstream_proxy.process.parent import Parent, bind, check_bind, lock
from slipstream_proxy.process.settings_file import SettingsFile

log = logging.getLogger(__name__)


def run(config: Config, file: SettingsFile | None = None, *, new_instance: bool = False) -> int:
    """Serve until SIGTERM or Ctrl-C. → Exit code. Raises ``StartError`` or ``ConfigError`` before anything runs.

    ``file``: what ``config`` was read from; it is watched. ``new_instance``: of a copied data folder a proxy of its own
    is made.
    """
    if config.proxy.redact:
        load_function("proxy.redact", config.proxy.redact)
        log.info("proxy.redact changes what is stored and shown; agents get replies as the engine sends them")
    raise_limit()
    keyed = bool(len(Keys(config.keys_file)))
    check_bind(config, keyed=keyed)
    keep_private(config.root, config.adapters_dir)
    fd = lock(config.root)
    try:
        check_format(config.root, __version__)
        if new_instance or config.store_url.startswith("postgres"):
            from slipstream_proxy.control.storage import identity  # a parent needs the store's modules for that alone
            from slipstream_proxy.store import refuse_newer

            refuse_newer(config.store_url)
            if new_instance:
                identity.make_new(config)
            identity.refuse_twin(config)
        return _run(config, file, keyed=keyed)
    finally:
        os.close(fd)


def _run(config: Config, file: SettingsFile | None, *, keyed: bool) -> int:
    sock = bind(config.proxy.host, config.proxy.port)
    try:
        clean = asyncio.run(Parent(config, sock, keyed=keyed, file=file).run())
    finally:
        sock.close()
    return 0 if clean else 1
