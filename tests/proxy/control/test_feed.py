from __future__ import annotations

import asyncio
import json
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from slipstream_proxy.control.storage.feed import Feed


async def take(lines, count: int) -> list[tuple[str, str, dict]]:
    """The next events as (name, id, data), comments left out."""
    found: list[tuple[str, str, dict]] = []
    while len(found) < count:
        text = (await asyncio.wait_for(anext(lines), 5)).decode()
        for block in text.strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in fields:
                found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


async def test_what_comes_after_is_told_in_order():
    feed = Feed()
    feed.publish("call", "k", call="old")
    lines = feed.lines(None, None)
    await anext(lines)
    feed.publish("call", "k", call="c1", episode="e1", key="k")
    feed.publish("step", None, step=3, batch=None)
    (one, two) = await take(lines, 2)
    assert (one[0], one[2]) == ("call", {"call": "c1", "episode": "e1", "key": "k"})
    assert (two[0], two[2]) == ("step", {"step": 3})


async def test_a_key_is_told_of_its_own_and_of_what_is_everybodys():
    feed = Feed()
    lines = feed.lines(None, "mine")
    await anext(lines)
    feed.publish("call", "other", call="c1")
    feed.publish("call", "mine", call="c2")
    feed.publish("adapter", None, adapter="m@1")
    assert [e[2] for e in await take(lines, 2)] == [{"call": "c2"}, {"adapter": "m@1"}]


async def test_a_silent_feed_beats():
    lines = Feed().lines(None, None, heartbeat=0.01)
    assert (await anext(lines)).startswith(b"retry:")
    assert (await asyncio.wait_for(anext(lines), 5)).startswith(b":")


@given(st.integers(1, 12), st.integers(0, 40), st.integers(0, 40))
def test_a_reader_that_comes_back_misses_nothing_or_is_told(kept, before, after):
    async def run() -> None:
        feed = Feed(kept)
        for i in range(before):
            feed.publish("call", None, call=f"a{i}")
        seen = f"{feed.epoch}-{feed.last}"
        for i in range(after):
            feed.publish("call", None, call=f"b{i}")
        feed.publish("call", None, call="end")
        found = await take(feed.lines(seen, None), 1 if after + 1 > kept else after + 1)
        if after + 1 > kept:
            assert found[0][0] == "reset"
            assert found[0][1] == f"{feed.epoch}-{feed.last}"
        else:
            assert [e[2]["call"] for e in found] == [*(f"b{i}" for i in range(after)), "end"]

    asyncio.run(run())


async def test_another_start_and_nonsense_are_reset():
    feed = Feed()
    for last in ("00000000-0", f"{feed.epoch}-7", f"{feed.epoch}-x", "nonsense"):
        assert (await take(feed.lines(last, None), 1))[0][0] == "reset", last


async def test_readers_that_never_read_cost_no_memory():
    feed = Feed(256)
    readers = [feed.lines(None, None) for _ in range(50)]
    for lines in readers:
        await anext(lines)
    for i in range(256):
        feed.publish("call", "k", call=f"c{i}", episode="e")
    tracemalloc.start()
    for i in range(50_000):
        feed.publish("call", "k", call=f"c{i}", episode="e")
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 200_000
    assert (await take(readers[0], 1))[0][0] == "reset"


async def test_an_event_is_written_once_for_all_readers_and_they_take_turns(monkeypatch):
    """Sixteen readers of a key that calls as fast as it can took half of the control plane's time."""
    made = []
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: made.append(1) or dumps(*args, **kwargs))
    feed = Feed()
    readers = [feed.lines(None, None) for _ in range(16)]
    for lines in readers:
        await anext(lines)
    for i in range(1000):
        feed.publish("call", "k", call=f"c{i}", episode="e")
    pieces = {lines: [] for lines in readers}
    order = []

    async def follow(lines) -> None:
        while sum(piece.count(b"event:") for piece in pieces[lines]) < 1000:
            pieces[lines].append(await anext(lines))
            order.append(lines)

    await asyncio.gather(*(follow(lines) for lines in readers))
    assert len(made) == 1000
    assert len({b"".join(found) for found in pieces.values()}) == 1
    assert set(order[:16]) == set(readers), "each had a piece before anybody had a second one"
