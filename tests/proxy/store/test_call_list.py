"""A run's calls come back as they were: whole, in deltas, with some of them left out, a page at a time."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.histories import histories
from tests.support.records import NOW, call

from slipstream.contract import WHOLE_CALLS
from slipstream.shared.prefixes import whole_calls
from slipstream_proxy.store.conversation.call_rows import CallList, CallPage, call_row, is_whole, pack, weight_of
from slipstream_proxy.store.conversation.fingerprint import MAX_BASE_CALLS, cut

YES = {"role": "assistant", "content": "yes"}


def rows_of(records):
    """As the store keeps them."""
    known, rows = [], []
    for number, record in enumerate(records):
        packed = pack(record)
        rows.append(call_row(record, "-/e", number, packed, cut(packed.prompt, known[-MAX_BASE_CALLS:])))
        known.append(packed.known(record.head.id))
    return rows


def records_of(calls, times=1):
    """``times``: each token so often, so that sequences are longer than a block."""
    return [
        call(
            "e",
            at=NOW + n,
            messages=messages,
            tools=tools,
            prompt=[i for i in ids for _ in range(times)],
            choices=[(reply, sampled, [-0.5] * len(sampled)), ("another", [5], [-1.0])],
        )
        for n, (messages, ids, tools, reply, sampled) in enumerate(calls)
    ]


def seen(calls):
    return [(c.id, c.messages, c.tools, c.prompt_ids, c.completion_ids, c.reply) for c in calls]


def true(records):
    return [
        (
            r.head.id,
            r.parsed.messages,
            r.parsed.tools,
            list(r.parsed.prompt_ids),
            [c.completion_ids for c in r.parsed.choices],
            [c.message for c in r.parsed.choices],
        )
        for r in records
    ]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(histories(), st.integers(1, 40), st.randoms(use_true_random=False))
def test_every_form_holds_what_the_agent_sent(calls, times, chance):
    records = records_of(calls, times)
    run = CallList(rows_of(records))
    assert seen(run.records("whole", tokens=True)) == true(records)
    assert seen(whole_calls(run.records("deltas", tokens=True))) == true(records)
    left = {r.head.id for r in records if chance.random() < 0.6}
    some = run.records("deltas", tokens=True, stays=lambda row: row.id in left)
    assert all(c.prefix is None or c.prefix.call in left for c in some)
    assert seen(whole_calls(some)) == [one for one in true(records) if one[0] in left]


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(histories(), st.integers(1, 4), st.sampled_from(["whole", "deltas"]))
def test_pages_of_any_size_make_the_run(calls, most, form):
    records = records_of(calls)
    rows = rows_of(records)
    found, first = [], 0
    while first is not None:
        run = CallList(rows if form == "whole" else [r for r in rows if r.number >= first])
        page, after = run.page(CallPage(form, first, most), whole=form == "whole", tokens=True)
        assert 1 <= len(page) <= most
        assert after is None or after == first + len(page)
        found, first = found + page, after
    assert seen(whole_calls(found)) == true(records)


def test_a_page_ends_at_its_weight(monkeypatch):
    monkeypatch.setattr("slipstream_proxy.store.conversation.call_rows.PAGE_BYTES", 20_000)
    records = [call("e", messages=[f"{n} " + "x" * 8_000], prompt=[n]) for n in range(5)]
    page, after = CallList(rows_of(records)).page(CallPage(), whole=True, tokens=False)
    assert (len(page), after) == (2, 2)


def test_what_a_call_weighs_is_about_its_json():
    chance = random.Random(1)
    words = [{"role": "user", "content": "word " * 200}]
    ids = [chance.randrange(150_000) for _ in range(400)]
    record = call("e", messages=words, prompt=ids, choices=[({"role": "assistant"}, ids, [-chance.random()] * 400)])
    (row,) = rows_of([record])
    real = len(CallList([row]).records("whole", tokens=True)[0].model_dump_json())
    assert weight_of(row, tokens=True) == pytest.approx(real, rel=0.25)


def test_auto_is_whole_up_to_a_number_of_calls():
    assert is_whole("auto", WHOLE_CALLS)
    assert not is_whole("auto", WHOLE_CALLS + 1)
    assert (is_whole("whole", 10**6), is_whole("deltas", 1)) == (True, False)


def test_a_base_that_is_gone_leaves_what_the_call_has():
    records = [call("e", messages=["a"]), call("e", messages=["a", YES, "b"], prompt=[1, 2, 3, 7, 8, 9, 4])]
    last = rows_of(records)[1]
    assert CallList([last]).messages(last) == ["b"]
    assert CallList([last]).ids(last).tolist() == [4]
