"""A run of many calls weighs what was said in it, however it is read, and a trainer learns just the same from it."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from tests.support.records import NOW, call, done, mutation, reward, want

from slipstream.contract import GroupLeaseIn
from slipstream.shared.prefixes import whole_calls
from slipstream.shared.tables import whole_prompts
from slipstream_proxy.store.conversation.call_rows import CallPage
from slipstream_proxy.store.tables.schema import day_of
from slipstream_proxy.store.values import EpisodeFilter
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.batch.rows import merge_chains, read_samples

CALLS = 120


def run_of(episode: str, calls: int = CALLS, *, think: bool = False) -> list:
    """A run whose history grows: every call says what was said before. ``think``: what the model thought is left out of
    the history, so that no call's prompt begins with an earlier reply's tokens."""
    messages: list = [{"role": "system", "content": "be good"}]
    ids = list(range(100))
    found = []
    for n in range(calls):
        messages = [*messages, {"role": "user", "content": f"{episode} question {n}"}]
        ids = [*ids, *range(1_000 + n, 1_040 + n)]
        said = {"role": "assistant", "content": f"answer {n}"}
        sampled = [5, 6, *range(n, n + 20)]
        choices = [(said, sampled, [-0.5] * 22), (dict(said, content="no"), [3], [-2.0])]
        outcome = "error" if n % 10 == 9 else "ok"
        found.append(
            call(episode, at=NOW + n, messages=messages, prompt=ids, tools=[{"t": 1}], choices=choices, outcome=outcome)
        )
        messages = [*messages, said]
        ids = [*ids, *(sampled[2:] if think else sampled)]
    return found


def fill(store, *, think: bool = False) -> list:
    records = [*run_of("a", think=think), *run_of("b", CALLS // 2, think=think), *run_of("c", 3)]
    store.ingest(records, {})
    store.ingest([done("a"), done("b"), done("c"), reward("a", 1.0), reward("b", 0.0), reward("c", 0.5)], {})
    return records


def prompts_of(records) -> dict[str, list[int]]:
    return {r.head.id: list(r.parsed.prompt_ids) for r in records}


def test_a_long_run_comes_in_deltas_and_a_short_one_whole(store):
    records = fill(store)
    long, short = (store.episodes.get("-", name, tokens=True) for name in ("a", "c"))
    assert all(c.prefix is None for c in short.call_list)
    assert sum(c.prefix is not None for c in long.call_list) == CALLS - 1
    assert max(len(c.messages) for c in long.call_list) == 2
    whole = whole_calls(long.call_list)
    assert {c.id: c.prompt_ids for c in whole} == {k: v for k, v in prompts_of(records[:CALLS]).items()}
    assert [c.messages for c in whole] == [r.parsed.messages for r in records[:CALLS]]
    assert [c.messages for c in store.episodes.get("-", "a", page=CallPage("whole")).call_list] == [
        c.messages for c in whole
    ]


@pytest.mark.parametrize("form", ["deltas", "whole"])
def test_pages_of_a_run(store, form):
    records = fill(store)
    page = store.episodes.get("-", "a", page=CallPage(form, 30, 40))
    assert [c.number for c in page.call_list] == list(range(30, 70))
    assert page.next_call == 70
    last = store.episodes.get("-", "a", page=CallPage(form, CALLS - 1, 40))
    assert ([c.number for c in last.call_list], last.next_call) == ([CALLS - 1], None)
    if form == "whole":
        assert last.call_list[0].messages == records[CALLS - 1].parsed.messages
    assert store.episodes.get("-", "a", page=CallPage(form, CALLS)).call_list == []


@pytest.mark.parametrize("think", [False, True])
def test_a_trainer_learns_the_same_from_deltas(opened, think):
    store = opened(group_size=3)
    records = fill(store, think=think)
    (batch,) = [store.batches.lease(want(form="deltas"), {}, 0, NOW + 9_999)]
    tokens = sum(map(len, batch.table.column("prompt_ids").to_pylist()))
    said = sum(len(p) for p in prompts_of(records).values())
    assert tokens * 20 < said, "each token travels once"
    whole = whole_prompts(batch.table)
    sent = prompts_of(records)
    assert [row["prompt_ids"] for row in whole.to_pylist()] == [sent[row["call"]] for row in whole.to_pylist()]
    mine, theirs = read_samples(batch.table), read_samples(whole)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.prompt_P.tobytes(), a.completion_C.tobytes()) == (b.prompt_P.tobytes(), b.completion_C.tobytes())
        assert a.prompt_P.dtype == b.prompt_P.dtype == np.int32
    chains = [merge_chains(samples) for samples in (mine, theirs)]
    assert [(c.ids_L.tobytes(), c.samples) for c in chains[0]] == [(c.ids_L.tobytes(), c.samples) for c in chains[1]]
    plans = [make_plan(samples, layout="tree", budget=16_384) for samples in (mine, theirs)]
    for one, other in zip(plans[0].micro, plans[1].micro, strict=True):
        assert one.ids_RN.tobytes() == other.ids_RN.tobytes()
        assert one.slots.target_S.tobytes() == other.slots.target_S.tobytes()


def test_a_short_run_travels_whole_unless_asked(opened):
    store = opened(group_size=3)
    fill(store)
    batch = store.batches.lease(want(), {}, 0, NOW + 9_999).table.to_pylist()
    kinds = {name: {row["prefix_row"] is None for row in batch if row["episode"] == name} for name in "abc"}
    assert kinds["c"] == {True}
    assert kinds["a"] == {True, False}, "the first call begins with none"


def test_a_judges_group_in_deltas_without_superseded_calls(opened):
    store = opened(group_size=3)
    records = fill(store)
    again = call("a", at=NOW + CALLS, body_hash="h", attempt=0, messages=records[CALLS - 1].parsed.messages + ["x"])
    retry = call("a", at=NOW + CALLS, body_hash="h", attempt=1, messages=records[CALLS - 1].parsed.messages + ["x"])
    store.ingest([again, retry], {})
    lease = store.judging.lease(GroupLeaseIn(worker="j", form="deltas"), NOW + 9_999)
    (run,) = [e for e in lease.groups[0].episodes if e.episode.id == "a"]
    assert again.head.id not in {c.id for c in run.calls}
    told = {r.head.id: r.parsed.messages for r in [*records, retry]}
    assert {c.id: c.messages for c in whole_calls(run.calls)} == {c.id: told[c.id] for c in run.calls}


def test_a_long_run_is_put_back_as_it_was(store):
    records = fill(store, think=True)
    (exported,) = [e for batch in store.episodes.export(EpisodeFilter()) for e in batch if e.id == "a"]
    assert exported.call_list[-1].prefix is not None
    lines = exported.model_copy(update={"id": "back", "call_list": []})
    ids = {c.id: f"back{c.number:030d}" for c in exported.call_list}
    for c in exported.call_list:
        prefix = c.prefix and c.prefix.model_copy(update={"call": ids[c.prefix.call]})
        extends = c.extends and ids[c.extends]
        lines.call_list.append(
            c.model_copy(update={"id": ids[c.id], "episode": "back", "prefix": prefix, "extends": extends})
        )
    days = sorted({day_of(c.at) for c in lines.call_list})
    data = {"key": "-", "episode": "back", "days": days, "text": lines.model_dump_json()}
    store.ingest([mutation("episode", data)], {})
    back = whole_calls(store.episodes.get("-", "back", tokens=True).call_list)
    assert [c.prompt_ids for c in back] == [list(r.parsed.prompt_ids) for r in records[:CALLS]]
    assert [c.messages for c in back] == [r.parsed.messages for r in records[:CALLS]]
    assert [c.tools for c in back] == [r.parsed.tools for r in records[:CALLS]]


def test_every_call_of_a_long_run_weighs_less_than_five_kilobytes(opened):
    """So that one of 2,000 calls weighs less than ten megabytes (``make bench-growth`` makes one)."""
    calls = 200
    store = opened(group_size=1)
    store.ingest(run_of("long", calls), {})
    store.ingest([done("long"), reward("long", 1.0)], {})
    page = store.episodes.get("-", "long", tokens=True)
    assert (len(page.call_list), page.next_call) == (calls, None)
    assert len(page.model_dump_json()) < calls * 5_000
    lease = store.judging.lease(GroupLeaseIn(worker="j"), NOW + 99_999)
    assert len(lease.model_dump_json()) < calls * 5_000
    table = store.batches.lease(want(), {}, 0, NOW + 99_999).table
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert sink.tell() < calls * 5_000
