"""The engine plugin: it runs inside vLLM, and the proxy works without it.

vLLM loads it by itself (entry point ``vllm.general_plugins``) wherever this distribution is installed beside it. It
does two things:

- ``capture``: a call that asks for it gets its token ids and log-probabilities as packed binary in one field.
- ``adapters``: several API-server processes share the adapters that are loaded at run time.

With a vLLM that it does not know it changes nothing and logs so once.
"""

from __future__ import annotations

import logging
import multiprocessing

log = logging.getLogger("vllm.slipstream")

_registered = False


def register() -> None:
    """Called by vLLM in each of its processes. Only API servers are changed; engine cores and workers stay as they
    are.
    """
    global _registered
    name = multiprocessing.current_process().name
    if _registered or not (name == "MainProcess" or name.startswith("ApiServer")):
        return
    _registered = True
    from slipstream_vllm import versions

    why = versions.unsupported()
    if why is not None:
        log.warning("slipstream plugin is off: %s", why)
        return
    from slipstream_vllm import adapters, capture, packing

    capture.install()
    adapters.install()
    log.info("slipstream plugin %s is on", packing.VERSION)
