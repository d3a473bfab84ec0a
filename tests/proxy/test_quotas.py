"""Quotas of calls and tokens are exact over workers."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.dataplane import ASK, post

from slipstream.settings import QuotaConfig
from slipstream_proxy.data.access import quotas
from slipstream_proxy.data.access.quotas import NeedsGrant, QuotaTable
from slipstream_proxy.data.call.step import CallSteps
from slipstream_proxy.data.call.steps.quotas import UNCHECKED_METRIC, Quotas
from slipstream_proxy.data.observe.metrics import WorkerMetrics
from slipstream_proxy.data.wire.errors import RequestRefused


def take_all(path: Path, number: int, found: multiprocessing.Queue[int]) -> None:
    table = QuotaTable(QuotaConfig(calls_per_day=1000), path, 4, number)
    served = 0
    for _ in range(1000):
        try:
            table.enter()
        except RequestRefused as e:
            assert e.status == 429 and "calls_per_day of 1000" in e.message
            break
        table.leave()
        served += 1
    found.put(served)


def test_four_workers_serve_exactly_the_quota(tmp_path: Path) -> None:
    found: multiprocessing.Queue[int] = multiprocessing.Queue()
    workers = [multiprocessing.Process(target=take_all, args=(tmp_path / "quota", n, found)) for n in range(4)]
    for one in workers:
        one.start()
    assert sum(found.get(timeout=60) for _ in workers) == 1000
    for one in workers:
        one.join()


def test_a_refusal_names_the_quota_and_lasts_until_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 86_400.0 * 20_000 + 86_000
    monkeypatch.setattr(quotas, "_now", lambda: now)
    table = QuotaTable(QuotaConfig(input_tokens_per_day=100, output_tokens_per_day=10))
    table.enter()
    table.spend(99, 9)
    table.enter()
    table.spend(1, 0)
    with pytest.raises(RequestRefused) as e:
        table.enter()
    assert (e.value.retry_after, e.value.field) == (400.0, "quota.input_tokens_per_day")
    now += 400
    table.enter()
    assert table.used == {"calls_per_day": 1, "input_tokens_per_day": 0, "output_tokens_per_day": 0}


def test_calls_at_once_and_calls_that_no_engine_saw(tmp_path: Path) -> None:
    quota = QuotaConfig(concurrency=2, calls_per_day=3)
    one, two = (QuotaTable(quota, tmp_path / "quota", 2, number) for number in (0, 1))
    one.enter()
    two.enter()
    with pytest.raises(RequestRefused, match="concurrency of 2 is used up at once"):
        two.enter()
    one.leave(sent=False)
    two.enter()
    assert one.used["calls_per_day"] == 2
    QuotaTable(quota, tmp_path / "quota", 2, 1)  # the second worker was killed and is started again
    one.enter()
    with pytest.raises(RequestRefused, match="calls_per_day of 3"):
        one.enter()


def test_another_limit_holds_for_all_of_today() -> None:
    table = QuotaTable(QuotaConfig(calls_per_day=1))
    table.enter()
    with pytest.raises(RequestRefused, match="calls_per_day of 1"):
        table.enter()
    table.follow(QuotaConfig(calls_per_day=3, concurrency=2))
    table.enter()
    with pytest.raises(RequestRefused, match="concurrency of 2"):
        table.enter()
    table.leave()
    table.enter()
    table.leave()
    with pytest.raises(RequestRefused, match="calls_per_day of 3"):
        table.enter()
    table.follow(QuotaConfig())
    table.enter()


def test_without_the_database_a_bounded_part_is_let_through() -> None:
    table = QuotaTable(QuotaConfig(calls_per_day=300), shared=True)
    with pytest.raises(NeedsGrant):
        table.enter()
    table.grant("calls_per_day", 2)
    for _ in range(2):
        table.enter()
    let = 0
    while table.go_unchecked("calls_per_day"):
        table.enter()
        let += 1
    assert let == 3
    with pytest.raises(NeedsGrant):
        table.enter()


async def test_an_ended_call_has_left_and_spent_its_tokens(start):
    proxy = await start()
    plane = proxy.plane
    table = QuotaTable(QuotaConfig(input_tokens_per_day=10**6, concurrency=1))
    quotas = Quotas(lambda: table, plane.link, plane.services.metrics)
    plane.services.steps = CallSteps([*plane._steps(), quotas])
    await post(proxy.url, ASK)
    assert table.used["calls_per_day"] == 0, "nobody has set a limit"
    quotas.follow(table.quota)
    for calls in (1, 2):
        await post(proxy.url, ASK)
        assert table.used["calls_per_day"] == calls
    assert table.used["input_tokens_per_day"] >= 2 and table.used["output_tokens_per_day"] >= 2


class Link:
    """The control plane, as far as quotas ask it."""

    def __init__(self) -> None:
        self.asked, self.answer = 0, asyncio.Event()
        self.granted: int | None = None

    async def allowance(self, what: str, patience: float) -> int | None:
        self.asked += 1
        await self.answer.wait()
        return self.granted


class Waits:
    """A call that waits for more of a quota."""

    def __init__(self) -> None:
        self.asked = SimpleNamespace(id=str(id(self)))
        self.told: list[RequestRefused | None] = []

    def go_on(self) -> None:
        self.told.append(None)

    def refuse(self, why: RequestRefused) -> None:
        self.told.append(why)


@pytest.mark.parametrize(("granted", "lifted", "served", "unchecked"), [
    (10, False, 6, 0), (0, False, 0, 0), (None, False, 2, 2), (None, True, 6, 0), (0, True, 6, 0),
])  # fmt: skip
async def test_calls_and_what_is_passed_through_wait_in_one_way(
    granted: int | None, lifted: bool, served: int, unchecked: int
) -> None:
    link, metrics = Link(), WorkerMetrics()
    quota = QuotaConfig(calls_per_day=200)
    table = QuotaTable(quota, shared=True)
    steps = Quotas(lambda: table, link, metrics)  # type: ignore[arg-type]
    steps.follow(quota)
    calls = [Waits() for _ in range(3)]
    assert not any(steps.choose(call) for call in calls)  # type: ignore[arg-type]
    passed = [asyncio.create_task(steps.enter()) for _ in range(3)]
    for _ in range(3):
        await asyncio.sleep(0)
    assert link.asked == 1, "all wait for one answer"
    if lifted:
        steps.follow(QuotaConfig())
    link.granted = granted
    link.answer.set()
    done = await asyncio.gather(*passed, return_exceptions=True)
    well = [c for c in calls if c.told == [None] and steps.choose(c)]  # type: ignore[arg-type]
    assert len(well) + sum(found is table for found in done) == served
    refused = [e for c in calls for e in c.told if e is not None] + [e for e in done if isinstance(e, RequestRefused)]
    assert len(refused) == 6 - served and all(e.status == 429 for e in refused)
    assert table.used["calls_per_day"] == served
    assert metrics.values.get((UNCHECKED_METRIC, ""), 0) == unchecked
