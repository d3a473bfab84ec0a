"""Answers of an engine that are kept whole: an engine in wrong hands may send one without an end."""

from __future__ import annotations

import aiohttp

ANSWER_BYTES = 16 * 2**20
"""The longest of an engine's answers to our own questions. Its lists of models and its metrics are far shorter."""


async def whole_answer(reply: aiohttp.ClientResponse, most: int = ANSWER_BYTES) -> bytes:
    """The body. Raises ``ClientPayloadError`` where it is longer than ``most`` bytes, besides what aiohttp raises."""
    parts: list[bytes] = []
    size = 0
    async for part in reply.content.iter_any():
        size += len(part)
        if size > most:
            reply.close()
            raise aiohttp.ClientPayloadError(f"it answers with more than {most} bytes")
        parts.append(part)
    return b"".join(parts)
