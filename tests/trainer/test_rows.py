from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny import VOCAB, conversation, sample, table

from slipstream_trainer.batch.rows import exact_continuations, merge_chains, read_samples, untrainable


def test_a_leased_table_comes_back_as_samples() -> None:
    before = conversation(1)
    after = read_samples(table(before), VOCAB)
    for a, b in zip(before, after, strict=True):
        assert a.prompt_P.tolist() == b.prompt_P.tolist()
        assert a.completion_C.tolist() == b.completion_C.tolist()
        assert a.logprobs_C.tolist() == b.logprobs_C.tolist()
        assert (a.group, a.episode, a.call, a.number, a.reward) == (b.group, b.episode, b.call, b.number, b.reward)
        assert b.trainable
        assert b.temperature == pytest.approx(a.temperature) and b.filter is None
    packed = table([sample("a", [3], [4], filter=(0.5, 3.0, 0.25), tags='{"customer":"acme"}')])
    (cut,), (older,) = read_samples(packed, VOCAB), read_samples(packed.drop_columns("tags"), VOCAB)
    assert cut.filter == (0.5, 3.0, 0.25)
    assert (cut.tags, older.tags) == ('{"customer":"acme"}', "")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"logprobs_C": np.array([-1.0, np.nan], dtype=np.float32)}, "not_finite"),
        ({"logprobs_C": np.array([-1.0, -np.inf], dtype=np.float32)}, "not_finite"),
        ({"logprobs_C": np.array([-1.0, -9999.0], dtype=np.float32)}, "logprobs_missing"),
        ({"logprobs_C": np.array([-1.0], dtype=np.float32)}, "logprobs_missing"),
        ({"reward": float("nan")}, "not_finite"),
        ({"temperature": 0.0}, "temperature"),
        ({"completion_C": np.array([3, VOCAB], dtype=np.int32)}, "unknown_token"),
        ({"prompt_P": np.array([], dtype=np.int32)}, "no_prompt"),
        ({"completion_C": np.array([], dtype=np.int32)}, "empty"),
        ({"trainable": False, "reason": "top_k"}, "top_k"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_at_the_door(change, reason: str) -> None:
    good, bad = sample("a", [3, 4], [5, 6]), sample("b", [3, 4], [5, 6], **change)
    found = read_samples(table([good, bad]), VOCAB)
    assert found[0].trainable
    assert not found[1].trainable
    assert untrainable(found) == {reason: 1}


def test_continuations_share_a_chain() -> None:
    samples = [
        sample("a", [1, 2], [3, 4]),
        sample("a", [1, 2, 3, 4, 9], [5, 6], number=1),
        sample("a", [1, 2, 3, 9], [7], number=2),  # the history was changed
        sample("b", [1, 2], [3, 4]),  # another episode said the same
    ]
    chains = merge_chains(samples)
    assert [c.ids_L.tolist() for c in chains] == [[1, 2, 3, 4, 9, 5], [1, 2, 3, 9]]
    assert sorted(chains[0].samples) == [0, 1, 3]
    assert len(merge_chains(samples, per_call=True)) == 4
    assert exact_continuations(samples) == (1, 2)


def test_untrainable_calls_are_context_only() -> None:
    samples = [sample("a", [1, 2], [3, 4], trainable=False), sample("a", [1, 2, 3, 4, 9], [5], number=1)]
    (chain,) = merge_chains(samples)
    assert chain.samples == [1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=4)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_sample_lies_on_one_chain_under_its_own_prefix(parts) -> None:
    samples = [sample(f"e{i}", p, c) for i, (p, c) in enumerate(parts)]
    chains = merge_chains(samples)
    assert sorted(i for c in chains for i in c.samples) == list(range(len(samples)))
    for chain in chains:
        for i in chain.samples:
            whole = [*samples[i].prompt_P.tolist(), *samples[i].completion_C.tolist()][:-1]
            assert chain.ids_L.tolist()[: len(whole)] == whole
    keys = [c.ids_L.tobytes() for c in chains]
    assert keys == sorted(keys)
    assert not any(b.startswith(a) for k, a in enumerate(keys) for b in keys[k + 1 :])


def test_an_empty_batch() -> None:
    assert merge_chains([]) == []
    assert exact_continuations([]) == (0, 0)
    assert read_samples(table([])) == []
