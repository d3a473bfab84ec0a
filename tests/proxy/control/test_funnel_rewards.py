"""Rewards and scores that count for nothing: the line names the weight and the fix."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.support.plane import until

from slipstream.contract import FunnelLine
from slipstream_proxy.control.status.causes.rewards import flat_lines, shape_lines
from slipstream_proxy.store.read.reward_shape import RewardShape
from slipstream_proxy.store.read.status import AdapterReward

SMALL = {"groups": {"size": 2}, "trainer": {"min_groups": 2}}


async def line(plane, cause: str) -> FunnelLine:
    async def look():
        body = (await plane.ask("GET", "/status"))[1]
        return next((x for x in body["funnel"]["lines"] if (x["stage"], x["cause"]) == ("reward", cause)), None)

    return FunnelLine.model_validate(await until(look))


async def causes(plane) -> list[str]:
    return [x["cause"] for x in (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]]


async def run(plane, name: str, reward: dict[str, object] | None = None) -> None:
    await plane.call(name, task="t", done=True)
    await plane.seen(name)
    if reward:
        assert (await plane.ask("POST", f"/episodes/{name}/rewards", reward))[0] == 200


async def test_a_judge_without_a_weight_trains_nothing_and_is_told(make_plane):
    plane = await make_plane(**SMALL, judge={"model": "m"}, reward={"weights": {"reward": 1.0}})
    found = await line(plane, "unweighted_judge")
    assert not found.blocks  # rewards may still be posted
    assert "'judge' has no weight in reward.weights" in found.text
    assert "weights = { judge = 1.0 }" in found.fix
    for n in range(2):
        await run(plane, f"e{n}")
    await line(plane, "missing_reward")
    assert (await line(plane, "unweighted_judge")).blocks


async def test_a_judge_of_another_name_and_a_function(make_plane):
    judge = {"model": "m", "name": "my score", "function": "a:b"}
    plane = await make_plane(**SMALL, judge=judge, reward={"weights": {"judge": 1.0}})
    assert 'weights = { "my score" = 1.0 }' in (await line(plane, "unweighted_my score")).fix
    assert "add `function = 1.0`" in (await line(plane, "unweighted_function")).fix


@pytest.mark.parametrize("weights", [None, {"judge": 1.0}, {"judge": 0.5, "reward": 1.0}])
async def test_a_judge_that_counts_needs_no_line(make_plane, weights):
    plane = await make_plane(**SMALL, judge={"model": "m"}, **({"reward": {"weights": weights}} if weights else {}))
    for n in range(2):
        await run(plane, f"e{n}")
    await line(plane, "missing_judge")
    assert not [c for c in await causes(plane) if c.startswith("unweighted")]


async def test_rewards_posted_under_a_name_that_has_no_weight(make_plane):
    plane = await make_plane(**SMALL)
    for n in range(2):
        await run(plane, f"e{n}", {"name": "score", "value": float(n)})
    found = await line(plane, "unweighted_score")
    assert (found.count, found.blocks) == (2, True)
    assert "score = 1.0" in found.fix and "post it as 'reward'" in found.fix
    for n in range(2):
        assert (await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)}))[0] == 200
    assert not [c for c in await causes(plane) if c.startswith("unweighted")]  # now it is one figure more


async def test_posted_rewards_beside_a_judge(make_plane):
    """With a judge its score is what trains by default: a reward that is posted too is named."""
    plane = await make_plane(**SMALL, judge={"model": "m"})
    for n in range(2):
        await run(plane, f"e{n}", {"value": float(n)})
    found = await line(plane, "unweighted_reward")
    assert (found.count, found.blocks) == (2, False)  # the judge's scores are on their way
    assert "post it as 'judge'" not in found.fix
    for episode in ("e0", "unknown"):  # also where no call has come yet
        _, ack = await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": 1.0})
        assert "trains nothing" in ack["fix"] and "`reward = 1.0`" in ack["fix"]


def standing(*versions: tuple[int, int, float]) -> list[AdapterReward]:
    return [AdapterReward("m", version, n, mean, 0.16) for version, n, mean in versions]


def flat(steps: int, versions: list[AdapterReward], best: float = 1.0) -> list[FunnelLine]:
    counts = SimpleNamespace(trained=steps, standing=versions, best=best, worst=0.0)
    return list(flat_lines(counts, SimpleNamespace()))  # type: ignore[arg-type]


def test_reward_that_is_flat_after_many_steps_is_told() -> None:
    same = standing((0, 186, 0.212), (9, 40, 0.3), (13, 53, 0.18), (14, 21, 0.28))
    (found,) = flat(17, same)
    assert "flat after 17 steps" in found.text and not found.blocks
    assert "0.21 (0.16 to 0.28) in 186 runs" in found.text and "in 114 runs (95 % intervals)" in found.text
    assert "Training" in (found.fix or "")
    assert flat(9, same) == []
    assert flat(17, standing((0, 186, 0.212), (14, 100, 0.5))) == []
    assert flat(17, standing((0, 186, 0.212), (14, 5, 0.2))) == []  # too few to tell
    assert flat(17, standing((14, 100, 0.2))) == []
    assert flat(17, standing((0, 50, 1.0), (14, 100, 1.0))) == []  # nothing is left to learn


def shaped(shape: RewardShape | None, best: float = 1.0, worst: float = 0.0) -> list[str]:
    return [x.cause for x in shape_lines(SimpleNamespace(shape=shape, best=best, worst=worst))]  # type: ignore[arg-type]


def test_a_reward_that_says_nothing_or_only_the_length_is_told() -> None:
    usual = RewardShape(64, 0.0, 1.0, 20, 0.4)
    assert shaped(None) == shaped(usual) == shaped(usual._replace(length=None)) == []
    assert shaped(usual._replace(low=0.3, high=0.3, at_best=64), 0.3, 0.3) == ["constant"]
    assert shaped(usual._replace(low=0.3, high=0.3, at_best=64), 0.3 + 6e-11, 0.3) == ["constant"], "rounding"
    assert shaped(usual._replace(length=-0.99)) == ["length"]
    assert shaped(usual._replace(at_best=63)) == ["ceiling"]
    assert shaped(usual._replace(at_best=64)) == [], "that training has nothing left to learn is another line"
    broken = usual._replace(same=63, newest=0.0)
    assert shaped(broken) == ["unvaried"] and shaped(broken._replace(same=31)) == []
    assert shaped(broken._replace(newest=1.0)) == [], "the best reward there is"
    assert shaped(usual._replace(n=31, length=-0.99)) == []


async def test_how_rewards_are_spread_is_read_from_the_newest_runs(make_plane) -> None:
    plane = await make_plane(**SMALL)
    for n in range(32):
        await plane.call(f"r{n}", task="t", done=True)
    for n in range(32):
        await plane.seen(f"r{n}")
        assert (await plane.ask("POST", f"/episodes/r{n}/rewards", {"value": 0.3}))[0] == 200
    found = await line(plane, "constant")
    assert found.blocks and "32 rewards of the newest runs are 0.3" in found.text
    assert not {"equal", "learned"} & set(await causes(plane))
