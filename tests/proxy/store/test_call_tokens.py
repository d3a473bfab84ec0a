"""Conformance: a call's tokens, found by its id alone."""

from __future__ import annotations

import random

from tests.support.records import NOW, call, group, mutation, want
from tests.support.store_writes import take_ack

from slipstream.contract import BatchAck


def test_each_call_of_a_random_run_has_the_tokens_that_the_episode_shows(store):
    """Runs that go on, branch, compact and sample twice: put together from deltas, against the episode's own reading."""
    chance = random.Random(3)
    history: list[list[int]] = [[1, 2, 3]]
    for i in range(24):
        prompt = list(chance.choice(history))
        if chance.random() < 0.2:
            prompt = prompt[: chance.randint(1, len(prompt))]
        prompt += [chance.randrange(100) for _ in range(chance.randint(1, 4))]
        sampled = [
            [chance.randrange(100) for _ in range(chance.randint(1, 5))] for _ in range(chance.choice((1, 1, 2)))
        ]
        choices = [({"role": "assistant", "content": "x"}, ids, [-0.5] * len(ids)) for ids in sampled]
        messages = [{"role": "user", "content": str(t)} for t in prompt]
        store.ingest([call("run", at=NOW + i, prompt=prompt, choices=choices, messages=messages)], {})
        history.append(prompt + sampled[0])
    for shown in store.episodes.get("-", "run", tokens=True).call_list:
        found = store.reports.tokens.get(None, shown.id)
        assert found.prompt.tolist() == shown.prompt_ids
        assert [ids.tolist() for ids, _ in found.choices] == shown.completion_ids
        assert [values.tolist() for _, values in found.choices] == shown.logprobs


def test_keys_and_what_is_forgotten(store):
    one = call("a", key="k1")
    store.ingest([one], {})
    assert store.reports.tokens.get("k1", one.head.id).ep.id == "a"
    assert store.reports.tokens.get("k2", one.head.id) is None
    assert store.reports.tokens.get(None, "nothing") is None
    store.ingest([mutation("delete", {"key": "k1", "episode": "a"})], {})
    assert store.reports.tokens.get(None, one.head.id) is None


def test_it_knows_what_was_trained_on_it(store):
    store.ingest(group("t1"), {})
    batch = store.batches.lease(want(), {}, 0, NOW + 9)
    ack = BatchAck(lease=batch.lease, outcome="trained", adapter="m@1", step=5, advantages={"t1-0": -1.0})
    take_ack(store, batch.id, ack, NOW + 9)
    first = store.episodes.get("-", "t1-0").call_list[0].id
    found = store.reports.tokens.get(None, first)
    assert (found.trained.advantage, found.step, found.group_state) == (-1.0, 5, "trained")
