"""The gate on a control plane as it runs (its statistics: gate/)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from tests.support.dataplane import ASK, Proxy, post
from tests.support.plane import register, state, until

from slipstream_proxy.control.adapters import gatekeeper
from slipstream_proxy.control.gate.rules import Decision
from slipstream_proxy.control.gate.suspicion import is_frozen
from slipstream_proxy.control.gate.verdict import verdict_on
from slipstream_proxy.store.learning import rewards


async def pins(
    plane, episodes: list[str], task: str = "t1", tags: dict[str, str] | None = None
) -> list[dict[str, str]]:
    shared = {"key": "-", "model": "tiny", "task": task, "split": "train", "tags": tags or {}}
    reply = await plane.client.post("/internal/pins", json=[{**shared, "episode": e} for e in episodes])
    assert reply.status == 200
    return await reply.json()


async def pin(plane, episode: str, task: str = "t1", tags: dict[str, str] | None = None) -> dict[str, str]:
    return (await pins(plane, [episode], task, tags))[0]


def know_that_nearly_all_get_a_reward(plane) -> None:
    for _ in range(130):
        plane.deps.rollout.trials.of("tiny").deadline.see(1.0, 0, tested=False)


async def metrics(plane) -> str:
    return await (await plane.client.get("/internal/metrics")).text()


async def test_one_customer_of_two_is_looked_at_by_its_tag(make_plane, monkeypatch):
    """The tags of a run's first call reach the gate, those of a run that hangs too."""
    plane = await make_plane(gate={"holdout": 0.5, "by": ["tag.customer", "task"]})
    tags = {"customer": "acme", "other": "x"}
    await play(plane, "before", 6, lambda _: 1.0, tags=tags)
    await register(plane, 1)
    await play(plane, "a", 4, lambda _: 1.0, tags=tags)
    know_that_nearly_all_get_a_reward(plane)
    (group,) = (await state(plane, 1))["gate"]["groups"]
    assert (group["name"], group["difference"]) == ("tag.customer=acme", 0.0)
    got = await pin(plane, "hangs")
    await plane.call("hangs", adapter=got["adapter"], arm=got["arm"], chances=got["chances"], tags=tags)
    await plane.seen("hangs")
    monkeypatch.setattr(gatekeeper, "SPOOL_SETTLING_S", -7200.0)  # two hours later
    before = group["trial_episodes"] + group["control_episodes"]

    async def counted() -> bool:
        await plane.deps.rollout.gatekeeper.decide()
        found = plane.deps.rollout.trials.report("tiny").groups[0]
        return found.trial_episodes + found.control_episodes == before + 1

    await until(counted)


async def test_one_customer_keeps_the_version_before_and_all_others_go_on(make_plane):
    """Taken back for one group alone: at assignment, in the live state, over a restart, for the next version, in
    what people see, and until a person gives it back.
    """
    plane = await make_plane(gate={"holdout": 0.4, "group_verdict": "group", "by": ["tag.customer"]})
    acme, others = {"customer": "acme"}, {"customer": "others"}
    await play(plane, "w", 5, lambda _: 0.5, tags=acme)
    await register(plane, 1)
    await play(plane, "b", 1, lambda adapter: float(adapter != "tiny@1"), tags=acme)
    slot = plane.deps.rollout.trials.of("tiny").evidence.groups.slots["tag.customer=acme"]
    slot.detectors[0].wealths[0] = slot.detectors[0].wealth = 100.0  # many such runs
    assert verdict_on(plane.deps.rollout.trials.of("tiny")) is Decision.ROLLBACK_GROUP
    await plane.deps.rollout.gatekeeper._act("tiny", Decision.ROLLBACK_GROUP)
    found = await state(plane, 1)
    assert found["kept_from"] == {"tag.customer=acme": "tiny"} and found["state"] == "candidate"
    assert "worse than tiny for tag.customer=acme: -" in found["reason"]

    async def served(name: str, tags: dict[str, str]) -> Counter[str]:
        return Counter([(await pin(plane, f"{name}{i}", tags=tags))["adapter"] for i in range(12)])

    assert await served("p", acme) == {"tiny": 12} and (await served("q", others))["tiny@1"] > 1
    assert plane.deps.live.value["models"]["tiny"]["kept"] == {"tag.customer=acme": "tiny"}
    trial = plane.deps.rollout.trials.of("tiny")
    assert trial.evidence.worse.n_tested == 0 and await play(plane, "late", 1, lambda _: 0.0, tags=acme) == 0
    assert trial.evidence.worse.n_tested + trial.evidence.worse.n_reference == 0, "its runs are no evidence any more"
    await plane.again()
    assert await served("r", acme) == {"tiny": 12} and (await served("s", others))["tiny@1"] > 1
    await register(plane, 2, parent="tiny@1")
    assert await served("t", acme) == {"tiny": 12} and (await served("u", others))["tiny@2"] > 1
    _, status = await plane.ask("GET", "/status")
    (line,) = [x for x in status["funnel"]["lines"] if x["cause"] == "group"]
    assert "tag.customer=acme" in line["text"] and "--group tag.customer=acme" in line["fix"]
    assert 'slipstream_gate_kept_groups{model="tiny"} 1.0' in await metrics(plane)
    body = {"group": "tag.customer=acme", "reason": "mended"}
    assert (await plane.ask("POST", "/adapters/tiny@2/promote", {"group": "tag.customer=zoo"}))[0] == 409
    assert (await plane.ask("POST", "/adapters/tiny@2/promote", body))[1]["kept_from"] == {}
    assert (await served("v", acme))["tiny@2"] > 1
    _, status = await plane.ask("GET", "/status")
    (line,) = [x for x in status["funnel"]["lines"] if x["cause"] in ("group", "given")]
    assert line["text"].startswith("a person gave tiny@2 to tag.customer=acme") and "demote tiny@2" in line["fix"]
    trial = plane.deps.rollout.trials.of("tiny")
    assert trial.evidence.groups.given == {"tag.customer=acme"}, "by hand is final: that group alone takes nothing back"
    _, audit = await plane.ask("GET", "/audit")
    assert audit["entries"][0]["action"] == "promote" and audit["entries"][0]["detail"]["group"] == body["group"]
    events = [json.loads(x) for x in (await plane.ask("GET", "/training/events"))[1].splitlines()]
    (told,) = [e["data"] for e in events if e["kind"] == "rollback"]
    assert (told["group"], told["to"]) == ("tag.customer=acme", "tiny")


async def play(plane, name: str, tasks: int, reward: Callable[[str], float], size: int = 4, **head) -> int:
    """Tasks of ``size`` episodes each, pinned as the data plane would, rewarded by the adapter they got. → Live episodes."""
    live = 0
    for t in range(tasks):
        episodes, task = [f"{name}{t}-{i}" for i in range(size)], f"task{t}"
        all_got = await pins(plane, episodes, task, head.get("tags"))
        for episode, got in zip(episodes, all_got, strict=True):
            live += got["arm"] == "live" and got["adapter"] != "tiny"
            pinned = {"adapter": got["adapter"], "arm": got["arm"], "chances": got["chances"]}
            await plane.call(episode, task=task, done=True, **pinned, **head)
        for episode, got in zip(episodes, all_got, strict=True):
            await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": reward(got["adapter"])})
        await read_all(plane, name, t + 1, size)
    return live


async def read_all(plane, name: str, tasks: int, size: int) -> None:
    """Until the store and then the gate have these episodes."""
    for i in range(size):
        await until(lambda i=i: _rewarded(plane, f"{name}{tasks - 1}-{i}"))
    await plane.deps.rollout.gatekeeper.decide()


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
    for batch in "abcdefgh":  # who gets which version is drawn: now and then 48 runs have too few of the control
        await play(plane, batch, 12, lambda adapter: float(adapter == "tiny"))
        if (await state(plane, 1))["state"] != "candidate":
            break
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


async def test_a_hanging_one_is_taken_back_and_a_slow_one_is_waited_for(make_plane, monkeypatch):
    """No run of the version on trial has ended, all of the control's have: nothing is counted before the deadline."""
    plane = await make_plane(gate={"holdout": 0.5, "deadline": 600.0})
    await play(plane, "before", 4, lambda _: 1.0)
    know_that_nearly_all_get_a_reward(plane)
    await register(plane, 1)
    ended = []
    for i in range(60):
        got = await pin(plane, f"e{i}")
        if got["adapter"] == "tiny":
            await plane.call(f"e{i}", done=True, adapter="tiny", arm=got["arm"], chances=got["chances"])
            await plane.ask("POST", f"/episodes/e{i}/rewards", {"value": 1.0})
            ended.append(f"e{i}")
    await until(lambda: _rewarded(plane, ended[-1]))
    await plane.deps.rollout.gatekeeper.decide()
    found = await state(plane, 1)
    assert found["state"] == "candidate" and found["gate"]["trial_episodes"] == 0
    assert plane.deps.live.value["models"]["tiny"]["arms"] == [["tiny", "control", 0.5]]
    monkeypatch.setattr(gatekeeper, "SPOOL_SETTLING_S", -3600.0)  # an hour later
    await until(lambda: _decided(plane, 1))
    found = await state(plane, 1)
    assert found["state"] == "rolled_back" and "runs on trial timed out" in found["reason"]


async def _decided(plane, n: int) -> bool:
    await plane.deps.rollout.gatekeeper.decide()
    return (await state(plane, n))["state"] != "candidate"


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


async def test_where_people_say_that_rewards_changed_the_evidence_begins_anew(make_plane):
    """Rewards of the same range mean the opposite now, which no figure shows: runs from before are no evidence."""
    plane = await make_plane(gate={"holdout": 0.3})
    await play(plane, "before", 6, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 2, lambda adapter: float(adapter == "tiny"))
    assert (await state(plane, 1))["gate"]["trial_episodes"] > 2
    early = await pin(plane, "early")
    said = {"text": "1 is bad now", "rewards_changed": True}
    _, body = await plane.ask("POST", "/annotations", said)
    assert body["annotations"][0]["kind"] == "rewards_changed"
    await until(lambda: plane.deps.rollout.trials.trials["tiny"].declared)
    await plane.call("early", done=True, **{k: early[k] for k in ("adapter", "arm", "chances")})
    await plane.ask("POST", "/episodes/early/rewards", {"value": 1.0})
    await until(lambda: _rewarded(plane, "early"))
    await plane.deps.rollout.gatekeeper.decide()
    report = (await state(plane, 1))["gate"]
    assert report["trial_episodes"] == report["control_episodes"] == 0 and "begins again" in report["reason"]
    await plane.again()
    await play(plane, "b", 14, lambda adapter: float(adapter != "tiny"))
    assert (await state(plane, 1))["reason"] == "better than tiny"


async def test_reward_up_and_a_guard_down_freezes_the_version_until_a_person_decides(make_plane):
    plane = await make_plane(gate={"holdout": 0.5, "settle": 20, "guards": {"reward.polite": "down"}})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    for i in range(40):
        got = await pin(plane, f"e{i}")
        await plane.call(f"e{i}", done=True, **{k: got[k] for k in ("adapter", "arm", "chances")})
        polite = {"name": "polite", "value": float(got["adapter"] == "tiny"), "done": False}
        await plane.ask("POST", f"/episodes/e{i}/rewards", polite)
        await plane.ask("POST", f"/episodes/e{i}/rewards", {"value": 1.0})
    await until(lambda: _rewarded(plane, "e39"))
    await plane.deps.rollout.gatekeeper.decide()
    found = await state(plane, 1)
    assert found["state"] == "candidate" and "frozen: reward.polite fell from 1 to 0" in found["gate"]["reason"]
    _, told = await plane.ask("GET", "/status")
    (line,) = [x for x in told["funnel"]["lines"] if x["stage"] == "gate"]
    assert "frozen" in line["text"] and "slipstream adapters demote tiny@1" in line["fix"]
    assert 'slipstream_gate_frozen{model="tiny"} 1.0' in await metrics(plane)
    assert (await plane.ask("POST", "/adapters/tiny@1/unfreeze", {}))[0] == 200
    await plane.again()
    assert not is_frozen(
        plane.deps.rollout.trials.of("tiny")
    ) and 'slipstream_gate_frozen{model="tiny"} 0.0' in await metrics(plane)
    _, found = await plane.ask("POST", "/adapters/tiny@1/freeze", {"reason": "not yet"})
    assert (found["frozen"], found["reason"]) == (True, "frozen by hand: not yet")
    await plane.again()
    assert (
        plane.deps.rollout.trials.waits("tiny")
        and verdict_on(plane.deps.rollout.trials.of("tiny")) is Decision.UNDECIDED
    )
    await plane.deps.rollout.gatekeeper.decide()
    assert "frozen by hand" in (await state(plane, 1))["gate"]["reason"]
    await plane.ask("POST", "/adapters/tiny@1/rollback", {})
    assert (await state(plane, 1))["state"] == "rolled_back"


async def test_a_version_that_waits_says_for_what(make_plane):
    plane = await make_plane(gate={"holdout": 0.5, "pace": 1})
    await register(plane, 1)
    await register(plane, 2, wait=0)
    waits = await until(lambda: state(plane, 2))
    assert (waits["state"], waits["reason"]) == ("loading", "it waits for the verdict on tiny@1 (gate.pace)")
    await plane.ask("POST", "/adapters/tiny@1/freeze", {})
    waits = await state(plane, 2)
    assert (waits["state"], waits["reason"]) == ("loading", "it waits: tiny@1 is frozen, until a person decides")


async def test_the_evidence_outlives_a_restart(make_plane):
    plane = await make_plane(gate={"holdout": 0.3})
    await play(plane, "before", 4, lambda _: 1.0)
    await register(plane, 1)
    await play(plane, "a", 2, lambda adapter: float(adapter == "tiny"))
    before = (await state(plane, 1))["gate"]
    assert before["evidence"] > 0.7 and before["trial_episodes"] > 2
    await plane.again()
    await plane.deps.rollout.gatekeeper.decide()
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

    monkeypatch.setattr(plane.deps.rollout.gatekeeper, "_keep", crash)
    await plane.again()
    await plane.deps.rollout.gatekeeper.decide()
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
        (rewards, "LOOK_BACK", 8),
        (gatekeeper, "KEEP_EVERY", 4),
        (gatekeeper, "PRUNE_EVERY", 1),
    ):
        monkeypatch.setattr(module, name, value)
    plane = await make_plane(gate={"holdout": 0.1})
    await play(plane, "a", 10, lambda _: 1.0)
    store = plane.deps.stores.current
    await until(lambda: len(store.outcomes.since("tiny", 0)) <= 12)
    # with so short a memory an episode whose reward comes in two parts may count twice
    assert 40 <= plane.deps.rollout.gatekeeper.trials.trials["tiny"].runs.seen <= 44


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
    await plane.deps.rollout.gatekeeper.decide()
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


async def test_those_who_go_first_get_half_of_the_candidate_and_others_none_of_it(make_plane):
    """Calls through a worker, which decides alone where it thinks that there is nothing to choose."""
    plane = await make_plane(gate={"mode": "canary", "plan": [0.01, 0.1], "first": ["tag.team=us", "task=mine"]})
    await plane.control.serve()
    proxy = await Proxy(plane.config).start()

    async def served(many: int, **headers: str) -> set[str]:
        asked = [post(proxy.url, ASK, headers=headers) for _ in range(many)]
        return {reply[1]["x-slipstream-adapter"] for reply in await asyncio.gather(*asked)}

    try:
        await register(plane, 1)
        view = proxy.plane.live
        await until(lambda: view.connected and view.models["tiny"].arms)
        assert await served(24, **{"x-slipstream-tag-team": "us"}) == {"tiny", "tiny@1"}
        assert await served(24, **{"x-slipstream-tag-team": "them"}) == {"tiny"}
        view.connected = False  # a worker that decides alone goes by the same rule
        assert await served(24, **{"x-slipstream-task": "mine"}) == {"tiny", "tiny@1"}
        assert await served(24) == {"tiny"}
    finally:
        await proxy.stop()


async def test_each_stage_of_a_plan_is_told_once(make_plane):
    plane = await make_plane(gate={"mode": "canary", "plan": [0.01, 0.1]})
    await register(plane, 1)
    await plane.deps.rollout.gatekeeper.decide()
    plane.deps.rollout.trials.of("tiny").runs.own = 16
    await plane.deps.rollout.gatekeeper.decide()

    async def told() -> list[dict]:
        entries = (await plane.ask("GET", "/audit?action=canary"))[1]["entries"]
        return [entry["detail"] for entry in reversed(entries)]

    await until(lambda: _many(told, 2))
    await plane.again()
    await plane.deps.rollout.gatekeeper.decide()
    assert (await state(plane, 1))["gate"]["stage"] == 2
    begins, goes_on = await told()
    assert begins == {"stage": 1, "of": 2, "share": 0.01, "runs": 0, "reason": "it begins", "gets": begins["gets"]}
    assert (goes_on["stage"], goes_on["share"], goes_on["runs"]) == (2, 0.1, 16)
    assert goes_on["reason"] == "16 of its runs have ended, and nothing speaks against it"
    _, events = await plane.ask("GET", "/training/events")
    stages = [e["data"]["stage"] for line in events.splitlines() if (e := json.loads(line))["kind"] == "canary"]
    assert stages == [1, 2]
    _, status = await plane.ask("GET", "/status")
    assert status["canaries"] == {"tiny": "10% of new runs get tiny@1 (stage 2 of 2): a verdict comes next"}
    assert any("10% of new runs get tiny@1 (stage 2 of 2)" in line for line in status["waiting"])


async def _many(told, count: int) -> bool:
    return len(await told()) >= count


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


@pytest.mark.parametrize(("chosen", "made"), [(1, "rolled_back"), (3, "retired")])
async def test_by_hand_is_final_and_ends_what_is_on_trial(make_plane, chosen, made):
    """An older version that a person promotes is an answer to the newer one on trial; a newer one takes its place."""
    plane = await make_plane(gate={"holdout": 0.1, "pace": 1})
    await register(plane, 1)
    assert (await plane.ask("POST", "/adapters/tiny@1/promote"))[1]["state"] == "live"
    await register(plane, 2)
    await register(plane, 3, wait=0)
    await until(lambda: _is(plane, 2, "candidate"))
    before = await state(plane, chosen)
    _, effect = await plane.ask("GET", f"/adapters/tiny@{chosen}/effect?action=promote")
    assert f"The trial of tiny@2 ends: it is {'taken back' if chosen == 1 else 'retired'}." in effect["says"]
    assert await state(plane, chosen) == before, "to ask changes nothing"
    status, said = await plane.ask("POST", f"/adapters/tiny@{chosen}/promote", {"reason": "I want it"})
    assert status == 200
    await until(lambda: _is(plane, chosen, "live"))
    live = plane.deps.live.value["models"]["tiny"]
    assert (live["live"], live["arms"]) == (f"tiny@{chosen}", [])
    found = await state(plane, 2)
    assert found["state"] == made and f"tiny@{chosen} was" in found["reason"] and "by hand" in found["reason"]
    assert (await state(plane, 3))["state"] == ("retired" if chosen == 1 else "live")
    if chosen == 3:
        assert "the trial of tiny@2 ends" in said["reason"]


async def test_an_older_version_promoted_by_hand_takes_the_newer_one_on_trial_back(make_plane):
    plane = await make_plane(gate={"holdout": 0.1, "settle": 20})
    for version in (1, 2):
        await register(plane, version)
        await plane.ask("POST", f"/adapters/tiny@{version}/promote")
    await register(plane, 3)
    _, said = await plane.ask("POST", "/adapters/tiny@1/promote", {"reason": "I want it"})
    assert said["reason"] == "I want it: it goes live when it is loaded, and the trial of tiny@3 ends"
    await until(lambda: _is(plane, 1, "live"))
    assert (await state(plane, 1))["reason"] == "I want it; tiny@3 was taken back"
    assert [(await state(plane, v))["state"] for v in (2, 3)] == ["retired", "rolled_back"]
    plane.deps.rollout.publisher.publish()
    assert plane.deps.live.value["models"]["tiny"]["arms"] == []
