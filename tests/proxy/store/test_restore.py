"""What one store exports another one takes, and exports again just so."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.records import NOW, call, done, group, mutation, reward, rules, want
from tests.support.store_writes import pin, take_ack

from slipstream.contract import BatchAck
from slipstream_proxy.store import open_store
from slipstream_proxy.store.backends.duckfile import DuckTx
from slipstream_proxy.store.backends.postgres import PostgresTx
from slipstream_proxy.store.tables.schema import day_of
from slipstream_proxy.store.values import EpisodeFilter, RecordedCall

_numbers = itertools.count()


def exported(store, key: str | None = None) -> list[dict]:
    batches = store.episodes.export(EpisodeFilter(key=key))
    return [e.model_dump(mode="python") for batch in batches for e in batch]


def restore(store, episodes: list[dict], at: float = NOW) -> None:
    for e in episodes:
        days = sorted({day_of(c["at"]) for c in e["call_list"]})
        data = {"key": e["key"], "episode": e["id"], "days": days, "text": json.dumps(e)}
        store.ingest([mutation("episode", data, at=at)], {})


TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=6)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXT | st.none() | st.lists(st.integers() | st.floats(allow_nan=False), max_size=2)})  # fmt: skip


@st.composite
def calls(draw, episode: str, number: int):
    n = draw(st.integers(1, 2))
    choices = []
    for _ in range(n):
        ids = draw(IDS)
        choices.append((draw(MESSAGE), ids, [draw(st.floats(-20, 0, width=32)) for _ in ids]))
    return call(
        episode, at=NOW + number * draw(st.sampled_from([1.0, 90_000.0])), messages=draw(st.lists(MESSAGE, max_size=4)), prompt=draw(IDS),
        choices=choices, tools=draw(st.lists(MESSAGE, max_size=1)), task=draw(st.sampled_from(["t", None])),
        trained=draw(st.sampled_from(["m", None])), adapter=draw(st.sampled_from(["m", "m@1"])), tags=draw(st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy"))),
        error=draw(st.none() | st.just("no")), outcome=draw(st.sampled_from(["ok", "ok", "aborted"])), done=draw(st.booleans()),
        status=200, seconds=draw(st.floats(0, 9)), sampling={"temperature": draw(st.sampled_from([0.0, 0.7, 1]))},
    )  # fmt: skip


@st.composite
def records(draw):
    found = []
    for e in range(draw(st.integers(1, 4))):
        history = [draw(calls(f"e{e}", n)) for n in range(draw(st.integers(1, 4)))]
        found += history
        for value in draw(st.lists(st.floats(-5, 5), max_size=3)):
            one = history[0].head.id if draw(st.booleans()) else None
            name = draw(st.sampled_from(["reward", "other"]))
            found.append(reward(f"e{e}", value, name=name, call=one, source=draw(st.sampled_from(["agent", "user"])), meta={"k": [1, None]}))  # fmt: skip
        if draw(st.booleans()):
            found.append(done(f"e{e}"))
    return found


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=records())
def test_every_export_comes_back(source, store, records):
    key = f"k{next(_numbers)}"  # each example is another tenant's
    for record in records:
        if isinstance(record, RecordedCall):
            record.head.key = key
        else:
            record.data["key"] = key
    source.ingest(records, {})
    before = exported(source, key)
    assert len(before) >= 1
    restore(store, before)
    assert exported(store, key) == before
    restore(store, before)  # again changes nothing
    assert exported(store, key) == before


@pytest.fixture
def source(tmp_path, empty):
    shutil.copy(empty, tmp_path / "source.duckdb")
    store = open_store(f"duckdb:///{tmp_path}/source.duckdb", rules())
    yield store
    store.close()


def test_what_was_trained_on_never_trains_again(source, store):
    source.ingest([*group("a"), *group("b"), *group("c", 1), *group("d", value=None)], {})
    leased = source.batches.lease(want(max_groups=1), {}, 0, NOW + 9)
    ack = BatchAck(lease=leased.lease, outcome="trained", adapter="m@1", step=1, advantages={"a-0": -0.5, "a-1": 0.5})
    assert take_ack(source, leased.id, ack, NOW + 9)
    before = exported(source)
    restore(store, before, NOW + 100)
    assert exported(store) == before
    trained = store.episodes.get("-", "a-1")
    assert (trained.batches, trained.trained_adapters, trained.advantage) == ([leased.id], ["m@1"], 0.5)
    again = store.batches.lease(want(), {}, 0, NOW + 200)
    assert set(again.table["task"].to_pylist()) == {"b"}
    now = again.table.slice(0, 1).to_pylist()[0]
    assert (now["completion_ids"], now["logprobs"]) == ([7, 8, 9], [-0.5, -0.25, -1.0])
    store.ingest(
        [call("c-1", task="c", at=NOW + 300, done=True), reward("c-1", 2.0), reward("d-0"), reward("d-1", 2.0)], {}
    )
    more = store.batches.lease(want(), {}, 0, NOW + 400)
    assert set(more.table["task"].to_pylist()) == {"c", "d"}  # the group that was forming went on to form


def test_open_episodes_go_on(source, store):
    source.ingest([call("e", adapter="m@1", messages=[{"role": "user", "content": "a"}], prompt=[1, 2])], {})
    restore(store, exported(source))
    assert store.pins.open() == {"m@1": 1}
    assert pin(store, "-", "e", "m", "m@2", "live", NOW).adapter == "m@1"
    longer = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "b"},
    ]
    store.ingest([call("e", at=NOW + 1, messages=longer, prompt=[1, 2, 7, 8, 9, 4], done=True)], {})
    found = store.episodes.get("-", "e", tokens=True)
    assert [c.number for c in found.call_list] == [0, 1]
    assert (found.call_list[1].messages, found.call_list[1].prompt_ids) == (longer, [1, 2, 7, 8, 9, 4])


def test_an_episode_that_is_here_or_forgotten_stays_so(source, store):
    source.ingest([*group("a", 1), *group("b", 1)], {})
    before = exported(source)
    store.ingest([call("a-0", messages=[{"role": "user", "content": "mine"}])], {})
    store.ingest([call("b-0")], {})
    store.forget([("-", "b-0")], NOW)
    restore(store, before)
    assert store.episodes.get("-", "a-0").call_list[0].messages[0]["content"] == "mine"
    assert store.episodes.get("-", "b-0") is None


def test_many_come_back_together_with_few_statements(source, store, monkeypatch):
    """All or one after the other: the store is the same, and what is looked up grows with groups of 64 alone."""
    source.ingest([r for t in range(16) for r in group(f"t{t}")], {})
    leased = source.batches.lease(want(max_groups=3), {}, 0, NOW + 9)
    assert take_ack(source, leased.id, BatchAck(lease=leased.lease, outcome="trained", adapter="m@1", step=1), NOW + 9)
    before = exported(source)
    count = 0

    def counting(run):
        def counted(*args):
            nonlocal count
            count += 1
            return run(*args)

        return counted

    monkeypatch.setattr(DuckTx, "all", counting(DuckTx.all))
    monkeypatch.setattr(PostgresTx, "all", counting(PostgresTx.all))
    data = [{"key": e["key"], "episode": e["id"], "days": sorted({day_of(c["at"]) for c in e["call_list"]}), "text": json.dumps(e)} for e in before]  # fmt: skip
    store.ingest([mutation("episode", d, at=NOW + 100) for d in data], {})
    assert len(before) == 32 and count < len(before)
    assert exported(store) == before
