"""Conformance: the trainer's leases."""

from __future__ import annotations

from tests.support.records import NOW, call, group, mutation, reward, rules, want
from tests.support.store_writes import members_of, take_ack

from slipstream.contract import BATCH_COLUMNS, BatchAck
from slipstream_proxy.store import open_store
from slipstream_proxy.store.write.batches import hard_first, share_out


def ack(batch, outcome="trained", **kw):
    return BatchAck(lease=batch.lease, outcome=outcome, **kw)


def test_a_batch_says_what_filters_left(store):
    sampling = {"temperature": 0.5, "top_p": 0.75, "top_k": -1, "min_p": 0.0}
    store.ingest([call("a", done=True, sampling=sampling), call("b", done=True), reward("a", 1), reward("b", 0)], {})
    got = store.batches.lease(want(), {"m": 0}, 0, NOW + 9).table.to_pylist()
    assert {r["episode"]: (r["temperature"], r["filter"]) for r in got} == {"a": (0.5, [0, 0, 0.75]), "b": (1.0, None)}


def test_a_batch_has_the_runs_tags_without_our_own(store):
    told, ours = {"b": "2", "a": 'x"'}, {"explore": "temperature"}
    store.ingest([call("a", done=True, tags=told | ours), call("b", done=True, tags=ours)], {})
    store.ingest([reward("a", 1), reward("b", 0)], {})
    got = store.batches.lease(want(), {"m": 0}, 0, NOW + 9).table.to_pylist()
    assert {r["episode"]: r["tags"] for r in got} == {"a": '{"a":"x\\"","b":"2"}', "b": None}


def test_a_batch_has_the_sampled_tokens_of_each_choice(store):
    two = [
        ({"role": "assistant", "content": "a"}, [4], [-0.5]),
        ({"role": "assistant", "content": "b"}, [5, 6], [-1.0, -2.0]),
    ]
    store.ingest(
        [
            call("a", choices=two, adapter="m@3"), call("a", at=NOW + 1, prompt=[1, 2, 3, 4, 9], untrainable="temperature 0", adapter="m@3"),
            call("a", at=NOW + 2, outcome="aborted"), call("a", at=NOW + 3, done=True), reward("a", 0.5), *group("t1", 1, start=NOW + 9),
        ],
        {},
    )  # fmt: skip
    got = store.batches.lease(want(), {"m@3": 3}, 4, NOW + 20)
    assert tuple(got.table.column_names) == BATCH_COLUMNS
    rows = got.table.to_pylist()
    assert [(r["episode"], r["number"], r["choice"]) for r in rows] == [
        ("a", 0, 0),
        ("a", 0, 1),
        ("a", 1, 0),
        ("a", 3, 0),
        ("t1-0", 0, 0),
    ]
    assert [r["completion_ids"] for r in rows[:2]] == [[4], [5, 6]]
    assert [r["logprobs"] for r in rows[:2]] == [[-0.5], [-1.0, -2.0]]
    assert rows[2]["prompt_ids"] == [1, 2, 3, 4, 9]
    assert [(r["trainable"], r["untrainable_reason"]) for r in rows[1:3]] == [(True, None), (False, "temperature 0")]
    assert [(r["adapter"], r["staleness"]) for r in rows] == [("m@3", 1)] * 3 + [("m", 4)] * 2
    assert [r["reward"] for r in rows] == [0.5] * 4 + [1.0]
    assert {(r["kind"], r["task"], r["group"]) for r in rows} == {("task", "t1", rows[0]["group"])}


def test_trained_once_or_back(store):
    store.ingest(group("t1"), {})
    got = store.batches.lease(want(seconds=10), {}, 0, NOW + 5)
    assert store.batches.lease(want(), {}, 0, NOW + 6) is None
    assert take_ack(store, got.id, ack(got, "released"), NOW + 6)
    got = store.batches.lease(want(seconds=10), {}, 0, NOW + 7)
    assert take_ack(store, got.id, ack(got, adapter="m@1", advantages={"t1-0": -1.0}), NOW + 8)
    assert take_ack(store, got.id, ack(got), NOW + 8)
    assert not take_ack(store, got.id, ack(got, "skipped"), NOW + 8)
    assert store.batches.lease(want(), {}, 0, NOW + 99) is None
    detail = store.episodes.get("-", "t1-0")
    assert (detail.advantage, detail.batches, detail.trained_adapters) == (-1.0, [got.id], ["m@1"])


def test_two_keys_with_the_same_episode_ids_keep_their_advantages(store):
    store.ingest([*group("t1", key="k1"), *group("t1", key="k2")], {})
    got = store.batches.lease(want(), {}, 0, NOW + 5)
    runs = {f"{r['key']}/{r['episode']}" for r in got.table.to_pylist()}
    assert len(runs) == 2 * len({r["episode"] for r in got.table.to_pylist()})
    wanted = {run: float(n) for n, run in enumerate(sorted(runs))}
    assert take_ack(store, got.id, ack(got, adapter="m@1", advantages=wanted), NOW + 6)
    for run, advantage in wanted.items():
        assert store.episodes.get(*run.split("/", 1)).advantage == advantage


def test_an_episode_without_a_call_that_ended_well_has_its_reward_in_the_batch(store):
    store.ingest([call("a", outcome="error"), call("a", at=NOW + 1, outcome="error", done=True), reward("a", 0.0)], {})
    store.ingest(group("t1", 1, start=NOW + 9), {})
    rows = store.batches.lease(want(), {}, 0, NOW + 20).table.to_pylist()
    assert {r["episode"]: (r["untrainable_reason"], r["reward"]) for r in rows}["a"] == ("no_call", 0.0)


def test_a_lease_that_ran_out(store):
    store.ingest(group("t1"), {})
    one = store.batches.lease(want(seconds=10), {}, 0, NOW + 5)
    two = store.batches.lease(want(seconds=10), {}, 0, NOW + 30)
    assert two is not None
    assert not take_ack(store, one.id, ack(one), NOW + 31)
    store.sweep(NOW + 60)
    assert take_ack(store, two.id, ack(two), NOW + 61), "nobody else has it"
    assert store.statistics.counts(NOW)["groups"] == {"trained": 1}


def test_groups_wait_for_number_or_time(store):
    store.ingest([*group("t1"), *group("t2", start=NOW + 2)], {})
    assert store.batches.lease(want(min_groups=3, max_wait=100), {}, 0, NOW + 50) is None
    assert store.batches.lease(want(min_groups=3, max_wait=100), {}, 0, NOW + 200) is not None


def test_a_reward_is_frozen_when_its_batch_is_leased(store):
    store.ingest(group("t1"), {})
    store.ingest([reward("t1-0", 5.0)], {})
    got = store.batches.lease(want(seconds=10), {}, 0, NOW + 5)
    store.ingest([reward("t1-0", 9.0)], {})
    assert sorted(set(got.table["reward"].to_pylist())) == [2.0, 5.0]
    assert store.episodes.get("-", "t1-0").reward == 9.0
    again = store.batches.lease(want(), {}, 0, NOW + 30)
    assert sorted(set(again.table["reward"].to_pylist())) == [2.0, 9.0]


def test_a_stale_run_is_baseline_only(store):
    old, new = call("old", adapter="m@1", done=True), call("new", adapter="m@6", done=True)
    store.ingest([old, new, reward("old", 0.0), reward("new", 1.0)], {})
    got = store.batches.lease(want(max_staleness=4), {"m@1": 1, "m@6": 6}, 6, NOW + 5).table.to_pylist()
    assert [(r["episode"], r["trainable"], r["untrainable_reason"], r["reward"], r["staleness"]) for r in got] == [
        ("new", True, None, 1.0, 0),
        ("old", False, "stale", 0.0, 5),
    ]
    counts = store.statistics.counts(NOW)
    assert (counts["stale_runs"], counts["lost"]) == (1, {})


def test_the_control_arm_costs_no_group(store):
    for n in range(8):
        items = []
        for i in range(2):
            arm = {"adapter": "m", "arm": "control"} if i else {"adapter": "m@9"}
            items += [call(f"{n}-{i}", task=f"t{n}", done=True, **arm), reward(f"{n}-{i}", i)]  # type: ignore[arg-type]
        store.ingest(items, {})
    got = store.batches.lease(want(max_staleness=4), {"m@9": 9}, 9, NOW + 5).table.to_pylist()
    assert len({r["group"] for r in got}) == 8
    assert {r["episode"][-1] for r in got if r["trainable"]} == {"0"}


def test_a_group_in_which_nothing_can_be_trained_on_is_lost(store):
    store.ingest([*group("old", adapter="m@1"), *group("new", adapter="m@5"), *group("base")], {})
    store.ingest(group("forced", untrainable="forced tool"), {})
    got = store.batches.lease(want(max_staleness=4), {"m@1": 1, "m@5": 5}, 6, NOW + 5)
    assert set(got.table["episode"].to_pylist()) == {"new-0", "new-1"}
    counts = store.statistics.counts(NOW)
    assert counts["groups"] == {"leased": 1, "stale": 2, "dropped": 1}
    assert counts["lost"] == {"trainer": 2, "nothing_trainable": 1}
    assert store.statistics.funnel("judge", NOW).lost == {("stale", "trainer"): 2, ("dropped", "nothing_trainable"): 1}


def test_each_loss_has_its_cause(store):
    store.ingest([*group("bad", adapter="m@1"), *group("gone", 1), *group("skipped")], {})
    same = [call("e0", at=NOW + 3, done=True), call("e1", at=NOW + 3, done=True), reward("e0", 0.5), reward("e1", 0.5)]
    store.ingest(same, {})
    store.batches.drop_adapter("m@1")
    store.forget([("-", "gone-0")], NOW)
    got = store.batches.lease(want(max_groups=1), {}, 0, NOW + 5)
    take_ack(store, got.id, ack(got, "skipped", reason="too far"), NOW + 6)
    equal = store.batches.lease(want(), {}, 0, NOW + 7)
    assert take_ack(store, equal.id, ack(equal, adapter="m@2"), NOW + 8)
    assert store.statistics.counts(NOW)["lost"] == {"deleted": 1, "equal_rewards": 1, "rolled_back": 1, "skipped": 1}


def test_groups_of_an_adapter_that_was_taken_back_never_train(store):
    store.ingest([*group("bad", adapter="m@1"), *group("good"), *group("half", 1, adapter="m@1")], {})
    leased = store.batches.lease(want(seconds=10), {"m@1": 1}, 1, NOW + 5)
    assert store.batches.drop_adapter("m@1") == 2
    take_ack(store, leased.id, ack(leased, "released"), NOW + 7)
    got = store.batches.lease(want(), {}, 1, NOW + 8)
    assert set(got.table["episode"].to_pylist()) == {"good-0", "good-1"}


def test_one_key_does_not_fill_a_batch_while_others_wait(store):
    store.ingest([r for i in range(6) for r in group(f"a{i}", key="k1", start=NOW + i)], {})
    store.ingest(group("b", key="k2", start=NOW + 10), {})
    got = store.batches.lease(want(max_groups=4), {}, 0, NOW + 20)
    assert sorted(t[0] for t in got.table["task"].to_pylist()) == ["a"] * 4 + ["b"] * 2
    got = store.batches.lease(want(max_groups=4), {}, 0, NOW + 20)
    assert sorted(set(got.table["task"].to_pylist())) == ["a2", "a3", "a4", "a5"]


def test_eval_groups_and_other_models_are_not_leased(store):
    store.ingest([*group("e", split="eval"), *group("o", trained="other"), *group("x", trained=None)], {})
    assert store.batches.lease(want(), {}, 0, NOW + 9) is None
    got = store.batches.lease(want(model=None), {}, 0, NOW + 9)
    assert set(got.table["task"].to_pylist()) == {"o"}


def test_a_worker_that_begins_anew_frees_its_leases(store):
    store.ingest(group("t1"), {})
    got = store.batches.lease(want(), {}, 0, NOW + 5)
    assert store.release_leases("somebody") == 0
    assert store.release_leases("w1") == 1
    assert take_ack(store, got.id, ack(got), NOW + 6), "it had finished after all, and nobody else has it"


def test_skipped_groups_do_not_come_back(store):
    store.ingest(group("t1"), {})
    got = store.batches.lease(want(), {}, 0, NOW + 5)
    assert take_ack(store, got.id, ack(got, "skipped", reason="ratio 9.0"), NOW + 6)
    assert store.batches.lease(want(), {}, 0, NOW + 7) is None
    assert not take_ack(store, "b0", ack(got), NOW)
    assert not take_ack(store, got.id, BatchAck(lease="other", outcome="skipped"), NOW)


def test_an_ack_from_the_spool_is_the_same_ack(store):
    store.ingest(group("t1"), {})
    got = store.batches.lease(want(), {}, 0, NOW + 5)
    members = members_of(store, got.id)
    assert members["episodes"] == [["-", "t1-0", *members["groups"], 1.0], ["-", "t1-1", *members["groups"], 2.0]]
    data = {"batch": got.id, "ack": ack(got, adapter="m@1").model_dump(mode="json"), "members": members}
    assert take_ack(store, got.id, ack(got, adapter="m@1"), NOW + 6)
    store.ingest([mutation("ack", data)], {})
    assert store.statistics.counts(NOW)["groups"] == {"trained": 1}


def test_a_rebuilt_store_does_not_train_twice(opened, tmp_path):
    store = opened()
    records = group("t1")
    store.ingest(records, {})
    got = store.batches.lease(want(), {}, 0, NOW + 5)
    data = {
        "batch": got.id,
        "ack": ack(got, adapter="m@1").model_dump(mode="json"),
        "members": members_of(store, got.id),
    }
    for order in ([*records, mutation("ack", data)], [mutation("ack", data), *records]):
        new = open_store(f"duckdb:///{tmp_path}/new{len(order[0].__slots__)}.duckdb", rules())
        new.ingest(order, {})
        assert new.batches.lease(want(), {}, 0, NOW + 99) is None
        assert new.forget([("-", "t1-0")], NOW).adapters == ["m@1"]
        new.close()


def test_call_rewards_go_with_their_calls_where_credit_does(opened):
    store = opened(credit="call")
    one, two = call("a"), call("a", at=NOW + 1, done=True)
    store.ingest([one, two, reward("a", 1.0), reward("a", 0.5, call=two.head.id), *group("t1", 1)], {})
    got = store.batches.lease(want(), {}, 0, NOW + 9).table.to_pylist()
    assert [(r["reward"], r["call_reward"]) for r in got] == [(1.0, None), (1.0, 0.5), (1.0, None)]


def equal(task, **kw):
    """A group whose two runs have the same reward."""
    return [*group(task, value=None, **kw), reward(f"{task}-0", 1.0), reward(f"{task}-1", 1.0)]


def test_groups_of_equal_rewards_come_without_their_calls_and_take_no_place(store):
    for n in range(3):
        store.ingest([*equal(f"e{n}"), *group(f"t{n}")], {})
    got = store.batches.lease(want(max_groups=2, equal="rewards"), {}, 0, NOW + 5)
    rows = got.table.to_pylist()
    bare = [r for r in rows if r["untrainable_reason"] == "zero_variance"]
    assert {r["episode"] for r in bare} == {f"e{n}-{i}" for n in range(3) for i in range(2)}
    assert all((r["call"], r["prompt_ids"], r["reward"], r["trainable"]) == ("", [], 1.0, False) for r in bare)
    assert {r["episode"] for r in rows if r["trainable"]} == {f"t{n}-{i}" for n in range(2) for i in range(2)}
    assert take_ack(store, got.id, ack(got, adapter="m@1"), NOW + 6)
    assert store.statistics.counts(NOW)["groups"] == {"trained": 5, "ready": 1}
    assert len(store.batches.lease(want(equal="rewards"), {}, 0, NOW + 7).table) == 2


def leased(store, now, **settings) -> set[str] | None:
    """The tasks of the batch that is leased then."""
    got = store.batches.lease(want(max_wait=30, equal="rewards", seconds=86_400, **settings), {}, 0, NOW + now)
    return None if got is None else set(got.table["task"].to_pylist())


def test_a_step_waits_for_groups_that_teach(store):
    store.ingest([r for n in range(8) for r in equal(f"e{n}")], {})
    store.ingest(group("t0"), {})
    assert leased(store, 5, min_groups=2) is None
    store.ingest(group("t1"), {})
    assert leased(store, 6, min_groups=2) == {"t0", "t1", *(f"e{n}" for n in range(8))}


def test_a_remainder_waits_longer_the_less_it_can_move(store):
    for n in range(3):
        store.ingest(group(f"t{n}"), {})
    assert leased(store, 60, min_groups=9) is None, "six runs"
    store.ingest(group("t3", start=NOW + 60), {})
    assert leased(store, 61, min_groups=9) == {f"t{n}" for n in range(4)}, "eight"
    store.ingest(group("t5", start=NOW + 100), {})
    assert leased(store, 200, min_groups=9) is None
    assert leased(store, 240, min_groups=9) == {"t5"}


def test_groups_that_teach_nothing_go_by_themselves_and_never_hide_others(store):
    for n in range(8):
        store.ingest(equal(f"e{n}"), {})
    assert leased(store, 5, min_groups=2, max_groups=2) == {f"e{n}" for n in range(8)}, "a pile"
    store.ingest(equal("f"), {})
    assert leased(store, 20, min_groups=2) is None
    assert leased(store, 60, min_groups=2) == {"f"}
    store.ingest([*equal("h", start=NOW + 70), *group("t", start=NOW + 70)], {})
    assert leased(store, 110, min_groups=2) is None, "it goes with those that teach"


def test_equal_rewards_come_whole_where_calls_have_their_own(opened):
    store = opened(credit="call")
    store.ingest(equal("e"), {})
    assert all(r["call"] for r in store.batches.lease(want(equal="rewards"), {}, 0, NOW + 5).table.to_pylist())


def test_equal_rewards_come_whole_where_nobody_asks_otherwise(store):
    store.ingest(equal("e"), {})
    assert all(r["call"] for r in store.batches.lease(want(), {}, 0, NOW + 5).table.to_pylist())


def test_shares():
    waiting = [("g1", "a"), ("g2", "a"), ("g3", "b"), ("g4", "a")]
    assert share_out(waiting, 2, 0.5) == ["g1", "g3"]
    assert share_out(waiting, 4, 0.5) == ["g1", "g2", "g3"]
    assert share_out(waiting[:2], 4, 0.5) == ["g1", "g2"]
    assert share_out([], 4, 0.5) == []


def test_hard_tasks_go_first_where_more_wait_than_a_step_takes(opened):
    """Every other place is for the task whose good runs are the rarest; the oldest never waits behind them."""
    store = opened(group_size=4)
    rewards = {"a": [1, 1, 1, 0], "b": [1, 1, 0, 0], "c": [5, 5, 5, 9], "d": [1, 1, 1, 0]}
    for n, (task, found) in enumerate(rewards.items()):
        runs = group(task, len(found), value=None, start=NOW + n)
        store.ingest([*runs, *(reward(f"{task}-{i}", value, at=NOW + n) for i, value in enumerate(found))], {})
    got = store.batches.lease(want(max_groups=2), {"m": 0}, 0, NOW + 99).table.to_pylist()
    assert {r["task"] for r in got} == {"a", "c"}, "the oldest, and the hardest by its own scale"
    got = store.batches.lease(want(max_groups=2), {"m": 0}, 0, NOW + 99).table.to_pylist()
    assert {r["task"] for r in got} == {"b", "d"}
    assert hard_first("abcd", {"a": 0.0, "b": 0.0, "c": 0.5, "d": 0.9}) == ["a", "d", "b", "c"]
    assert hard_first([], {}) == []


def test_what_a_judge_scores_late_and_at_once_is_trained_on_before_it_is_too_old(store):
    """44 groups waited for a judge that failed. It scores them one after the other, and each step makes a version."""
    records = [r for n in range(44) for r in group(f"t{n:02}", value=None, start=NOW)]
    store.ingest(records, {})
    live, left, now, trained = 0, list(range(44)), NOW + 100, 0
    versions = {"m": 0}
    while left or trained < 44:
        for n in left[:2]:  # two groups a second, where a step takes as long
            rewards = [reward(f"t{n:02}-{i}", float(i), at=now) for i in range(2)]
            store.ingest(rewards, {})
        left, now = left[2:], now + 1
        batch = store.batches.lease(want(min_groups=4, max_wait=30.0), versions, live, now)
        if batch is not None:
            trained += len({row["group"] for row in batch.table.to_pylist() if row["trainable"]})
            live += 1
            versions[f"m@{live}"] = live
            take_ack(store, batch.id, ack(batch, adapter=f"m@{live}", step=live), now)
        assert now < NOW + 400, "it came to an end"
    assert trained == 44 and live <= 6
    assert not store.statistics.counts(now)["lost"]


def test_a_few_groups_wait_for_no_others(store):
    """Rewards that come one by one are no flood."""
    store.ingest([r for n in range(8) for r in group(f"t{n}", value=None, start=NOW)], {})
    for n in range(4):
        store.ingest([reward(f"t{n}-{i}", float(i), at=NOW + 50) for i in range(2)], {})
    assert store.batches.lease(want(min_groups=4, max_wait=30.0), {"m": 0}, 0, NOW + 51) is not None


def test_groups_that_teach_nothing_are_no_flood(store):
    """Where one group in five teaches, a step comes as soon as enough of those are there."""
    for n in range(20):
        store.ingest(group(f"t{n:02}", value=None, start=NOW), {})
        values = (0.0, 1.0) if n % 5 == 4 else (0.0, 0.0)
        store.ingest([reward(f"t{n:02}-{i}", value, at=NOW + n / 10) for i, value in enumerate(values)], {})
        asked = want(min_groups=4, max_wait=30.0, max_staleness=3, equal="rewards")
        batch = store.batches.lease(asked, {"m": 0}, 0, NOW + n / 10)
        assert (batch is not None) == (n == 19)
