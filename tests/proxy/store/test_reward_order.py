"""Conformance: rewards in the order in which they became final."""

from __future__ import annotations

import json

import pytest
from tests.support.records import NOW, call, done, group, reward
from tests.support.store_writes import pin

from slipstream_proxy.store.learning import rewards
from slipstream_proxy.store.learning.rewards import _refuses

CHANCES = "live=0.9 control=0.1"


def log(store, after: int = 0):
    return [(o.adapter, o.arm, o.chances, o.task, o.reward) for o in ends(store, after)]


def ends(store, after: int = 0, model: str = "m"):
    return [o for o in store.outcomes.since(model, after) if o.reward is not None]


def test_an_episode_is_written_down_when_it_is_done_and_rewarded(store):
    store.ingest([call("a", adapter="m@1", arm="control", chances=CHANCES), call("b", adapter="m@2")], {})
    store.ingest([reward("a", 0.5), done("b")], {})
    assert log(store) == []
    store.ingest([reward("b", 1.0)], {})
    store.ingest([done("a")], {})
    assert log(store) == [("m@2", "live", "", "-/t1", 1.0), ("m@1", "control", CHANCES, "-/t1", 0.5)]


def test_once_as_it_was_first_known(store):
    store.ingest([call("a", done=True), reward("a", 0.5)], {})
    store.ingest([reward("a", 0.9)], {})
    store.ingest([done("a")], {})
    assert [row[-1] for row in log(store)] == [0.5]
    assert store.episodes.get("-", "a").reward == 0.9


def test_only_training_episodes_and_only_what_comes_after_the_cursor(store):
    store.ingest([*group("t1", n=3), *group("held", split="eval")], {})
    found = ends(store)
    assert [o.reward for o in found] == [1.0, 2.0, 3.0]
    assert [o.reward for o in ends(store, found[0].seq)] == [2.0, 3.0]
    assert len(store.outcomes.since("m", 0, limit=1)) == 1
    assert store.outcomes.since("other", 0) == []
    assert store.outcomes.last("m", 1) == found[1].seq and store.outcomes.last("m", 99) == 0


def test_assignments_are_written_down_in_their_order_before_any_call(store):
    """Those that are evidence when they are pinned, others with their first call: a run that hangs has no call."""
    pin(store, "-", "a", "m", "m@1", "live", NOW, CHANCES)
    pin(store, "-", "b", "m", "m", "control", NOW + 1, CHANCES)
    pin(store, "-", "a", "m", "m@1", "live", NOW + 2, CHANCES)
    pin(store, "-", "held", "m", "m@1", "live", NOW + 2, "")
    store.ingest([call("c", at=NOW + 3), call("d", at=NOW + 3, split="eval")], {})
    store.ingest([call("b", adapter="m", arm="control", chances=CHANCES, done=True), reward("b", 0.5)], {})
    found = [(o.eid, o.arm, o.chances, o.reward, o.at - NOW) for o in store.outcomes.since("m", 0)]
    assert found[:3] == [("-/a", "live", CHANCES, None, 0.0), ("-/b", "control", CHANCES, None, 1.0)] + [
        ("-/c", "live", "", None, 3.0)
    ]
    assert [row[:4] for row in found[3:]] == [("-/b", "control", CHANCES, 0.5)]


def test_an_idle_episode_is_final_when_the_sweep_ends_it(store):
    store.ingest([call("a"), reward("a", 0.5)], {})
    store.sweep(NOW + 100_000)
    assert [row[-1] for row in log(store)] == [0.5]


def test_a_forgotten_episode_is_forgotten_here_too(store):
    store.ingest([*group("t1", n=2)], {})
    assert store.forget([("-", "t1-0")], NOW).names
    assert [row[-1] for row in log(store)] == [2.0]


def test_what_an_episode_was_assigned_with_stays_with_its_pin(store):
    first = pin(store, "-", "a", "m", "m@1", "control", NOW, CHANCES)
    again = pin(store, "-", "a", "m", "m@2", "live", NOW, "live=0.5 control=0.5")
    assert first == again and again.chances == CHANCES


def test_what_the_gate_has_read_goes_and_what_it_has_not_stays(store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rewards, "LOOK_BACK", 4)
    for i in range(10):
        store.ingest([call(f"e{i}", done=True), reward(f"e{i}", float(i))], {})
    store.ingest([call("other", trained="n", done=True), reward("other", 0.0)], {})
    every = ends(store)
    assert store.outcomes.prune("m", every[4].seq) == 10  # an assignment and an end of each
    assert [o.reward for o in ends(store)] == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert store.outcomes.prune("m", every[-1].seq) > 0
    left = [o.reward for o in ends(store)]
    assert left[-1] == 9.0 and 1 <= len(left) <= 4  # they still tell an episode that ends twice
    store.ingest([done("e9")], {})
    assert [o.reward for o in ends(store)] == left
    assert len(ends(store, model="n")) == 1


def broken_tool(arguments: str):
    function = {"name": "look", "arguments": arguments}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    return [(said, [7], [-0.5])]


def test_side_measures_are_of_all_calls_and_of_the_newest_reward_of_a_name(store):
    store.ingest([call("a", choices=broken_tool('{"x": 1}')), call("a", choices=broken_tool('{"x": ')), call("b")], {})
    cut = call("b", at=NOW + 1)
    cut.parsed.choices[0].finish_reason = "length"
    refused = call("b", at=NOW + 2, choices=[({"role": "assistant", "content": "", "refusal": "no"}, [7], [-0.5])])
    plain = call("a", at=NOW + 1, choices=[({"role": "assistant", "content": "Sorry, I can't help you."}, [7], [-0.5])])
    store.ingest([plain, cut, refused, reward("b", 0.2, name="polite"), reward("b", 0.4, name="polite")], {})
    every = ["cut_off", "refusals", "tool_errors", "turns", "reply_tokens", "seconds", "reward.polite", "reward.other"]
    found = store.outcomes.measures(["-/a", "-/b", "-/unknown"], every)
    assert found["-/unknown"] == {}
    assert found["-/a"] == {
        "cut_off": 0.0, "refusals": pytest.approx(1 / 3), "tool_errors": pytest.approx(1 / 3), "turns": 3.0,
        "reply_tokens": 1.0, "seconds": 0.5,
    }  # fmt: skip
    assert found["-/b"] == {
        "cut_off": pytest.approx(1 / 3), "refusals": pytest.approx(1 / 3), "tool_errors": 0.0, "turns": 3.0,
        "reply_tokens": pytest.approx(7 / 3), "seconds": 0.5, "reward.polite": 0.4,
    }  # fmt: skip
    assert store.outcomes.measures(["-/b"], ["reward.polite"]) == {"-/b": {"reward.polite": 0.4}}


def test_what_a_version_changed_is_told_by_measure_and_tool_over_the_tasks_that_both_have(store):
    records = []
    for n in range(12):
        tool = broken_tool("{}") if n % 2 else None
        records += [
            call(f"base{n}", task="t", adapter="m", done=True, **({"choices": tool} if tool else {})),
            *(
                call(f"new{n}", task="t", adapter="m@1", choices=broken_tool("{}"), at=NOW + i)
                for i in range(n % 3 + 2)
            ),
            call(f"new{n}", task="t", adapter="m@1", at=NOW + 9, done=True),
            call(f"other{n}", task="only the base", adapter="m", done=True),
        ]
    store.ingest(records, {})
    found = store.reports.behaviour.read("m@1", "m")
    changes = {x.measure: x for x in found.changes}
    (pair,) = found.pairs
    assert pair.task == "t" and pair.base.startswith("-/base") and pair.version.startswith("-/new")
    assert (found.tasks, changes["turns"].base.n, changes["turns"].version.n) == (1, 12, 12)
    looks = changes["calls of look"]
    assert (looks.base.mean, looks.version.mean, looks.difference) == (0.5, 3.0, 2.5) and looks.low > 0
    assert {(r.id, r.value) for r in looks.runs} <= {(f"new{n}", 4.0) for n in (2, 5, 8, 11)} and len(looks.runs) == 3
    assert (changes["turns"].base.mean, changes["turns"].version.mean) == (1.0, 4.0)
    assert changes["refusals"].difference == 0.0 and found.changes[-1].low <= 0 <= found.changes[-1].high
    assert store.reports.behaviour.read("m@1", "m", key="nobody").changes == []
    assert store.reports.behaviour.read("m@1", "m", task="only the base").changes == []


def test_a_reward_comes_with_the_tags_and_the_task_of_its_episode(store):
    store.ingest([call("a", tags={"customer": "acme"}, done=True), reward("a", 1.0)], {})
    (end,) = ends(store)
    assert (end.named, end.tags) == store.outcomes.labels("-/a") == ("t1", '{"customer":"acme"}')
    assert store.outcomes.labels("-/unknown") == (None, "{}")


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I\u2019m really sorry, but I cannot assist with this request.", True),
        ("Sorry, I can't do that.", True),
        ("I cannot provide that information.", True),
        ("I won't help with that.", True),
        ("I'm unable to assist with this.", True),
        ("I must decline to answer.", True),
        ("As an AI language model, I am not able to do this.", True),
        ("Es tut mir leid, aber ich kann dabei nicht helfen.", True),
        ("D\u00e9sol\u00e9, je ne peux pas vous aider.", True),
        ("Lo siento, pero no puedo ayudarte.", True),
        ("\u62b1\u6b49\uff0c\u6211\u65e0\u6cd5\u63d0\u4f9b\u5e2e\u52a9\u3002", True),
        ("I'm sorry for the delay. I moved the mail to Work.", False),
        ("I can help with that.", False),
        ("I cannot find the file, so I looked in the parent folder.", False),
        ("Sorry to hear that! Here is what I found.", False),
        ("The user said: I can't help it.", False),
        ("", False),
    ],
)
def test_a_refusal_in_plain_words(text, refuses):
    assert _refuses(json.dumps([{"role": "assistant", "content": text}])) is refuses
    assert _refuses(json.dumps([{"role": "assistant", "content": [{"type": "text", "text": text}]}])) is refuses
    called = {"role": "assistant", "content": text, "tool_calls": [{"function": {"name": "f"}}]}
    assert not _refuses(json.dumps([called, 3]))
