"""Conformance: a run in which the model never said anything is no run, whatever rewards it has."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support.records import NOW, call, done, group, mutation, reward, want
from tests.support.store_writes import pin

from slipstream.contract import GroupLeaseIn
from slipstream_labelling.server.queue import LabelQueue
from slipstream_proxy.store.conversation.failures import ERROR_CHARACTERS
from slipstream_proxy.store.read.curves import LearningFilter
from slipstream_proxy.store.values import EpisodeFilter, RecordedCall

BODY = json.dumps({"error": {"message": "tools must not be empty", "type": "BadRequestError"}})
REFUSALS: dict[str, dict[str, Any]] = {
    **{str(status): {"status": status, "outcome": "error", "error": BODY} for status in (400, 401, 404, 429, 500, 503)},
    "network": {"status": 502, "outcome": "error", "error": "the engine cannot be reached"},
    "aborted": {"status": 200, "outcome": "aborted"},
    "error in the stream": {"status": 200, "outcome": "ok", "error": '{"message": "out of memory"}'},
}
SILENT = {"role": "assistant", "content": ""}


def refused(episode: str = "e1", how: str = "400", **kw: Any) -> RecordedCall:
    """A call that brought no token."""
    made = call(episode, prompt=[], **(REFUSALS[how] | kw))
    made.parsed.choices = []
    return made


def failed_group(task: str = "t1", n: int = 2, **kw: Any) -> list[Any]:
    found: list[Any] = []
    for i in range(n):
        found += [refused(f"{task}-{i}", task=task, at=NOW + i, **kw), reward(f"{task}-{i}", 1.0, done=True)]
    return found


def states(store) -> dict[str, int]:
    return store.statistics.counts(NOW)["groups"]


def test_it_is_in_no_group_and_no_mean_and_no_curve(store):
    for how in REFUSALS:
        store.ingest(failed_group(how.replace(" ", ""), how=how), {})
    assert states(store) == {}
    store.ingest([call("good", done=True), reward("good", 0.25)], {})
    (row,) = store.statistics.success_by_adapter()
    assert (row["episodes"], row["mean"]) == (1, 0.25)
    assert [(s["count"], s["mean"]) for s in store.statistics.rewards_by_source()] == [(1, 0.25)]
    assert [(p.n, p.mean) for p in store.reports.learning.read(LearningFilter()).points] == [(1, 0.25)]
    assert [(t.base.n, t.base.mean) for t in store.reports.tasks.read().tasks if t.base] == [(1, 0.25)]
    assert store.statistics.bounds() == {"m": (0.0, 1.0)}
    assert states(store) == {"forming": 1}
    counted = store.statistics.counts(NOW)["episodes"]
    assert counted == {"done": 1, "failed": 2 * len(REFUSALS)}


@pytest.mark.parametrize("end", ["reward", "done", "header", "idle"])
def test_it_fails_however_it_ends_and_says_why(opened, end):
    store = opened(idle_timeout=60.0, group_size=1)
    names = {how: f"e{i}" for i, how in enumerate(REFUSALS)}
    store.ingest([refused(name, how, done=end == "header") for how, name in names.items()], {})
    for name in names.values():
        ends = {"reward": [reward(name, 1.0, done=True)], "done": [done(name)]}
        store.ingest(ends.get(end, []), {})
    store.sweep(NOW + 3600)
    special = {
        "network": "502: the engine cannot be reached",
        "aborted": "aborted before the first token",
        "error in the stream": "error: out of memory",
    }
    told = {name: special.get(how, f"{how}: tools must not be empty") for how, name in names.items()}
    found = {e.id: e for e in store.episodes.page(EpisodeFilter(failed=True)).episodes}
    assert {name: e.error for name, e in found.items()} == told
    assert {(e.state, e.group, e.reward) for e in found.values()} == {("done", None, None)}
    assert states(store) == {}


@pytest.mark.parametrize("grouped", [True, False])
def test_nobody_judges_it(opened, grouped):
    store = opened(group_size=2)
    task = "t1" if grouped else None
    store.ingest([refused(f"e{i}", task=task, done=True, at=NOW + i) for i in range(8)], {})
    wanted = GroupLeaseIn(worker="j", names=["judge"], limit=9, seconds=60, singles=True)
    assert store.judging.lease(wanted, NOW + 99_999) is None
    assert LabelQueue(store).read(None).cases == []
    assert store.statistics.funnel("judge", NOW).without_task == 0


@pytest.mark.parametrize("split", ["eval", "train"])
@pytest.mark.parametrize("before", ["open", "done", "idle", "rewarded"])
def test_a_call_that_is_answered_makes_it_a_run_again(opened, before, split):
    store = opened(group_size=2, idle_timeout=60.0)
    for name in "ab":
        store.ingest([refused(name, "429", split=split)], {})
    ends = {"done": [done("a"), done("b")], "rewarded": [reward("a", 0.5, done=True), reward("b", 1.0, done=True)]}
    store.ingest(ends.get(before, []), {})
    if before == "idle":
        store.sweep(NOW + 600)
    store.ingest([call("a", at=NOW + 900, split=split), call("b", at=NOW + 900, split=split)], {})
    if before in ("open", "idle"):
        store.ingest([done("a"), done("b")], {})
    if before != "rewarded":
        store.ingest([reward("a", 0.5), reward("b", 1.0)], {})
    got = [store.episodes.get("-", name) for name in "ab"]
    assert [(e.error, e.reward) for e in got] == [(None, 0.5), (None, 1.0)]
    assert got[0].group == got[1].group is not None
    assert states(store) == {"eval" if split == "eval" else "ready": 1}
    (row,) = store.statistics.success_by_adapter()
    assert (row["episodes"], row["mean"], row["split"]) == (2, 0.75, split)
    later = [refused("a", at=NOW + 901), refused("b", "aborted", at=NOW + 902)]
    store.ingest(later, {})  # a run stays one
    assert store.episodes.get("-", "a").error is None
    assert store.statistics.success_by_adapter() == [row]


def test_in_any_order_and_in_any_batches_it_comes_to_the_same(opened):
    store = opened(group_size=2)
    items = [refused("a", "500"), reward("a", 0.5), call("a", at=NOW + 1), refused("b"), reward("b", 1.0), done("b")]
    for item in items:
        store.ingest([item], {})
    store.ingest([done("a")], {})
    rows = store.statistics.success_by_adapter()
    with store.db.read() as tx:
        assert store.tallies.counted(tx) == {k: v for k, v in _kept(store, tx).items() if v.n}
    assert [(r["episodes"], r["mean"]) for r in rows] == [(1, 0.5)]


def _kept(store, tx):
    return {key: tally for key, tally in store.tallies._sums(tx).items()}


@pytest.mark.parametrize("order", [("beside", "policy"), ("policy", "beside")])
def test_what_another_model_says_makes_no_run_of_the_trained_ones(store, order):
    calls = {"beside": call("a", trained=None, external=True), "policy": refused("a", "404")}
    for name in order:
        store.ingest([calls[name]], {})
    store.ingest([reward("a", 1.0, done=True)], {})
    assert store.episodes.get("-", "a").error == "404: tools must not be empty"
    assert store.statistics.success_by_adapter() == []
    store.ingest([call("b", trained=None, adapter=None, done=True), reward("b", 1.0)], {})
    assert store.episodes.get("-", "b").error is None


@pytest.mark.parametrize(
    "said",
    [
        {"choices": [({"role": "assistant", "content": "half"}, [], [])], "outcome": "aborted"},
        {"choices": [({"role": "assistant", "content": ""}, [5], [-1.0])], "outcome": "aborted"},
        {"choices": [({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}, [], [])]},
        {"choices": [(SILENT, [], [])], "trained": None},
        {"choices": [(SILENT, [], [])], "untrainable": "redacted", "note": "redacted"},
    ],
)
def test_a_token_or_an_answer_makes_a_run(store, said):
    store.ingest([call("a", done=True, **said), reward("a", 1.0)], {})
    got = store.episodes.get("-", "a")
    assert (got.error, got.reward) == (None, 1.0)


def test_a_reply_that_the_engine_broke_off_before_its_first_token_makes_none(store):
    made = call("a", choices=[(SILENT, [], [])], done=True)
    made.parsed.choices[0].finish_reason = "abort"
    store.ingest([made], {})
    assert store.episodes.get("-", "a").error == "error: no token came"


CHANCES = "live=0.5 control=0.5"


def test_the_gate_is_told_that_it_is_no_evidence(store):
    pin(store, "-", "a", "m", "m@1", "live", NOW, CHANCES)
    store.ingest([refused("a", "500", adapter="m@1", chances=CHANCES), reward("a", 1.0, done=True)], {})
    seen = store.outcomes.since("m", 0)
    assert [(o.eid, o.reward is None, o.failed) for o in seen] == [("-/a", True, False), ("-/a", False, True)]
    store.ingest([call("a", at=NOW + 9, adapter="m@1", chances=CHANCES)], {})
    again = store.outcomes.since("m", seen[-1].seq)
    assert [(o.eid, o.reward) for o in again] == [("-/a", None), ("-/a", 1.0)]


def test_it_has_no_place_in_batches_cases_or_a_later_export(store, tmp_path):
    store.ingest([*failed_group("t1", 4), *group("t2", 2)], {})
    got = store.batches.lease(want(), {}, 0, NOW + 9)
    assert set(got.table["task"].to_pylist()) == {"t2"}
    labelled = reward("t1-0", 1.0, source="human")
    store.ingest([labelled], {})
    assert store.cases.labelled("m", "s", 9) == []


def test_put_back_from_an_export_it_is_failed_again(opened, tmp_path):
    store = opened()
    store.ingest([*failed_group("t1"), *group("t2", 1)], {})
    texts = [d.model_dump_json() for part in store.episodes.export(EpisodeFilter()) for d in part]
    other = opened(instance="other") if store.shared else None
    items = [
        mutation("episode", {"key": d["key"], "episode": d["id"] + "x", "days": [], "text": json.dumps(_renamed(d))})
        for d in map(json.loads, texts)
    ]
    (other or store).ingest(items, {})
    assert store.episodes.get("-", "t1-0x").error == "400: tools must not be empty"
    assert store.episodes.get("-", "t1-0x").reward is None
    assert store.episodes.get("-", "t2-0x").reward == 1.0


def _renamed(detail: dict[str, Any]) -> dict[str, Any]:
    calls = [c | {"id": f"{c['id']}x", "episode": f"{c['episode']}x"} for c in detail["call_list"]]
    rewards = [r | {"episode": f"{r['episode']}x"} for r in detail["rewards"]]
    return detail | {"id": f"{detail['id']}x", "call_list": calls, "rewards": rewards, "group": None}


def test_its_error_quotes_little_and_nothing_once_its_calls_are_dropped(store):
    long = json.dumps({"error": {"message": "the private prompt\n" * 99}})
    store.ingest([refused("a", error=long, done=True)], {})
    kept = store.episodes.get("-", "a").error
    assert kept.startswith("400: the private prompt the private")
    assert len(kept) <= ERROR_CHARACTERS + len("400: ")
    store.archive.drop(store.archive.days()[0])
    assert store.episodes.get("-", "a").error == "400"
    assert store.forget([("-", "a")], NOW).names == [("-", "a")]
    with store.db.read() as tx:
        assert tx.all("SELECT error FROM t_episodes") == [(None,)]
