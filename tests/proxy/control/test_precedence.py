"""Ingestion stands aside while somebody waits for a reward to be taken, and no key keeps it from going on."""

from __future__ import annotations

import asyncio

from tests.support.records import call

from slipstream_proxy.control.shared.precedence import ANSWERS_FIRST, AT_ONCE_S, LOOK_INTERVAL_S, Aside, Precedence
from slipstream_proxy.control.storage import ingester as ingester_module


class Clock:
    """Seconds that pass while somebody sleeps, and ``after`` them what happens."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_work_rests_until_the_answer_is_there():
    precedence, clock = Precedence(), Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.slept >= 3 * LOOK_INTERVAL_S:
            precedence.waiting = 0

    aside = Aside(precedence, clock=clock, sleep=sleep)
    aside.step()
    assert clock.slept == 0, "nobody waits"
    with precedence.first():
        assert precedence.waiting == 1
    precedence.waiting = 1
    aside.step()
    assert 3 * LOOK_INTERVAL_S <= clock.slept < 4 * LOOK_INTERVAL_S


def test_work_that_always_meets_somebody_rests_for_no_more_than_half_of_the_time():
    precedence, clock = Precedence(), Clock()
    aside = Aside(precedence, clock=clock, sleep=clock.sleep)
    worked = 0.0
    with precedence.first():
        for _ in range(2000):
            aside.step()
            clock.now, worked = clock.now + 0.001, worked + 0.001
    assert 0.9 * worked < clock.slept <= AT_ONCE_S + worked + LOOK_INTERVAL_S
    assert precedence.waiting == 0


async def test_each_record_that_is_read_and_stored_lets_rewards_go_first(plane, monkeypatch):
    steps: list[int] = []

    class Counted(Aside):
        def step(self) -> None:
            steps.append(ANSWERS_FIRST.waiting)

    monkeypatch.setattr(ingester_module, "Aside", Counted)
    for n in range(3):
        await plane.call(f"e{n}", key="other")
    await plane.seen("e2", key="other")
    assert len(steps) >= 6, "once where a call is parsed, and once where it is stored"
    assert not any(steps)


async def test_a_reward_goes_first_for_as_long_as_it_is_written_down(plane, monkeypatch):
    await plane.call("e", key="other")
    await plane.seen("e", key="other")
    seen: list[int] = []
    put = plane.deps.mutations.put

    async def noting(*args, **options):
        seen.append(ANSWERS_FIRST.waiting)
        return await put(*args, **options)

    monkeypatch.setattr(plane.deps.mutations, "put", noting)
    rewarded = await plane.ask("POST", "/episodes/e/rewards", {"value": 1.0}, key="other", scopes=["inference", "reward"])  # fmt: skip
    assert rewarded[0] == 200 and seen[0] == 1
    assert (await plane.ask("GET", "/episodes/e", key="other", scopes=["inference"]))[0] == 200
    assert ANSWERS_FIRST.waiting == 0


async def test_what_a_large_commit_brings_is_told_in_several_turns(plane, monkeypatch):
    """331 calls of one commit kept the event loop for 20 ms, and so every reward of others."""
    turns, told = [0], []
    feed = plane.deps.feed
    committed = feed.committed

    def noting(items):
        told.append((turns[0], len(items)))
        committed(items)

    monkeypatch.setattr(feed, "committed", noting)

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    try:
        items = [call(f"e{n}") for n in range(100)]
        await plane.control._committed(items)
    finally:
        beside.cancel()
    assert sum(count for _, count in told) == 100 and max(count for _, count in told) <= 32
    assert len({turn for turn, _ in told}) == len(told) >= 4, "others have a turn between them"
