"""The gate on a control plane as it runs (its statistics: gate/)."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
from tests.support.plane import register, state, until

from slipstream_proxy.control.adapters import gatekeeper
from slipstream_proxy.store import outcomes


async def pin(plane, episode: str, task: str = "t1") -> dict[str, str]:
    asked = {"key": "-", "episode": episode, "model": "tiny", "task": task, "split": "train"}
    reply = await plane.client.post("/internal/pins", json=[asked])
    assert reply.status == 200
    return (await reply.json())[0]


async def play(plane, name: str, tasks: int, reward: Callable[[str], float], size: int = 4) -> int:
    """Tasks of ``size`` episodes each, pinned as the data plane would, rewarded by the adapter they got. → Live episodes."""
    live = 0
    for t in range(tasks):
        for i in range(size):
            episode, task = f"{name}{t}-{i}", f"task{t}"
            got = await pin(plane, episode, task)
            live += got["arm"] == "live" and got["adapter"] != "tiny"
            head = {"adapter": got["adapter"], "arm": got["arm"], "chances": got["chances"]}
            await plane.call(episode, task=task, done=True, **head)
            await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": reward(got["adapter"])})
        await read_all(plane, name, t + 1, size)
    return live


async def read_all(plane, name: str, tasks: int, size: int) -> None:
    """Until the store and then the gate have these episodes."""
    for i in range(size):
        await until(lambda i=i: _rewarded(plane, f"{name}{tasks - 1}-{i}"))
    await plane.deps.gatekeeper.decide()


async def _rewarded(plane, episode: str) -> bool:
    status, body = await plane.ask("GET", f"/episodes/{episode}")
    return status == 200 and body["state"] == "done" and body["reward"] is not None


async def test_guard_takes_a_worse_one_back_and_says_so(make_plane):
    plane = await make_plane(gate={"holdout": 0.1})
    await play(plane, "before", 4, lambda _: 1.0)
    _, body = await register(plane, 1)
    assert body["state"] == "candidate"
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny@1", [["tiny", "control", 0.3]])  # more while it is young
    await play(plane, "a", 12, lambda adapter: float(adapter == "tiny"))
    assert (await state(plane, 1))["state"] == "rolled_back"
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny"
    assert plane.deps.live.value["models"]["tiny"]["arms"] == []
    events = [json.loads(x) for x in (await plane.ask("GET", "/training/events"))[1].splitlines()]
    found = next(e for e in events if e["kind"] == "rollback")["data"]
    assert (found["adapter"], found["to"], found["reason"]) == ("tiny@1", "tiny", "worse than tiny")
    gate = found["gate"]
    assert gate["lower"] <= gate["difference"] <= gate["upper"] <= 0 and gate["evidence"] >= gate["threshold"]
    leased = {"worker": "w", "min_groups": 1, "max_wait": 0}
    r = await plane.client.post("/slipstream/v1/batches/lease", json=leased, headers=plane.as_())
    if r.status == 200:
        table = pa.ipc.open_stream(await r.read()).read_all()
        assert "tiny@1" not in table["adapter"].to_pylist()


async def test_versions_that_come_faster_than_verdicts_are_taken_back_together(make_plane):
    """Each version always fails and is replaced after four episodes: the evidence goes on."""
    plane = await make_plane(gate={"holdout": 0.1, "pace": "go"})
    await play(plane, "before", 4, lambda _: 1.0)
    live = 0
    for version in range(1, 16):
        await register(plane, version)
        live += await play(plane, f"v{version}-", 1, lambda adapter: float(adapter == "tiny"))
        if (await state(plane, version))["state"] == "rolled_back":
            break
    else:
        raise AssertionError("none was taken back")
    assert version > 1 and live <= 40
    assert [(await state(plane, v))["state"] for v in range(1, version)] == ["retired"] * (version - 1)
    assert plane.deps.live.value["models"]["tiny"]["live"] == "tiny"


async def test_guard_accepts_a_better_one_and_measures_slides_against_it(make_plane):
    plane = await make_plane(gate={"holdout": 0.5})
    await play(plane, "before", 4, lambda _: 0.0)
    await register(plane, 1)
    await play(plane, "a", 14, lambda adapter: float(adapter == "tiny@1"))
    found = await state(plane, 1)
    assert (found["state"], found["accepted"], found["best"]) == ("live", True, True)
    assert found["reason"] == "better than tiny"
    assert plane.deps.live.value["models"]["tiny"]["arms"] == []


async def test_an_unsuspected_one_is_accepted_and_the_best_one_keeps_a_share(make_plane):
    plane = await make_plane(gate={"holdout": 0.3, "settle": 20})
    await play(plane, "before", 3, lambda _: 0.5)
    await register(plane, 1)
    report = (await state(plane, 1))["gate"]
    await play(plane, "a", 10, lambda _: 0.5)
    found = await state(plane, 1)
    assert (found["state"], found["best"]) == ("live", False)
    assert "nothing speaks against it" in found["reason"]
    live = plane.deps.live.value["models"]["tiny"]
    assert live["live"] == "tiny@1" and [a[:2] for a in live["arms"]] == [["tiny", "best"]]
    assert report is None or report["decision"] == "undecided"


async def test_the_evidence_outlives_a_restart(make_plane):
    plane = await make_plane(gate={"holdout": 0.3})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 2, lambda adapter: float(adapter == "tiny"))
    before = (await state(plane, 1))["gate"]
    assert before["evidence"] > 0.7 and before["trial_episodes"] > 2
    await plane.again()
    await plane.deps.gatekeeper.decide()
    assert (await state(plane, 1))["gate"] == before


async def evidence(plane, n: int) -> list[dict]:
    status, body = await plane.ask("GET", f"/adapters/tiny@{n}/evidence")
    assert status == 200 and (body["adapter"], body["threshold"]) == (f"tiny@{n}", 100.0)
    return body["readings"]


async def test_how_the_evidence_moved_outlives_a_restart_and_a_crash(make_plane, monkeypatch):
    plane = await make_plane(gate={"holdout": 0.3})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 1, lambda adapter: float(adapter == "tiny"))
    first = await evidence(plane, 1)
    assert [r["trial_episodes"] + r["control_episodes"] for r in first] == [1, 2, 3, 4]
    assert all(a["at"] <= b["at"] for a, b in zip(first, first[1:], strict=False)) and first[0]["at"] > 1e9
    await plane.again()
    assert await evidence(plane, 1) == first
    await play(plane, "b", 1, lambda adapter: float(adapter == "tiny"))
    second = await evidence(plane, 1)
    assert second[:4] == first and len(second) == 8

    async def crash(*_):
        raise OSError("killed before it kept anything")

    monkeypatch.setattr(plane.deps.gatekeeper, "_keep", crash)
    await plane.again()
    await plane.deps.gatekeeper.decide()
    assert await evidence(plane, 1) == second, "it is read again, and counts once"
    report = (await state(plane, 1))["gate"]
    assert {k: second[-1][k] for k in ("difference", "lower", "upper", "evidence")} == {
        k: report[k] for k in ("difference", "lower", "upper", "evidence")
    }
    assert (await plane.ask("GET", "/adapters/tiny@9/evidence"))[0] == 404


async def test_the_evidence_of_a_version_that_was_taken_back_stays_to_be_seen(make_plane):
    plane = await make_plane(gate={"holdout": 0.3})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 12, lambda adapter: float(adapter == "tiny"))
    assert (await state(plane, 1))["state"] == "rolled_back"
    found = await evidence(plane, 1)
    assert found[0]["evidence"] < 2 and found[-1]["evidence"] >= 100 and found[-1]["upper"] <= 0


async def test_outcomes_that_were_read_are_dropped(make_plane, monkeypatch):
    for module, name, value in (
        (outcomes, "LOOK_BACK", 8),
        (gatekeeper, "KEEP_EVERY", 4),
        (gatekeeper, "PRUNE_EVERY", 1),
    ):
        monkeypatch.setattr(module, name, value)
    plane = await make_plane(gate={"holdout": 0.1})
    await play(plane, "a", 10, lambda _: 1.0)
    store = plane.deps.stores.current
    await until(lambda: len(store.outcomes.since("tiny", 0)) <= 12)
    # with so short a memory an episode whose reward comes in two parts may count twice
    assert 40 <= plane.deps.gatekeeper.trials.trials["tiny"].seen <= 44


async def test_a_newer_candidate_takes_the_place_of_an_undecided_one(make_plane):
    plane = await make_plane(gate={"mode": "guard", "holdout": 0.1})
    await register(plane, 1)
    await register(plane, 2)
    assert (await state(plane, 1))["state"] == "retired"
    assert "undecided" in (await state(plane, 1))["reason"]
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny@2", [["tiny", "control", 0.3]])


async def test_with_pace_1_a_newer_version_waits_and_only_the_newest_is_tried(make_plane):
    plane = await make_plane(gate={"holdout": 0.5, "pace": 1})
    await play(plane, "before", 4, lambda _: 0.0)
    for version in (1, 2, 3):
        await register(plane, version, wait=0)
    await until(lambda: _is(plane, 2, "retired"))
    assert [(await state(plane, v))["state"] for v in (1, 2, 3)] == ["candidate", "retired", "loading"]
    await plane.deps.gatekeeper.decide()
    assert (await state(plane, 1))["gate"]["waiting"] == ["tiny@3"]
    await play(plane, "a", 10, lambda adapter: float(adapter != "tiny"))
    assert (await state(plane, 1))["accepted"]
    await until(lambda: _tried(plane, 3))


async def test_what_waits_goes_with_the_version_it_was_made_from(make_plane):
    plane = await make_plane(gate={"holdout": 0.5, "pace": 1})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await register(plane, 2, wait=0)
    await play(plane, "a", 12, lambda adapter: float(adapter == "tiny"))
    assert (await state(plane, 1))["state"] == "rolled_back"
    found = await state(plane, 2)
    assert (found["state"], found["reason"]) == ("retired", "made from tiny@1, which was taken back")


async def test_canary_gives_the_candidate_its_share_only(make_plane):
    plane = await make_plane(gate={"mode": "canary", "share": 0.5})
    await register(plane, 1)
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == ("tiny", [["tiny@1", "candidate", 0.5]])
    got = [await pin(plane, f"e{i}") for i in range(40)]
    assert {(g["adapter"], g["arm"]) for g in got} == {("tiny", "live"), ("tiny@1", "candidate")}


async def test_canary_takes_a_worse_one_back(make_plane):
    plane = await make_plane(gate={"mode": "canary", "share": 0.5})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 12, lambda adapter: float(adapter == "tiny"))
    assert (await state(plane, 1))["state"] == "rolled_back"


async def test_one_enormous_reward_of_the_control_hides_nothing(make_plane):
    plane = await make_plane(gate={"holdout": 0.5})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    enormous = iter([1e6])
    await play(plane, "a", 14, lambda a: next(enormous, 1.0) if a == "tiny" else 0.0)
    assert (await state(plane, 1))["state"] == "rolled_back"


async def _is(plane, n: int, wanted: str) -> bool:
    return (await state(plane, n))["state"] == wanted


async def _tried(plane, n: int) -> bool:
    return (await state(plane, n))["state"] in ("candidate", "live")
