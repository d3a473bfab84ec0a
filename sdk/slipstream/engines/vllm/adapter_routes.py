"""Whether an engine takes adapters at run time. Where it takes none, that is the engine's condition and says nothing
about an adapter: the cause by what the engine answers, and the fix.

Proxy and doctor ask ``POST LOAD``. What vLLM 0.32 answers there:

- without ``VLLM_ALLOW_RUNTIME_LORA_UPDATING``: 404 ``{"detail": "Not Found"}``, whatever is asked;
- without ``--enable-lora``: 500 "LoRA is not enabled. Use --enable-lora …" for an adapter, 400 for an empty body;
- for an adapter that it does not find: 404 with the adapter's name and path in ``error.message``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from slipstream.engines.engine import LOAD_ROUTE, NO_RIGHT, UNLOAD_ROUTE, NoAdapters

PROBE_ADAPTER_NAME = "slipstream-probe"
NO_ROUTE = (404, 405, 501)
PLUGIN_KNOWS = ((0, 25), (0, 32))
"""``slipstream_vllm.versions.OLDEST_MINOR`` and ``NEWEST_MINOR``: with another vLLM the plugin is off."""
_LORA_OFF = re.compile(r"lora is not enabled|enable[-_]lora(?![-_\w])", re.IGNORECASE)
_OF_FILES = re.compile(
    r"\[Errno \d+\]|no such file|permission denied|stale file handle|input/output error|os error \d+"
    r"|deserializing header|incomplete metadata|header ?too ?large|invalid ?header",
    re.IGNORECASE,
)
"""How Python and safetensors say that a file is not there, not readable, or not whole yet."""
_OF_A_ROUTE = re.compile(r"not found|not allowed|not implemented|no (such )?route", re.IGNORECASE)
_AGAIN = "start vLLM again with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora and one API server"
"""vLLM refuses to start with this variable and several."""


def cause_of(status: int, text: str, asked: Sequence[str] = ()) -> NoAdapters | None:
    """What an answer of ``LOAD`` says of the engine. None: it takes adapters, and the answer is about this one.

    ``asked``: name and path of the adapter. An answer that quotes one is about the adapter.
    """
    if status < 400:
        return None
    own = text
    for word in sorted(filter(None, asked), key=len, reverse=True):
        own = own.replace(word, "")  # a path may say anything
    if _LORA_OFF.search(own):
        return NoAdapters.NO_LORA
    if status in NO_RIGHT:
        return NoAdapters.NO_RIGHT
    if status not in NO_ROUTE or own != text:
        return None
    message = _message(text)
    return NoAdapters.NO_ROUTES if message is None or _OF_A_ROUTE.search(message) else None


def lacks_files(status: int, text: str, asked: Sequence[str] = ()) -> bool:
    """Whether an answer of ``LOAD`` says that the engine cannot read the adapter's files: a mount that is late, missing
    or ill. vLLM answers 404 where the folder is not there, and quotes other errors of files with 400 or 500.
    """
    for word in sorted(filter(None, asked), key=len, reverse=True):
        text = text.replace(word, "")
    return status == 404 or (status >= 400 and _OF_FILES.search(text) is not None)


def _message(text: str) -> str | None:
    """``error.message`` of an answer in OpenAI's form. None: it has another form."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return str(error.get("message")) if isinstance(error, dict) else None


def fix_of(cause: NoAdapters, *, plugin: bool, version: str) -> str:
    """``plugin``: Slipstream's answers there. ``version``: of vLLM; empty if it does not say."""
    if cause is NoAdapters.NO_RIGHT:
        return f"set engine.api_key to the engine's own, and let the proxy reach {LOAD_ROUTE} and {UNLOAD_ROUTE}"
    if cause is NoAdapters.NO_LORA:
        return "start vLLM again with --enable-lora, --max-lora-rank and --max-loras"
    if plugin:
        return f"{_AGAIN}; with several API servers, SLIPSTREAM_ENGINE_ADAPTERS=1 in place of that variable"
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    oldest, newest = PLUGIN_KNOWS
    if len(numbers) == 2 and not oldest <= numbers <= newest:
        known = f"{oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
        return f"{_AGAIN}: the engine plugin knows vLLM {known} and is off with {version}"
    return f"{_AGAIN}, or with the engine plugin and SLIPSTREAM_ENGINE_ADAPTERS=1"
