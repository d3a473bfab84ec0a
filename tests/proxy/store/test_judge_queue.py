"""Conformance: the judge's leases and scores."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.records import NOW, call, group, mutation, reward
from tests.support.store_writes import put_adapter, take_scores

from slipstream.contract import Adapter, GroupKind, GroupLeaseIn, Score, ScoresIn


def ask(**kw):
    return GroupLeaseIn(**({"worker": "j1", "seconds": 60} | kw))


def scores(lease, *episodes, value=0.5, **kw):
    return ScoresIn(
        lease=lease,
        scores=[
            Score(episode=e, value=value, reason="because", values=[0.4, 0.6], meta={"model": "x"}) for e in episodes
        ],
        **kw,
    )


def test_a_complete_group_is_judged_once(opened):
    store = opened(weights={"judge": 1.0})
    store.ingest([*group("t1", value=None), *group("half", 1, value=None)], {})
    got = store.judging.lease(ask(limit=9), NOW + 5)
    (one,) = got.groups
    assert (one.kind, one.task, one.model, one.split, one.attempts, got.until) == (
        GroupKind.TASK,
        "t1",
        "m",
        "train",
        0,
        NOW + 65,
    )
    assert [(e.episode.id, e.calls[0].messages[1]["content"], e.context) for e in one.episodes] == [
        ("t1-0", "hello", False),
        ("t1-1", "hello", False),
    ]
    assert store.judging.lease(ask(), NOW + 6) is None
    assert take_scores(store, one.id, scores(got.lease, "t1-0", "t1-1"), NOW + 7)
    assert take_scores(store, one.id, scores(got.lease, "t1-0", "t1-1", value=0.9), NOW + 8), (
        "the same again changes nothing"
    )
    found = store.episodes.get("-", "t1-0")
    (row,) = found.rewards
    assert (row.name, row.source, row.value, row.reason, row.meta) == (
        "judge",
        "judge",
        0.5,
        "because",
        {"model": "x", "values": [0.4, 0.6]},
    )
    assert found.reward == 0.5
    assert store.statistics.counts(NOW)["groups"]["ready"] == 1
    assert store.judging.lease(ask(), NOW + 99) is None


def test_named_groups_are_scored_anew_and_the_old_scores_stay(opened):
    store = opened(weights={"judge": 1.0})
    store.ingest([*group("t1", value=None), *group("half", 1, value=None)], {})
    first = store.judging.lease(ask(), NOW + 5)
    name = first.groups[0].id
    assert store.judging.lease(ask(groups=[name]), NOW + 6) is None, "a judge has it just now"
    take_scores(store, name, scores(first.lease, "t1-0", "t1-1"), NOW + 7)
    anew = store.judging.lease(ask(groups=[name, "unknown"], limit=9), NOW + 8)
    assert [g.id for g in anew.groups] == [name], "though it has its scores"
    assert take_scores(store, name, scores(anew.lease, "t1-0", "t1-1", value=0.9), NOW + 9)
    found = store.episodes.get("-", "t1-0")
    assert [r.value for r in found.rewards] == [0.5, 0.9] and found.reward == 0.9
    half = store.episodes.get("-", "half-0").group
    rest = store.judging.lease(ask(groups=[half]), NOW + 10)
    assert [len(g.episodes) for g in rest.groups] == [1], "one that is still forming, too"


def test_scores_from_the_spool_are_the_same_scores(store):
    store.ingest(group("t1"), {})
    got = store.judging.lease(ask(), NOW)
    given = scores(got.lease, "t1-0", "t1-1")
    data = {"group": got.groups[0].id, "scores": given.model_dump(mode="json"), "key": "-"}
    take_scores(store, got.groups[0].id, given, NOW)
    store.ingest([mutation("scores", data)], {})
    store.ingest([mutation("scores", data)], {})
    assert [r.name for r in store.episodes.get("-", "t1-0").rewards] == ["reward", "judge"]


def test_scores_only_from_the_spool(opened):
    store = opened(weights={"judge": 1.0})
    store.ingest(
        [
            *group("t1", value=None),
            mutation("scores", {"group": "gone", "scores": scores("l", "t1-0").model_dump(mode="json"), "key": "-"}),
        ],
        {},
    )
    assert store.episodes.get("-", "t1-0").reward == 0.5


def test_a_lease_that_ran_out_is_somebody_elses(store):
    store.ingest(group("t1"), {})
    one = store.judging.lease(ask(), NOW)
    late = store.judging.lease(ask(worker="j2"), NOW + 61)
    group_id = one.groups[0].id
    assert not take_scores(store, group_id, scores(one.lease, "t1-0"), NOW + 62)
    assert take_scores(store, group_id, scores(late.lease, "t1-0"), NOW + 200), "nobody else has it"
    assert not take_scores(store, "nothing", scores(late.lease), NOW)


def test_failures_park_a_group(opened):
    store = opened(judge_max_attempts=2)
    store.ingest(group("t1"), {})
    for wait in (None, 30.0, None):
        got = store.judging.lease(ask(), NOW)
        assert take_scores(
            store, got.groups[0].id, ScoresIn(lease=got.lease, failed="no answer", retry_after=wait), NOW
        )
        if wait:
            assert store.judging.lease(ask(), NOW + 29) is None
            take_scores(store, got.groups[0].id, ScoresIn(lease=got.lease, failed="no answer"), NOW)
            got = store.judging.lease(ask(), NOW + 31)
            assert got.groups[0].attempts == 1, "asked to wait is no failure"
            store.release_leases("j1")
            store.ingest([], {})
            got = store.judging.lease(ask(), NOW + 31)
            assert take_scores(
                store, got.groups[0].id, ScoresIn(lease=got.lease, failed="no answer", retry_after=0.0), NOW
            )
    assert store.judging.lease(ask(), NOW + 99) is None
    assert store.statistics.funnel("judge", NOW).failures == {"parked": "no answer"}
    (parked,) = store.judging.parked()
    assert (parked.attempts, len(parked.episodes)) == (2, 2)
    assert store.statistics.counts(NOW)["groups"] == {"parked": 1}
    assert store.judging.unpark(parked.id) == 1
    assert store.judging.unpark(None) == 0
    assert store.judging.lease(ask(), NOW + 99).groups[0].attempts == 0


def test_what_has_its_names_is_no_work(store):
    store.ingest([*group("t1"), reward("t1-0", name="judge"), reward("t1-1", name="judge")], {})
    assert store.judging.lease(ask(), NOW + 9) is None
    got = store.judging.lease(ask(names=["judge", "style"]), NOW + 9)
    assert got is not None


def test_eval_groups_are_judged_too(store):
    store.ingest(group("t1", split="eval"), {})
    assert store.judging.lease(ask(), NOW + 9).groups[0].split == "eval"


def test_the_newest_group_is_judged_first(store):
    for n in range(3):
        store.ingest(group(f"t{n}", start=NOW + 10 * n), {})
    order = [store.judging.lease(ask(), NOW + 99).groups[0].task for _ in range(3)]
    assert order == ["t2", "t1", "t0"]


def test_the_backlog_is_what_waits_for_scores(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 10), call("alone", task=None, done=True)], {})
    found = store.judging.backlog(["judge"], singles=True, now=NOW + 100)
    assert (found.groups, found.parked) == (2, 0) and found.oldest_seconds >= 0
    got = store.judging.lease(ask(), NOW + 100)
    take_scores(store, got.groups[0].id, scores(got.lease, "t2-0", "t2-1"), NOW + 101)
    assert store.judging.backlog(["judge"], singles=True, now=NOW + 102).groups == 1
    assert store.judging.backlog(["reward"], singles=True, now=NOW + 102).oldest_seconds is None


def test_how_far_the_judge_agrees_with_agents_and_people(store):
    store.ingest(group("t1", 4), {})
    for n, (score, opinion) in enumerate([(0.1, 1.0), (0.4, 0.6), (0.6, 0.4), (0.9, 0.0)]):
        store.ingest(
            [
                reward(f"t1-{n}", 0.5, name="judge", source="judge"),
                reward(f"t1-{n}", score, name="judge", source="judge"),
                reward(f"t1-{n}", opinion, name="thumbs", source="human"),
            ],
            {},
        )
    found = store.judging.agreements("judge")
    assert found["agent"].pairs == found["human"].pairs == 4
    assert found["agent"].value > 0.99 and found["human"].value < -0.99
    assert store.judging.agreements("another") == {}


def test_a_group_of_likeness_is_one_piece_of_work(opened):
    store = opened(group_size=4)
    hello = {"role": "system", "content": "agent"}
    store.ingest(
        [
            call(f"s{i}", task=None, at=NOW + i, done=True, messages=[hello, {"role": "user", "content": f"{i}"}])
            for i in range(4)
        ],
        {},
    )
    assert store.judging.lease(ask(limit=9), NOW + 9) is None, "judge.singles is off"
    (one,) = store.judging.lease(ask(limit=9, singles=True), NOW + 9).groups
    assert (one.kind, len(one.episodes), any(e.context for e in one.episodes)) == (GroupKind.LIKE, 4, False)


def test_an_episode_that_stays_alone_gets_a_window(opened):
    store = opened(group_size=4, group_max_age=100.0)
    store.ingest([call("s", task=None, done=True)], {})
    assert store.judging.lease(ask(singles=True), NOW + 99) is None, "others may come"
    (one,) = store.judging.lease(ask(singles=True), NOW + 101).groups
    assert one.kind == GroupKind.WINDOW


def test_single_episodes_beside_alike_ones(opened):
    store = opened(window=2, ungrouped=False)
    store.ingest([call(f"s{i}", task=None, at=NOW + i, done=True) for i in range(5)], {})
    store.ingest([reward(f"s{i}", name="judge") for i in range(4)], {})
    store.ingest([call("other", task=None, done=True, tools=[{"x": 1}]), reward("other", name="judge")], {})
    assert store.judging.lease(ask(), NOW + 9) is None, "single ones only when asked for"
    (one,) = store.judging.lease(ask(singles=True), NOW + 9).groups
    assert one.kind == GroupKind.WINDOW
    assert [(e.episode.id, e.context) for e in one.episodes] == [("s4", False), ("s3", True), ("s2", True)]
    assert store.judging.lease(ask(singles=True), NOW + 9) is None
    got = store.judging.lease(ask(singles=True), NOW + 99)
    assert take_scores(store, got.groups[0].id, scores(got.lease, "s4"), NOW + 99)
    assert store.episodes.get("-", "s4").rewards[0].value == 0.5
    assert store.judging.lease(ask(singles=True), NOW + 200) is None


def test_whoever_judges_a_forgotten_run_loses_the_lease(opened):
    store = opened(window=2, ungrouped=False)
    store.ingest([*group("t1", value=None), *group("t2", value=None)], {})
    store.ingest([call("s1", task=None, done=True), reward("s1", name="judge"), call("s2", task=None, done=True)], {})
    got = store.judging.lease(ask(limit=9, singles=True), NOW + 9)
    kept = {g.id: g.kind for g in got.groups}
    assert len(kept) == 3
    store.forget([("-", "t1-0"), ("-", "s1")], NOW + 10)
    held = [g for g in kept if store.judging.holds(g, got.lease)]
    assert [{e.episode.id for e in g.episodes} for g in got.groups if g.id in held] == [{"t2-0", "t2-1"}]


def test_what_a_judge_noted_beside_a_forgotten_run_goes_too(opened):
    """It may quote that run. What it noted of runs that it read without that one stays, and so do values."""
    store = opened(window=2, ungrouped=False)
    singles = [call(name, task=None, at=NOW + i, done=True) for i, name in enumerate(("s1", "s2"))]
    other = call("other", task=None, done=True, tools=[{"x": 1}])
    store.ingest([*group("t1", value=None), *group("t2", value=None), *singles, other], {})
    noted: dict[str, Any] = {"source": "judge", "name": "judge", "reason": "a note", "at": NOW + 3}
    kept = ("t1-1", "t2-0", "s2", "other")
    store.ingest([reward(name, **noted) for name in ("t1-0", "s1", *kept)], {})
    store.ingest([reward("t1-1", name="label", source="human", reason="mine", at=NOW + 3)], {})
    store.forget([("-", "t1-0"), ("-", "s1")], NOW + 10)
    found = {name: [(r.value, r.reason) for r in store.episodes.get("-", name).rewards] for name in kept}
    assert found == {
        "t1-1": [(1.0, None), (1.0, "mine")],
        "t2-0": [(1.0, "a note")],
        "s2": [(1.0, None)],
        "other": [(1.0, "a note")],
    }


def test_superseded_calls_are_not_shown(store):
    store.ingest([call("a", body_hash="h"), call("a", body_hash="h", attempt=1, done=True), call("b", done=True)], {})
    (one,) = store.judging.lease(ask(), NOW + 9).groups
    assert sorted(len(e.calls) for e in one.episodes) == [1, 1]


def test_what_is_too_old_to_train_on_is_not_judged(store):
    adapters = [("m@1", 1, "retired"), ("m@9", 9, "live")]
    for name, version, state in adapters:
        put_adapter(store, Adapter(name=name, model="m", version=version, state=state, created=NOW, path=name))
    store.ingest([*group("old", adapter="m@1", value=None), *group("new", adapter="m@9", value=None)], {})
    store.ingest(group("held-out", adapter="m@1", split="eval", value=None, start=NOW + 9), {})
    got = store.judging.lease(ask(limit=9), NOW + 20)
    assert sorted(g.task for g in got.groups) == ["held-out", "new"]
    counts = store.statistics.counts(NOW + 30)
    assert counts["lost"] == {"judge": 1}
    assert counts["judging"]["waiting"] == 1
    assert 25 < counts["judging"]["oldest"] < 31


def test_the_judges_lag_is_known(store):
    store.ingest(group("t1", value=None), {})
    store.ingest([reward("t1-0", at=NOW + 50), reward("t1-1", at=NOW + 60)], {})
    assert store.statistics.counts(NOW + 70)["judging"] == {"waiting": 0, "oldest": 0.0, "lag": pytest.approx(58.5)}
