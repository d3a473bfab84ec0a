"""What JSON takes in memory, as estimated from its bytes."""

from __future__ import annotations

import json
import tracemalloc

import orjson
import pytest

from slipstream_proxy.parse_weight import MAX_REQUEST_OBJECT_BYTES, parse_weight, too_heavy, values_weight

COUNT = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"{}," * COUNT + b"{}]",
        b"[" + b"[]," * COUNT + b"[]]",
        b"[" + b'{"a":1},' * COUNT + b"{}]",
        b"[" + b"123456789," * COUNT + b"1]",
        b"[" + b'"ab",' * COUNT + b"1]",
        json.dumps(["ünï ✓ 𝄞" * COUNT], ensure_ascii=False).encode(),
        json.dumps([chr(0x1D11E) * COUNT]).encode(),
        b'["' + b"lorem ipsum " * COUNT + b'"]',
    ],
)
def test_it_takes_about_as_much_as_estimated_or_less(body):
    tracemalloc.start()
    read = orjson.loads(body)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert read and parse_weight(body) >= 0.75 * taken


def test_what_is_too_heavy():
    bomb = b"[" + b'{"abcdef":1},' * (MAX_REQUEST_OBJECT_BYTES // 232) + b"{}]"
    assert too_heavy(bomb) and not too_heavy(bomb, 2 * MAX_REQUEST_OBJECT_BYTES) and not too_heavy(bomb[:-3000])
    assert not too_heavy(b"[" + b"lorem ipsum, " * 2_000_000)
    assert not too_heavy(b"[" * 2**20), "what is small is never too heavy"
    assert values_weight(b'{"a":[1,2]}') == 432
