from __future__ import annotations

import numpy as np
import pytest
from tests.support.tiny import sample

from slipstream.errors import ConfigError
from slipstream_trainer.algorithm.advantage import assign, centered, check_advantage, returns_of
from slipstream_trainer.batch.layout import make_plan
from slipstream_trainer.batch.rows import exact_continuations


def test_formulas() -> None:
    r = np.array([0.0, 1.0, 1.0, 2.0])
    assert centered(r, "mean").tolist() == [-1, 0, 0, 1]
    assert centered(r, "std") == pytest.approx((r - 1) / (np.std(r, ddof=1) + 1e-4))
    assert centered(r, "leave_one_out") == pytest.approx([0 - 4 / 3, 1 - 1, 1 - 1, 2 - 2 / 3])
    assert centered(np.array([1.0]), "mean").tolist() == [0.0]


def own(rewards_E):
    return np.sign(rewards_E - np.median(rewards_E))


def flipping(rewards_E):
    rewards_E -= 10
    return -rewards_E


def test_a_function_of_ones_own() -> None:
    samples = [sample(f"e{i}", [3], [4], group="g", reward=r) for i, r in enumerate((0, 1, 5))]
    check_advantage(f"{__name__}:own")
    found = assign(samples, f"{__name__}:own")
    assert found.episodes == {"e0": -1.0, "e1": 0.0, "e2": 1.0}
    assign(samples, f"{__name__}:flipping")
    assert [s.advantage for s in samples] == [10, 9, 5]
    assert [s.reward for s in samples] == [0, 1, 5], "its array is its own"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            lambda r: r.sum(),
            r"made .* of the rewards \[0.0, 0.5, 1.0\]: return one finite number for each reward, as .*\(3,\)",
        ),
        (lambda r: r / 0.0, ".*return one finite number for each reward"),
        (lambda _: "x", ".*return one finite number for each reward"),
        (lambda r: r.nothing, "fails on the rewards 0, 0.5, 1: AttributeError"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_what_a_function_of_ones_own_must_give(monkeypatch, made, message) -> None:
    monkeypatch.setitem(globals(), "bad", made)
    spec = f"{__name__}:bad"
    with pytest.raises(ConfigError, match=f"^trainer.advantage = '{spec}' {message}"):
        check_advantage(spec)


def test_groups_are_their_own_baseline() -> None:
    samples = [sample(f"e{i}", [3], [4], group=f"g{i // 2}", reward=r) for i, r in enumerate((0, 1, 5, 5, 2, 4))]
    found = assign(samples, "mean")
    assert [s.advantage for s in samples] == [-0.5, 0.5, 0, 0, -1, 1]
    assert (found.groups, found.dropped) == (3, 1)
    assert [s.reason for s in samples] == [None, None, "zero_variance", "zero_variance", None, None]
    assert found.episodes == {"e0": -0.5, "e1": 0.5, "e2": 0.0, "e3": 0.0, "e4": -1.0, "e5": 1.0}
    assert found.reward_mean == pytest.approx(17 / 6)


def test_what_runs_were_compared_with_is_told_and_siblings_are_no_runs() -> None:
    samples = [sample(f"e{i}", [3], [4], group="g", reward=r) for i, r in enumerate((0, 1))]
    samples += [sample(f"c~0~{i}", [3], [4], group="s", reward=r) for i, r in enumerate((7, 8, 9))]
    samples += [sample(f"u{i}", [3], [4], group=f"u{i}", kind="like", reward=r) for i, r in enumerate((0, 1))]
    found = assign(samples, "mean")
    assert found.baselines == {"group": 2, "step": 3, "batch": 2}
    assert found.reward_mean == 0.5 and found.episodes["c~0~2"] == 1.0


def test_an_episode_counts_once_however_many_calls_it_has() -> None:
    samples = [sample("a", [3], [4], number=n, reward=1.0) for n in range(9)] + [sample("b", [3], [4], reward=0.0)]
    assign(samples, "mean")
    assert {s.advantage for s in samples} == {0.5, -0.5}


def test_ungrouped_traffic_shares_one_baseline() -> None:
    samples = [
        sample(f"e{i}", [3], [4], group=f"g{i}", kind=k, reward=float(i))
        for i, k in enumerate(("like", "window", "like"))
    ]
    found = assign(samples, "mean")
    assert [s.advantage for s in samples] == [-1, 0, 1]
    assert (found.groups, found.dropped) == (1, 0)


def test_a_calls_own_reward_is_its_alone() -> None:
    samples = [
        sample("a", [3], [4], call="a0", reward=0.0, call_reward=1.0), sample("a", [3], [4], call="a1", reward=0.0, call_reward=-1.0),
        sample("b", [3], [4], call="b0", reward=0.0),
    ]  # fmt: skip
    assign(samples, "mean")
    assert [s.advantage for s in samples] == [1.0, -1.0, 0.0]


def test_a_reward_that_is_no_number_is_in_no_baseline() -> None:
    samples = [sample(n, [3], [4], reward=r) for n, r in (("a", 0.0), ("b", 1.0), ("c", float("nan")))]
    samples[2].trainable = False
    assign(samples, "mean")
    assert [s.advantage for s in samples] == [-0.5, 0.5, 0.0]


def test_one_fresh_run_learns_from_its_stale_siblings() -> None:
    """All that is left to train on has the same reward, or is one run alone: the group is not dropped."""
    samples = [sample(f"e{i}", [3], [4], reward=float(i < 2)) for i in range(4)]
    for s in samples[1:]:
        s.trainable, s.reason = False, "stale"
    found = assign(samples, "mean")
    assert (found.dropped, samples[0].advantage, samples[0].trainable) == (0, 0.5, True)
    assert found.episodes == {"e0": 0.5, "e1": 0.5, "e2": -0.5, "e3": -0.5}


def test_an_episode_without_a_call_that_ended_well_counts() -> None:
    failed = sample("e1", [], [], reward=0.0, call="", trainable=False, reason="no_call")
    samples = [sample("e0", [3], [4], reward=1.0), failed]
    assign(samples, "mean")
    assert samples[0].advantage == 0.5


def test_two_keys_with_the_same_episode_id_are_two_episodes() -> None:
    samples = [
        sample("run", [3], [4], key="a", reward=1.0), sample("run", [3], [5], key="b", reward=0.0),
        sample("run", [3], [6], key="b", number=1, reward=0.0),
    ]  # fmt: skip
    found = assign(samples, "mean")
    assert found.episodes == {"a/run": 0.5, "b/run": -0.5}
    assert [s.advantage for s in samples] == [0.5, -0.5, -0.5]
    scored = make_plan(samples).scored
    assert (scored.units, scored.unit_T.tolist()) == (2, [0, 1, 1])
    assert exact_continuations(samples) == (0, 1)


def test_a_call_counts_by_what_comes_after_it_against_the_same_turn() -> None:
    assert returns_of({0: 1.0, 3: 0.0, 7: 2.0}, 4.0, 0.5) == {7: 6.0, 3: 3.0, 0: 2.5}
    given = {"a": (1.0, 0.0, 0.0), "b": (0.0, 2.0), "c": (0.0, 0.0)}
    samples = [
        sample(run, [3], [4], call=f"{run}{n}", number=2 * n, reward=0.0, call_reward=reward)
        for run, rewards in given.items()
        for n, reward in enumerate(rewards)
    ]
    found = assign(samples, "mean", 0.5)
    # returns: a 1, 0, 0; b 1, 2; c 0, 0. The first turn's mean is 2/3, the second one's 2/3. Only a came to the third.
    expected = [1 / 3, -2 / 3, -4 / 7, 1 / 3, 4 / 3, -2 / 3, -2 / 3]
    assert [s.advantage for s in samples] == pytest.approx(expected)
    assert found.baselines == {"call": 3}


@pytest.mark.parametrize("own", [None, 0.0, 1e-9])
def test_with_a_discount_no_reward_of_a_call_is_the_same_as_0(own: float | None) -> None:
    samples = [
        sample(run, [3], [4], call=f"{run}{n}", number=n, reward=reward, call_reward=own if n == 0 else None)
        for run, reward, calls in (("a", 1.0, 3), ("b", 0.0, 2))
        for n in range(calls)
    ]
    found = assign(samples, "mean", 0.5)
    # returns: a 1/4, 1/2, 1; b 0, 0. Only a came to the third turn, where all calls' mean is 0.35.
    assert [s.advantage for s in samples] == pytest.approx([1 / 8, 1 / 4, 0.65, -1 / 8, -1 / 4])
    assert found.episodes == {"a": 0.5, "b": -0.5} and found.dropped == 0


@pytest.mark.parametrize(("own", "dropped"), [(None, 1), (0.0, 1), (0.5, 0)])
def test_with_a_discount_runs_of_the_same_reward_are_compared_by_their_calls_alone(own, dropped: int) -> None:
    runs = [("a", 0), ("a", 1), ("b", 0)]
    samples = [
        sample(r, [3], [4], call=f"{r}{n}", number=n, reward=1.0, call_reward=own if r == "a" else None)
        for r, n in runs
    ]
    assert assign(samples, "mean", 0.5).dropped == dropped
    assert {s.trainable for s in samples} == {not dropped}


def test_calls_that_all_have_the_same_return_are_left_out() -> None:
    same = [sample(run, [3], [4], call=run, reward=0.0, call_reward=1.0) for run in ("a", "b")]
    assign(same, "mean", 0.9)
    assert {s.reason for s in same} == {"zero_variance"}
