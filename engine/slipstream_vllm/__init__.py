"""The engine plugin: it runs inside vLLM, and the proxy works without it.

vLLM loads it by itself (entry point ``vllm.general_plugins``) wherever this distribution is installed beside it. It
does this:

- ``capture``: a call that asks for it gets its token ids and log-probabilities as packed binary in one field.
- ``core_outputs``: the engine core sends those log-probabilities as plain floats.
- ``token_logprobs``: on a GPU, they are computed by kernels that use all of it.
- ``adapters``: several API-server processes share the adapters that are loaded at run time.
- ``prefetch``: an adapter is read while the engine goes on with its streams.
- ``adapter_slots``: adapters take turns where more are asked for than vLLM has slots, and their use is counted.
- ``mends``: on a CPU, calls to the base model get no adapter's weights, heads are turned by their own positions, and
  models in INT8 take adapters. Calls to a model with a tokenizer of Mistral's own are answered.
- ``fetch``: adapters come from the proxy where there is no shared folder.
- ``whole_adapters``: an adapter of which vLLM would ignore a part is refused.
- ``forks``: vLLM starts sooner, because it does not import itself anew for each of its processes.
- ``ahead``: on a GPU, because the kernels that a start needs are compiled while it loads the model.

With a vLLM that it does not know it changes nothing and logs so once.
"""

from __future__ import annotations

import logging
import multiprocessing

log = logging.getLogger("vllm.slipstream")

_installed: set[str] = set()


def parts_of(process: str) -> list[str]:
    """What is changed in a process of vLLM, by its name. The main process can be an API server and an engine core, and
    a fork of it has what it has: vLLM loads no plugin twice.
    """
    if process == "MainProcess":
        return ["start", "core", "lora", "worker", "api"]
    if process.startswith("ApiServer"):
        return ["api"]
    return ["core", "lora", "worker"] if process.startswith("EngineCore") else ["lora", "worker"]


def register() -> None:
    """Called by vLLM in each of its processes. A process that was forked has its parent's changes already."""
    for part in parts_of(multiprocessing.current_process().name):
        if part not in _installed:
            _installed.add(part)
            _CHANGES[part]()


def _put(change: str, without: str, level: int = logging.DEBUG) -> None:
    """Make the change that ``module:function`` makes. ``without``: what is logged of a vLLM that it does not fit."""
    from slipstream_vllm.versions import resolve

    try:
        resolve(f"slipstream_vllm.{change}")()
    except (ImportError, AttributeError) as e:
        log.log(level, "slipstream plugin %s: %s", without, e)


def _change_start() -> None:
    _put("forks:install", "leaves the start as it is")
    _put("ahead:install", "compiles no kernels ahead")


def _change_core() -> None:
    from slipstream_vllm import adapter_slots, core_outputs, prefetch, versions

    why = versions.unsupported("core")
    if why is not None:
        log.warning("slipstream plugin leaves the engine core as it is: %s", why)
        return
    core_outputs.install_sender()
    if (why := versions.unsupported("prefetch")) is None:
        prefetch.install_core()
    else:
        log.warning("slipstream plugin reads no adapters ahead: %s", why)
    if (why := versions.unsupported("slots")) is None:
        adapter_slots.install_core()
    else:
        log.warning("slipstream plugin gives adapters no turns: %s", why)


def _change_worker() -> None:
    from slipstream_vllm import versions

    if versions.unsupported("core") is None:
        _put("token_logprobs:install", "leaves the sampler as it is")
    _put("forks:warm_up_sooner", "leaves the engine's warm-up as it is")


def _change_lora() -> None:
    from slipstream_vllm import mends

    try:
        if mends.install():
            log.info("slipstream plugin keeps adapters out of the base model's calls")
    except (ImportError, AttributeError, TypeError) as e:
        log.warning("slipstream plugin cannot mend this vLLM on a CPU; base calls may get an adapter: %s", e)
    _put("fetch:install_worker", "fetches no adapters from the proxy", logging.WARNING)
    _put("mends:compile_for_any_number", "leaves the adapters' kernels as they are")
    _put("adapter_slots:install_worker", "counts no loads of adapters")
    _put("whole_adapters:install", "cannot tell whether this vLLM ignores parts of an adapter", logging.WARNING)


def _change_api_server() -> None:
    from slipstream_vllm import versions

    why = versions.unsupported()
    if why is not None:
        log.warning("slipstream plugin is off: %s", why)
        return
    from slipstream_vllm import adapters, capture, core_outputs, packing, prefetch

    _put("mends:install_grammar", "leaves Mistral's grammar as it is")
    _put("fetch:install_resolver", "resolves no adapters", logging.WARNING)
    core_outputs.install_receiver()
    capture.install()
    adapters.install()
    if versions.unsupported("core") is None and versions.unsupported("prefetch") is None:
        prefetch.install_api()
    log.info("slipstream plugin %s is on", packing.PACKING_VERSION)


_CHANGES = {
    "start": _change_start,
    "core": _change_core,
    "lora": _change_lora,
    "worker": _change_worker,
    "api": _change_api_server,
}
