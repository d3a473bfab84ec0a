"""Quotas of calls and tokens are exact over workers."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tests.support.dataplane import ASK, post

from slipstream.settings import QuotaConfig
from slipstream_proxy.data.access import quotas
from slipstream_proxy.data.access.quotas import NeedsGrant, QuotaTable
from slipstream_proxy.data.call.step import CallSteps
from slipstream_proxy.data.call.steps.quotas import Quotas
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
