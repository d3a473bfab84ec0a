"""Conformance: what is ingested is there once, whole, and in order."""

from __future__ import annotations

from pathlib import Path

from tests.support.records import NOW, at, call, done, mutation, reward

from slipstream.contract import EpisodeState
from slipstream_proxy.control.storage.spool_reader import gather, parse
from slipstream_proxy.store.values import EpisodeFilter, Position


def test_a_call_comes_back_as_it_was(store):
    one = call(
        messages=[{"role": "user", "content": "häß \ud800 \x00 😀", "n": 2**70}], prompt=[5, 6], tools=[{"type": "function"}],
        choices=[({"role": "assistant", "content": "a"}, [1, 2], [-0.5, -0.125]), ({"role": "assistant", "content": None}, [], [])],
        sampling={"temperature": 0.5, "n": 2}, tags={"user": "x"}, error="bad \x00 \udfff",
    )  # fmt: skip
    store.ingest([one], at(0, 10))
    found = store.episodes.get("-", "e1", tokens=True)
    assert found is not None
    (got,) = found.call_list
    assert got.messages == one.parsed.messages
    assert got.tools == one.parsed.tools
    assert got.reply == [c.message for c in one.parsed.choices]
    assert (got.prompt_ids, got.completion_ids, got.logprobs) == ([5, 6], [[1, 2], []], [[-0.5, -0.125], []])
    assert got.sampling == {"temperature": 0.5, "n": 2}
    assert (found.tags, found.task, found.model, found.adapter, found.state) == (
        {"user": "x"},
        "t1",
        "m",
        "m",
        EpisodeState.OPEN,
    )
    assert (found.calls, found.prompt_tokens, found.completion_tokens) == (1, 2, 2)
    assert store.episodes.get("-", "e1").call_list[0].prompt_ids is None
    assert store.episodes.get("other", "e1") is None


def test_an_item_counts_once_wherever_it_is_repeated(store):
    items = [call(), reward(), call(), done()]
    store.ingest([*items, items[0]], at(0, 1))
    store.ingest(items, at(0, 2))
    found = store.episodes.get("-", "e1")
    assert found.calls == len(found.call_list) == 2
    assert len(found.rewards) == 1
    assert [c.number for c in found.call_list] == [0, 1]
    assert store.positions() == {"data0": Position(0, 2)}


def test_positions_and_items_are_one_transaction(store):
    store.ingest([call()], at(0, 1))
    bad = mutation("nonsense", {})
    try:
        store.ingest([call("e2"), bad], at(0, 2))
    except ValueError:
        pass
    assert store.positions() == {"data0": Position(0, 1)}
    assert store.episodes.get("-", "e2") is None
    store.ingest([call("e2")], {**at(0, 3), "control": Position(4, 5)})
    assert store.positions() == {"data0": Position(0, 3), "control": Position(4, 5)}


def test_it_is_all_there_after_opening_again(opened):
    first = opened()
    history = [{"role": "user", "content": "1"}]
    one = call(messages=history, prompt=[1, 2])
    first.ingest([one], at(0, 1))
    first.close()
    second = opened()
    two = call(
        messages=[*history, one.parsed.choices[0].message, {"role": "user", "content": "2"}],
        prompt=[1, 2, 7, 8, 9, 3],
        at=NOW + 1,
    )
    second.ingest([two], at(0, 2))
    got = second.episodes.get("-", "e1", tokens=True).call_list
    assert got[1].extends == one.head.id
    assert (got[1].messages, got[1].prompt_ids) == (two.parsed.messages, two.parsed.prompt_ids)


def test_a_later_attempt_supersedes_an_earlier_one_in_any_order(store):
    first, again = call(body_hash="h"), call(body_hash="h", attempt=1)
    store.ingest([first, again], {})
    assert [c.outcome for c in store.episodes.get("-", "e1").call_list] == ["superseded", "ok"]
    store.ingest([call("e2", body_hash="h", attempt=1)], {})
    store.ingest([call("e2", body_hash="h")], {})
    assert [c.outcome for c in store.episodes.get("-", "e2").call_list] == ["ok", "superseded"]
    assert [c.trainable for c in store.episodes.get("-", "e2").call_list] == [True, False]


def test_why_a_call_is_not_trained_on(store):
    store.ingest(
        [
            call(), call(untrainable="temperature 0"), call(outcome="aborted"), call(trained=None), call(external=True), call(prompt=[]),
            call(choices=[("x", [1], [])]),
        ],
        {},
    )  # fmt: skip
    got = [c.untrainable_reason for c in store.episodes.get("-", "e1").call_list]
    assert got == [
        None,
        "temperature 0",
        "aborted",
        "not a trained model",
        "not a trained model",
        "no token ids",
        "no log-probabilities",
    ]


def test_done_by_header_by_word_and_before_its_calls(store):
    store.ingest([call("a", done=True), call("b"), done("b"), done("c")], {})
    store.ingest([call("c")], {})
    store.ingest([call("d"), done("d"), call("d", at=NOW + 5)], {})
    # it ends with the reply of its last call: a run of one call took as long as the call
    assert {e.id: (e.state, e.ended) for e in store.episodes.page(EpisodeFilter()).episodes} == {
        "a": ("done", NOW + 0.5), "b": ("done", NOW + 0.5), "c": ("done", NOW + 0.5), "d": ("done", NOW + 5.5),
    }  # fmt: skip


def test_calls_on_both_sides_of_midnight(store):
    midnight = NOW - NOW % 86400
    one = call(at=midnight - 1)
    two = call(at=midnight + 1, messages=one.parsed.messages, prompt=[1, 2, 3, 4])
    store.ingest([one, two], {})
    assert len(store.archive.days()) == 2
    got = store.episodes.get("-", "e1", tokens=True).call_list
    assert got[1].prompt_ids == [1, 2, 3, 4]
    assert store.archive.drop(store.archive.days()[0]) == 1
    assert [c.id for c in store.episodes.get("-", "e1").call_list] == [two.head.id]
    assert store.archive.drop("2001-01-01") == 0


def test_two_keys_with_one_episode_name_are_two(store):
    store.ingest([call(key="k1"), call(key="k2", at=NOW + 1), reward(key="k1", value=3)], {})
    assert store.episodes.get("k1", "e1").reward == 3
    assert store.episodes.get("k2", "e1").reward is None
    assert store.episodes.get(None, "e1").key == "k2"


def test_the_final_reward_ends_its_episode(store):
    store.ingest([call("a"), reward("a", done=True), call("b"), reward("b", done=False), call("c"), reward("c")], {})
    states = {e.id: e.state.value for e in store.episodes.page(EpisodeFilter()).episodes}
    assert states == {"a": "done", "b": "open", "c": "open"}, "a record of before has no word on it"
    store.ingest([reward("a", 0.25, done=True, at=NOW + 9), reward("b", done=True), reward("late", done=True)], {})
    store.ingest([call("late")], {})
    states = {e.id: e.state.value for e in store.episodes.page(EpisodeFilter()).episodes}
    assert states == {"a": "done", "b": "done", "c": "open", "late": "done"}
    assert store.episodes.get("-", "a").reward == 0.25, "late rewards still correct"


def test_a_call_in_flight_when_the_reward_comes_belongs_to_the_run(store):
    store.ingest([call("a"), reward("a", done=True, at=NOW + 2)], {})
    store.ingest([call("a", at=NOW + 1, seconds=5.0)], {})
    found = store.episodes.get("-", "a")
    assert (found.state, found.calls, found.ended) == ("done", 2, NOW + 6)


def test_a_spool_of_schema_2_replays_as_before(store):
    """Segments that the program of schema 2 wrote: its rewards have no word on whether the episode ends."""
    folder = Path(__file__).parent / "spool_v2"
    reads = gather(folder, {}, 100, 2**20, lambda *_: None)
    store.ingest([parse(read)[0] for read in reads], {})
    found = store.episodes.get("-", "e1", tokens=True)
    assert (found.state, found.reward, found.calls) == ("open", 0.5, 2)
    one, two = found.call_list
    assert (two.extends, two.prompt_ids, two.completion_ids) == (one.id, [1, 2, 3, 4, 5], [[6]])
