"""The engine plugin: it runs inside vLLM, and the proxy works without it.

vLLM loads it by itself (entry point ``vllm.general_plugins``) wherever this distribution is installed beside it. It
does three things:

- ``capture``: a call that asks for it gets its token ids and log-probabilities as packed binary in one field.
- ``core_outputs``: the engine core sends those log-probabilities as plain floats.
- ``adapters``: several API-server processes share the adapters that are loaded at run time.

With a vLLM that it does not know it changes nothing and logs so once.
"""

from __future__ import annotations

import logging
import multiprocessing

log = logging.getLogger("vllm.slipstream")

_registered = False


def register() -> None:
    """Called by vLLM in each of its processes. API servers and the engine core are changed, workers stay as they are.
    The main process can be either, and the engine core may be forked from it.
    """
    global _registered
    name = multiprocessing.current_process().name
    serves = name == "MainProcess" or name.startswith("ApiServer")
    core = name == "MainProcess" or name.startswith("EngineCore")
    if _registered or not (serves or core):
        return
    _registered = True
    from slipstream_vllm import versions

    if core:
        _change_core(versions.unsupported(core=True))
    if serves:
        _change_api_server(versions.unsupported())


def _change_core(why_not: str | None) -> None:
    from slipstream_vllm import core_outputs

    if why_not is not None:
        log.warning("slipstream plugin leaves the engine core as it is: %s", why_not)
        return
    core_outputs.install_sender()


def _change_api_server(why_not: str | None) -> None:
    if why_not is not None:
        log.warning("slipstream plugin is off: %s", why_not)
        return
    from slipstream_vllm import adapters, capture, core_outputs, packing

    core_outputs.install_receiver()
    capture.install()
    adapters.install()
    log.info("slipstream plugin %s is on", packing.VERSION)
