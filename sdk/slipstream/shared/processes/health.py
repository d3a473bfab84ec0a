"""Does a server answer?"""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TIMEOUT_SECONDS = 5.0


def _get(url: str) -> bool:
    try:
        with _DIRECT.open(url, timeout=TIMEOUT_SECONDS) as reply:
            return 200 <= int(reply.status) < 300
    except (OSError, HTTPException, ValueError):  # nobody there, a refusal, an answer that is no HTTP
        return False


async def answers(url: str) -> bool:
    """True for a 2xx within ``TIMEOUT_SECONDS``. A proxy of the environment is not used."""
    return await asyncio.to_thread(_get, url)
