"""Runs of no task, compared by kind of traffic."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.tiny import sample

from slipstream_trainer.algorithm.advantage import assign
from slipstream_trainer.algorithm.traffic import HALF_LIFE, MAX_KINDS, Traffic, kinds_of
from slipstream_trainer.batch.rows import Sample


def runs(*given: tuple[str, float], key: str = "k") -> list[Sample]:
    """(tags, reward) of each."""
    return [
        sample(f"e{i}", [3], [4], group=f"g{i}", kind="like", key=key, tags=tags, reward=reward)
        for i, (tags, reward) in enumerate(given)
    ]


def advantages(samples: list[Sample], traffic: Traffic | None, kind: str = "mean") -> np.ndarray:
    assign(samples, kind, traffic=traffic)
    return np.array([s.advantage for s in samples])


def by_rank(rewards_E):
    return np.argsort(np.argsort(rewards_E)) - (len(rewards_E) - 1) / 2


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), min_size=1, max_size=6),
    st.sampled_from(["none", "one", "each"]),
    st.sampled_from(["std", "mean", "leave_one_out", f"{__name__}:by_rank"]),
)
def test_one_kind_gets_what_it_got_and_a_tag_that_is_new_each_time_is_none(batches, tags, kind) -> None:
    traffic, count = Traffic(), 0
    for rewards in batches:
        given = [({"none": "", "one": '{"a":"b"}', "each": str(count + i)}[tags], r) for i, r in enumerate(rewards)]
        count += len(rewards)
        assert advantages(runs(*given), traffic, kind).tolist() == advantages(runs(*given), None, kind).tolist()


def two_armed(random: np.random.Generator) -> list[tuple[str, float]]:
    """An easy customer's runs and a hard one's. In each every other run is a good one, and worth 0.2 more."""
    worth = {("easy", 0): 0.7, ("easy", 1): 0.9, ("hard", 0): 0.1, ("hard", 1): 0.3}
    return [(who, worth[who, i % 2] + random.normal(0, 0.05)) for who in ("easy", "hard") for i in range(8)]


@pytest.mark.parametrize("by", ["key", "tag"])
def test_a_hard_kinds_good_runs_are_good_and_the_gradient_is_quieter(by) -> None:
    random, traffic = np.random.default_rng(0), Traffic()
    found: dict[str, list[np.ndarray]] = {"batch": [], "ema": []}
    for n in range(30):
        samples = runs(*two_armed(random))
        for s in samples:
            s.key, s.tags = (s.tags, str(n)) if by == "key" else (s.key, s.tags)
        found["batch"].append(advantages(samples, None))
        told = assign(samples, "mean", traffic=traffic)
        found["ema"].append(np.array([s.advantage for s in samples]))
        assert told.baselines == ({"ema": 16} if n else {"batch": 16})
    batch, ema = (np.stack(found[name][10:]).reshape(20, 2, 4, 2) for name in ("batch", "ema"))  # kind, pair, arm
    assert batch[:, 1, :, 1].mean() < -0.15, "beside the easy customer's, a good run counts as a bad one"
    assert ema[:, 1, :, 1].mean() > 0.05 and ema[:, 0, :, 0].mean() < -0.05
    assert np.abs(ema.mean((0, 2, 3))).max() < 0.05, "each kind's are centred"
    slope = np.array([-0.5, 0.5])  # of log p(arm) by its logit, at even odds
    noise = [float((a * slope).var()) for a in (batch, ema)]
    assert noise[1] < 0.2 * noise[0]


batch = st.lists(
    st.tuples(st.sampled_from("abc"), st.floats(-3, 3)).map(lambda run: (run[0], run[1] + 9 * "abc".index(run[0]))),
    min_size=3,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(batch, min_size=3, max_size=6), st.floats(-3, 3), st.booleans())
def test_no_run_is_in_its_own_baseline(batches, other, known) -> None:
    """Only in the batch's mean: another reward changes what is taken from no run."""
    traffic = Traffic()
    *before, last = batches
    for earlier in before:
        assign(runs(*earlier), "mean", traffic=traffic)
    taken = []
    for reward in (0.0, other):
        samples = runs(("a" if known else "new", reward), *last)
        even_E, evened = deepcopy(traffic).even_out(samples, rewards_E := np.array([s.reward for s in samples]))
        assume(evened.any())
        taken.append(rewards_E - even_E)
    assert taken[0] == pytest.approx(taken[1], abs=1e-9)


def test_a_better_policy_or_another_mix_is_no_difference_of_kinds() -> None:
    """The rare kind is seen twice in a batch, while the level rises and the mix turns round."""
    traffic = Traffic()
    for n in range(60):
        easy = 30 if n < 40 else 6
        level = n / 60
        assign(runs(*[("easy", level + 0.5)] * easy, *[("hard", level)] * (32 - easy)), "mean", traffic=traffic)
        easy_at, hard_at = (traffic.offset(kinds_of(runs((tags, 0.0))[0])) for tags in ("easy", "hard"))
        if n > 15:
            assert 0.35 < easy_at - hard_at < 0.6, n


def test_where_kinds_do_not_explain_the_rewards_the_batch_is_the_baseline() -> None:
    """All have become good: what was learned before would be most of what is left, and ``std`` would make it large."""
    traffic = Traffic()
    for _ in range(9):
        assign(runs(*[("easy", 1.0), ("hard", 0.0)] * 8), "mean", traffic=traffic)
    late = [("easy", 1.0), ("hard", 1.0)] * 7 + [("easy", 0.9), ("hard", 1.0)]
    found = assign(samples := runs(*late), "std", traffic=traffic)
    assert found.baselines == {"batch": 16}
    assert [s.advantage for s in samples] == advantages(runs(*late), None, "std").tolist()
    assert assign(runs(*[("easy", 1.0), ("hard", 1.0)] * 4), "std", traffic=traffic).dropped == 1


seen: list[np.ndarray] = []


def noting(rewards_E):
    seen.append(rewards_E)
    return by_rank(rewards_E)


def test_a_function_of_ones_own_gets_rewards_with_the_mean_that_they_had() -> None:
    traffic, random = Traffic(), np.random.default_rng(1)
    for _ in range(4):
        given = two_armed(random)
        assign(runs(*given), f"{__name__}:noting", traffic=traffic)
        assert np.isfinite(seen[-1]).all() and seen[-1].mean() == pytest.approx(np.mean([r for _, r in given]))
    assert seen[-1].std() < 0.5 * seen[0].std()


def test_runs_of_a_task_are_compared_as_they_are() -> None:
    traffic = Traffic()
    assign(runs(*[("easy", 1.0), ("hard", 0.0)] * 8), "mean", traffic=traffic)
    before = deepcopy(traffic)
    task = [sample(f"t{i}", [3], [4], tags=tags, reward=r) for i, (tags, r) in enumerate((("easy", 1), ("hard", 0)))]
    assert assign(task, "mean", traffic=traffic).baselines == {"group": 2}
    assert traffic == before


@pytest.mark.parametrize("apart", [1.0, 7.0, 20.0])
def test_nothing_of_a_kinds_distance_stays_in_the_advantages(apart) -> None:
    traffic, random, wrong, easier = Traffic(), np.random.default_rng(0), [], []
    for n in range(90):
        noise = random.normal(size=32)
        given = [("easy", apart + x) if i % 2 else ("hard", x) for i, x in enumerate(noise)]
        assign(samples := runs(*given), "std", traffic=traffic)
        if n >= 60:
            got = np.array([s.advantage for s in samples])
            wrong.append(np.mean((got > 0) != (noise > 0)))
            easier.append(got[1::2].mean() - got[::2].mean())
    assert np.mean(wrong) <= 0.1 and abs(np.mean(easier)) <= 0.25


def test_memory_fades_and_has_a_bound() -> None:
    traffic = Traffic()
    assign(runs(*[("easy", 1.0), ("hard", 0.0)] * 8), "mean", traffic=traffic)
    easy = kinds_of(runs(("easy", 0.0))[0])
    assert traffic.offset(easy) == pytest.approx(0.5 * 8 / 16)
    assign(runs(*[("hard", 0.0)] * HALF_LIFE), "mean", traffic=traffic)
    assert traffic.kinds[easy[1]] == [8.0, 4.0, 8.0], "by runs of the kind"
    assign(runs(*[("easy", 1.0)] * HALF_LIFE), "mean", traffic=traffic)
    assert traffic.kinds[easy[1]][0] == 4 + HALF_LIFE
    for n in range(3):
        assign(runs(*((f"{n}-{i}", float(i % 2)) for i in range(MAX_KINDS // 2))), "mean", traffic=traffic)
    assert len(traffic.kinds) == MAX_KINDS and easy[0] in traffic.kinds and easy[1] not in traffic.kinds
