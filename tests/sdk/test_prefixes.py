"""Calls that travel in deltas come back whole."""

from __future__ import annotations

from slipstream.contract import CallRecord, Group, GroupEpisode, GroupKind, SharedPrefix, Split
from slipstream.shared.prefixes import Conversations, anchor, whole_calls, whole_group


def record(name: str, messages: list, prefix: SharedPrefix | None = None, **kw) -> CallRecord:
    fields = {
        "id": name, "episode": "e", "number": 0, "at": 0.0, "seconds": 0.0, "dialect": "chat", "model": "m", "adapter": None,
        "status": 200, "outcome": "ok", "trainable": True, "messages": messages, "reply": [f"reply of {name}"], "prefix": prefix,
    }  # fmt: skip
    return CallRecord.model_validate(fields | kw)


def test_a_call_begins_with_another_ones_messages_and_reply():
    one = record("a", ["x"], tools=["t"], prompt_ids=[1, 2], completion_ids=[[3], [9]])
    two = record(
        "b", ["y"], SharedPrefix(call="a", messages=2, tokens=3, tools=True), prompt_ids=[4], completion_ids=[[5]]
    )
    three = record(
        "c", ["z"], SharedPrefix(call="b", messages=2, tokens=2), tools=[], prompt_ids=[7], completion_ids=[]
    )
    a, b, c = whole_calls([one, two, three])
    assert (a.messages, b.messages, c.messages) == (["x"], ["x", "reply of a", "y"], ["x", "reply of a", "z"])
    assert (a.prompt_ids, b.prompt_ids, c.prompt_ids) == ([1, 2], [1, 2, 3, 4], [1, 2, 7])
    assert (b.tools, c.tools) == (["t"], [])
    assert [r.prefix for r in (a, b, c)] == [None, None, None]


def test_without_tokens_there_are_none():
    assert whole_calls([record("a", ["x"]), record("b", ["x"], SharedPrefix(call="a", tokens=3))])[1].prompt_ids is None


def test_one_call_alone_is_put_together():
    shared = SharedPrefix(call="a", messages=2, tokens=2, tools=True)
    calls = [record("a", ["x"], prompt_ids=[1], completion_ids=[[2, 3]]), record("b", ["y"], shared, prompt_ids=[4])]
    run = Conversations(calls)
    assert [run.whole(call) for call in calls] == whole_calls(calls)


def test_a_call_that_is_not_there_leaves_what_the_call_has():
    assert whole_calls([record("a", ["x"], SharedPrefix(call="gone", messages=3, tools=True))])[0].messages == ["x"]


def test_an_anchor_is_the_nearest_that_stays():
    base = {"c": ("b", 3), "b": ("a", 2), "a": (None, 0)}
    head = {"a": "12", "b": "34"}
    made = anchor("c", base.__getitem__, lambda call, n: head[call][:n], lambda call: call == "a")
    assert (made.base, made.keep, made.pieces) == ("a", 2, ["3"])
    assert anchor("c", base.__getitem__, lambda call, n: head[call][:n]).pieces == ["12", "3"]


def test_a_run_of_thousands_of_calls_is_put_together():
    calls = [record("0", ["first"])]
    calls += [
        record(str(n), [f"m{n}"], SharedPrefix(call=str(n - 1), messages=2 * n, tools=True)) for n in range(1, 3_000)
    ]
    last = whole_calls(calls)[-1].messages
    assert len(last) == 2 * 3_000 - 1
    assert last[:4] == ["first", "reply of 0", "m1", "reply of 1"]


def test_a_group_comes_whole():
    calls = [record("a", ["x"]), record("b", ["y"], SharedPrefix(call="a", messages=2))]
    episode = {
        "id": "e", "key": "-", "task": "t", "split": "train", "model": "m", "adapter": None, "state": "done", "started": 0.0, "ended": 0.0, "calls": 2,
    }  # fmt: skip
    run = GroupEpisode.model_validate({"episode": episode, "calls": [], "rewards": []}).model_copy(
        update={"calls": calls}
    )
    group = Group(id="g", kind=GroupKind.TASK, key="-", task="t", split=Split.TRAIN, model="m", episodes=[run])
    assert whole_group(group).episodes[0].calls[1].messages == ["x", "reply of a", "y"]
