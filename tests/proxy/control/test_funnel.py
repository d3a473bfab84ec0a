"""For each state in which no step can come, the real control plane and store show the line and its fix."""

from __future__ import annotations

import json
import os
import re
import time

import pytest
from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.contract import Funnel
from slipstream.contract.funnel import Severity
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child
from slipstream_proxy.control.observe import activity
from slipstream_proxy.data.observe.metrics import UNCAPTURED_METRIC, WorkerMetrics

FEW = {"groups": {"size": 2}, "trainer": {"min_groups": 2}}


async def funnel(plane) -> Funnel:
    status, body = await plane.ask("GET", "/status")
    assert status == 200, body
    found = Funnel.model_validate(body["funnel"])
    assert body["waiting"] == [line.sentence for line in found.lines]
    return found


async def line(plane, stage: str, cause: str):
    """The line of this stage and cause, as soon as it is there."""

    async def look():
        return next((x for x in (await funnel(plane)).lines if (x.stage, x.cause) == (stage, cause)), None)

    return await until(look)


async def run(plane, name: str, task: str = "t", reward: float | None = None, **head) -> None:
    await plane.call(name, task=task, done=True, **head)
    await plane.seen(name)
    if reward is not None:
        assert (await plane.ask("POST", f"/episodes/{name}/rewards", {"value": reward}))[0] == 200


async def test_no_call_yet(plane):
    found = await line(plane, "calls", "none")
    assert found.blocks and "OPENAI_BASE_URL" in found.fix
    metrics = WorkerMetrics()
    for by, count in (("capture", 3.0), ("split", 1.0), ("judge", 9.0)):
        metrics.add(UNCAPTURED_METRIC, f'by="{by}"', count)
    metrics.save(plane.config.root / "metrics" / "data0.json")
    found = await line(plane, "calls", "uncaptured")
    assert found.blocks and found.count == 4, "the judge's own calls are no surprise"
    assert "x-slipstream-capture: off" in found.text and "x-slipstream-split: off" in found.text and found.fix


async def test_a_full_disk_is_not_taken_for_an_agent_that_never_called(plane, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(plane.deps.store, "ingest", full)
    await plane.call("e1")
    await until(lambda: plane.deps.ingester.stats.broken)
    lines = (await plane.ask("GET", "/status"))[1]["waiting"]
    said = json.dumps(lines)
    assert "No space left on device" in said and "no call has come" not in said


async def test_no_engine_answers(plane):
    plane.engine.up = False
    found = await line(plane, "engine", "down")
    assert found.blocks and plane.engine.url in found.fix
    assert (await funnel(plane)).lines[0] == found


async def test_the_engine_that_up_is_starting(plane):
    plane.engine.up = False
    own = Child("engine", ["x"], slow_start=True, answers=False, starts=2, since=plane.deps.now() - 30)
    own.last_end = "ended with exit code 0"
    SidecarFile(plane.config.root)([own])
    found = await line(plane, "engine", "starting")
    assert "ended with exit code 0" in found.text and "is starting it again (3" in found.text
    assert found.blocks and found.fix.startswith("wait")


async def test_imported_calls_are_no_traffic(plane):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert (await plane.ask("POST", "/import", {"messages": talk, "reward": 1.0}))[0] == 200

    async def told():
        found = await line(plane, "calls", "none")
        return found if "imported" in found.text else None

    found = await until(told)
    assert "(1 call was imported)" in found.text and "OPENAI_BASE_URL" in found.fix


async def test_no_engine_is_configured(make_plane):
    found = await line(await make_plane(engine={"urls": []}), "engine", "not_configured")
    assert found.blocks and "engine.urls" in found.fix


async def test_calls_that_ask_for_another_model(plane):
    await plane.call("e1", trained=None, adapter=None)
    await plane.seen("e1")
    found = await line(plane, "calls", "untrained_model")
    assert (found.blocks, found.count) == (True, 1) and "[models." in found.fix and "tiny" in found.fix


async def test_rewards_of_episodes_that_nobody_knows(plane):
    await plane.ask("POST", "/episodes/lost/rewards", {"value": 1.0, "done": True})
    await plane.ask("POST", "/episodes/ended/done")
    found = await line(plane, "calls", "orphan_rewards")
    assert found.count == 1 and "x-slipstream-episode" in found.fix
    marked = await line(plane, "calls", "orphan_marks")
    assert (marked.count, marked.fix) == (1, found.fix) and "1 unknown episode was marked as done" in marked.text


async def test_open_episodes_and_when_they_end(make_plane):
    plane = await make_plane(episodes={"idle_timeout": 300})
    await plane.call("e1")
    await plane.seen("e1")
    assert (await line(plane, "episodes", "open")).severity is Severity.REMARK, "a call came a moment ago"
    plane.deps.now = lambda now=plane.deps.now(): now + 70
    found = await line(plane, "episodes", "open")
    assert found.severity is Severity.SLOWS and found.count == 1, "it ends by itself: nothing is blocked for ever"
    left = float(found.text.split("ends in ")[1].split()[0])
    assert 200 < left <= 230
    assert "x-slipstream-done" in found.fix
    plane.deps.now = lambda now=plane.deps.now(): now + left - 20
    assert (await line(plane, "episodes", "open")).severity is Severity.REMARK


async def test_episodes_without_a_task(make_plane):
    plane = await make_plane(groups={"ungrouped": False})
    await plane.call("e1", task=None, done=True)
    found = await line(plane, "episodes", "no_task")
    assert found.count == 1 and "groups.ungrouped = true" in found.fix


async def test_evaluation_episodes_alone(plane):
    await run(plane, "e1", split="eval")
    found = await line(plane, "episodes", "all_eval")
    assert found.blocks and "x-slipstream-split" in found.fix
    assert (await line(plane, "groups", "evaluation")).count == 1


async def test_a_group_that_forms(plane):
    await run(plane, "e1", reward=1.0)
    found = await line(plane, "groups", "forming")
    assert not found.blocks and "8 episodes of one task" in found.text and "groups.size" in found.fix


async def test_tasks_of_which_none_comes_twice(make_plane):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}", task=f"t{n}")
    found = await until(lambda: alone(plane))
    assert "no task has come twice" in found.text
    await run(plane, "e3", task="t0")
    assert not (await until(lambda: together(plane))).blocks


async def alone(plane):
    found = await line(plane, "groups", "forming")
    return found if found.blocks else None


async def together(plane):
    found = await line(plane, "groups", "forming")
    return None if found.blocks else found


async def test_a_reward_that_is_missing(make_plane):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}")
    found = await line(plane, "reward", "missing_reward")
    assert (found.blocks, found.count) == (True, 2) and "/rewards" in found.fix


async def test_a_trainer_that_never_came(plane, monkeypatch):
    monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
    assert (await line(plane, "trainer", "away")).text.startswith("no trainer has asked for work yet, ")


async def test_the_judge_is_slow_or_away(make_plane, monkeypatch):
    plane = await make_plane(groups={"size": 2}, judge={"model": "m"}, reward={"weights": {"judge": 1.0}})
    for n in range(2):
        await run(plane, f"e{n}")
    found = await line(plane, "judge", "waiting")
    assert found.count == 1 and "0.0 episodes a minute" in found.text
    assert "the judge writes it" in (await line(plane, "reward", "missing_judge")).fix
    now = plane.deps.now()
    plane.deps.now = lambda: now + 90
    assert "judge.concurrency" in (await line(plane, "judge", "waiting")).fix
    monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
    away = await line(plane, "judge", "away")
    assert away.blocks and "slipstream judge" in away.fix


async def test_a_group_that_the_judge_gave_up(make_plane):
    plane = await make_plane(groups={"size": 2}, judge={"model": "m", "max_attempts": 1})
    for n in range(2):
        await run(plane, f"e{n}")

    async def lease():
        status, body = await plane.ask("POST", "/groups/lease", {"worker": "j"})
        return body if status == 200 else None

    leased = await until(lease)
    failed = {"lease": leased["lease"], "failed": "refused"}
    assert (await plane.ask("POST", f"/groups/{leased['groups'][0]['id']}/scores", failed))[0] == 200
    found = await line(plane, "judge", "parked")
    assert found.count == 1 and "retry" in found.fix


async def test_rewards_that_are_all_equal(make_plane):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}", reward=0.0)
    await run(plane, "best", task="other", reward=1.0)
    found = await line(plane, "reward", "equal")
    assert found.blocks and "partial credit" in found.fix


async def test_rewards_of_a_scale_at_which_all_count_as_equal(make_plane):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}", reward=n * 1e-9)
    await run(plane, "best", task="other", reward=1.0)
    found = await line(plane, "reward", "equal")
    assert "equal but for 1.0e-09 at most" in found.text and "scale the rewards" in found.fix


async def test_nothing_left_to_learn(make_plane):
    plane = await make_plane(**FEW)
    for n in range(8):
        await run(plane, f"e{n}", task=f"t{n // 2}", reward=1.0)
    found = await line(plane, "reward", "learned")
    assert found.blocks and "nothing left to learn" in found.text and "harder tasks" in found.fix


@pytest.mark.parametrize(
    ("sampling", "cause", "fix"),
    [
        ({"temperature": 0}, "temperature 0", "1.0"),
        ({"presence_penalty": 1}, "penalties", "presence_"),
        ({"tool_choice": "required"}, "forced tool", '"auto"'),
        ({"response_format": {"type": "json_object"}}, "structured output", "trust"),
    ],
)
async def test_calls_that_cannot_be_trained_on(plane, sampling, cause, fix):
    await plane.call("e1", request=sampling, done=True)
    await plane.seen("e1")
    found = await line(plane, "untrainable", cause)
    assert (found.blocks, found.count) == (True, 1) and fix in found.fix


async def test_calls_that_were_answered_before_the_engine_s_sampling_was_known_ask_for_no_change(plane):
    await until(lambda: any(e.sampling is not None for e in plane.deps.engines.engines))
    await plane.call("e1", note="the engine's own sampling", done=True)
    await plane.seen("e1")
    found = await line(plane, "untrainable", "the engine's own sampling")
    assert (found.severity, found.count) == (Severity.REMARK, 1)
    assert "did not know yet" in found.text and "nothing to do" in found.fix


async def test_groups_that_were_lost_to_a_rollback(make_plane):
    plane = await make_plane(**FEW)
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"}))[1]["state"] == "live"
    for n in range(2):
        await run(plane, f"e{n}", adapter="tiny@1", reward=float(n))
    assert (await plane.ask("POST", "/adapters/tiny@1/rollback"))[0] == 200
    found = next(x for x in (await funnel(plane)).lines if x.stage == "lost")
    assert found.count == 1 and found.fix


async def test_groups_that_are_too_old(make_plane):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}", reward=float(n))
    for n in (1, 2):
        write_adapter(plane.config.adapters_dir / f"tiny@{n}")
        await plane.ask("POST", "/adapters?wait=60", {"path": f"tiny@{n}"})
    lease = {"worker": "w", "min_groups": 1, "max_wait": 0, "max_staleness": 1}
    r = await plane.client.post("/slipstream/v1/batches/lease", json=lease, headers=plane.as_())
    assert r.status == 204
    found = next(x for x in (await funnel(plane)).lines if x.stage == "lost" and x.cause.startswith("stale"))
    assert found.count == 1 and "max_staleness" in found.fix


async def test_words_say_what_they_wait_for(make_plane, monkeypatch):
    plane = await make_plane(**FEW)
    monkeypatch.setattr("slipstream_proxy.control.status.causes.training.LEAST_RUNS", 1)

    async def said(episode: str, *, over: bool, count: int) -> str:
        await plane.call(episode, task="t", done=over)
        await plane.seen(episode)
        assert (await plane.ask("POST", f"/episodes/{episode}/feedback", {"text": "the other Dana"}))[0] == 200

        async def told():
            found = await line(plane, "ready", "words")
            return found if found.count == count else None

        return (await until(told)).text

    assert await said("e0", over=False, count=1) == "1 piece of feedback waits: 1 until the run is over"
    assert re.search(
        r"2 pieces of feedback wait: 1 until the run is over, 1 for more of them \(a step takes one of a run; 1 count as a group, and 2 groups are "
        r"a step\) or (29|30) s", await said("e1", over=True, count=2),
    )  # fmt: skip
    text = await said("e2", over=True, count=3)
    assert text.endswith("1 until the run is over, 2 ready: the trainer takes them next"), text
    assert (await plane.ask("POST", "/training/pause", {"reason": "holiday"}))[0] == 200
    assert (await line(plane, "ready", "words")).text.endswith("they wait until training is resumed")
    assert all(x.cause != "too_few" for x in (await funnel(plane)).lines), "they are no groups with rewards"


async def test_too_few_groups_and_no_trainer(make_plane, monkeypatch):
    plane = await make_plane(**FEW)
    for n in range(2):
        await run(plane, f"e{n}", reward=float(n))
    found = await line(plane, "ready", "too_few")
    assert "1 group complete and scored, 2 needed" in found.text and "trainer.max_wait" in found.fix
    # two runs are fewer than eight: the trainer waits four times as long
    left = re.search(
        r"fewer are taken in (\d+) s, when the first of them has waited 120 s, because .* \(2\)", found.text
    )
    assert left and 100 <= int(left[1]) <= 120
    asked = {"worker": "w", "min_groups": 8, "max_wait": 60.0}  # as a trainer does whose runs come late
    assert (await plane.client.post("/slipstream/v1/batches/lease", json=asked, headers=plane.as_())).status == 204
    found = await line(plane, "ready", "too_few")
    assert "8 needed for a step, because many runs are several versions old" in found.text and "240 s" in found.text
    asked = {"worker": "w", "min_groups": 2, "max_wait": 60.0}
    assert (await plane.client.post("/slipstream/v1/batches/lease", json=asked, headers=plane.as_())).status == 204
    monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
    away = await line(plane, "trainer", "away")
    assert away.blocks and "slipstream trainer" in away.fix
    for n in range(2):
        await run(plane, f"f{n}", task="u", reward=float(n))
    assert (await line(plane, "ready", "ready")).count == 2
    for n in range(2):
        await run(plane, f"g{n}", task="v", reward=0.5)

    async def told():
        found = await line(plane, "ready", "ready")
        return found if "more teaches" in found.text else None

    assert (await until(told)).text == (
        "2 groups are ready: they wait for the trainer; 1 more teaches nothing: all its runs got the same reward"
    )


@pytest.mark.parametrize(
    ("reason", "worst", "fix"),
    [("KL to the engine is 3.0", 0.0, "guards"), ("no group has episodes of different reward", 1.0, "tells good runs")],
)
async def test_a_batch_that_is_trained_on_and_one_that_was_skipped(
    make_plane, monkeypatch, reason: str, worst: float, fix: str
):
    monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
    plane = await make_plane(**FEW)
    for n, value in enumerate((worst, 1.0)):
        await run(plane, f"e{n}", reward=value)
    r = await plane.client.post(
        "/slipstream/v1/batches/lease", json={"worker": "w", "min_groups": 1, "max_wait": 0}, headers=plane.as_()
    )
    assert r.status == 200
    assert (await line(plane, "trainer", "training")).count == 1
    assert not any(x.cause == "away" for x in (await funnel(plane)).lines)  # it holds a lease: it is at work
    ack = {"lease": r.headers["x-slipstream-lease"], "outcome": "skipped", "reason": reason}
    assert (await plane.ask("POST", f"/batches/{r.headers['x-slipstream-batch']}/ack", ack))[0] == 200
    found = await line(plane, "trainer", "skipped")
    assert reason in found.text and fix in (found.fix or "")


async def test_steps_from_calls_that_are_too_old(plane):
    for old in (0, 36):
        data = {"kl": 0.003, "calls": 48, "untrainable": {"stale": old, "aborted": 2}}
        await plane.ask("POST", "/training/events", {"kind": "step", "data": data})
    found = await line(plane, "step", "aged")
    assert found.severity is Severity.SLOWS and found.text.startswith("36 of 96 calls of the latest steps were too old")
    assert "trainer.max_wait" in found.fix
    for _ in range(2):
        await plane.ask("POST", "/training/events", {"kind": "step", "data": {"kl": 0.003, "calls": 96}})
    assert not any(x.cause == "aged" for x in (await funnel(plane)).lines), "36 of 240 are no more than some"


async def test_steps_that_change_nothing(plane):
    for kl in (0.0, 2e-6):
        await plane.ask("POST", "/training/events", {"kind": "step", "data": {"kl": kl}})
    found = await line(plane, "step", "small_kl")
    assert found.count == 2 and "rises by itself" in found.text and not found.fix
    small = {"kl": 5e-5, "kl_target": 0.0004}  # of a batch with little evidence
    await plane.ask("POST", "/training/events", {"kind": "step", "data": small})
    assert not any(x.stage == "step" for x in (await funnel(plane)).lines)


async def test_an_engine_that_computes_otherwise_than_the_trainer(plane, tmp_path):
    for data in (
        {"engine_gap": 0.004},
        {"engine_gap": 0.36, "kl": 0.01},
        {"kl": 0.01},
    ):  # the last has no token of its own
        await plane.ask("POST", "/training/events", {"kind": "step", "data": data})
    found = await line(plane, "step", "engine_gap")
    assert found.count == 360 and "0.36 nats" in found.text and "--compilation-config" in found.fix
    assert found.fix.startswith("compute in one number format")
    # what rounds is the first thing to name
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    plane.deps.config.engine.model = str(tmp_path)
    assert (await line(plane, "step", "engine_gap")).fix.startswith("the engine's model is stored as fp8")
    plane.deps.config.trainer.quantize = "4bit"
    assert 'trainer.quantize = "none"' in (await line(plane, "step", "engine_gap")).fix
    await plane.ask("POST", "/training/events", {"kind": "step", "data": {"engine_gap": 0.01}})
    assert not any(x.cause == "engine_gap" for x in (await funnel(plane)).lines)


@pytest.mark.parametrize(
    ("mode", "cause", "fix"), [("guard", "undecided", "post rewards"), ("manual", "manual", "adapters promote tiny@1")]
)
async def test_what_the_gate_waits_for(make_plane, mode, cause, fix):
    plane = await make_plane(gate={"mode": mode, "holdout": 0.5})
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"}))[1]["state"] == "candidate"

    async def reported():  # the gate's first report may come after the adapter
        found = await line(plane, "gate", cause)
        return found if fix in found.fix else None

    assert "tiny@1" in (await until(reported)).text


async def test_a_store_that_is_away(plane):
    stores = plane.deps.stores
    store, ingester = stores.current, stores.ingester
    stores.replace(None, None)
    found = await line(plane, "store", "away")
    assert found.blocks and "the spool keeps" in found.fix
    stores.replace(store, ingester)


async def test_a_sidecar_that_up_cannot_keep_running(plane):
    down = {"name": "trainer", "state": "down", "since": 1.0, "starts": 10, "reason": "ended with exit code 1: no GPU"}
    (plane.config.root / "sidecars.json").write_text(json.dumps({"pid": os.getpid(), "sidecars": [down]}))
    found = await line(plane, "trainer", "down")
    assert found.blocks and "no GPU" in found.text


async def test_an_engine_and_a_trainer_that_run_again_say_what_they_ended_with(plane):
    now = time.time()
    trainer = {"name": "trainer", "state": "running", "since": now, "starts": 2}
    trainer["reason"] = "ended with exit code 1: TypeError: aux_loss"
    engine = {"state": "running", "since": now, "starts": 3, "reason": "ended with exit code 1: ValueError: KV cache"}
    stack = {"pid": os.getpid(), "sidecars": [trainer], "engine": engine}
    (plane.config.root / "sidecars.json").write_text(json.dumps(stack))
    found = await line(plane, "trainer", "restarted")
    assert found.blocks
    assert "TypeError: aux_loss" in found.text
    found = await line(plane, "engine", "ended")
    assert "ValueError: KV cache" in found.text
    assert "engine.max_model_len" in found.fix


async def test_every_line_is_a_metric(plane):
    text = await (await plane.client.get("/internal/metrics")).text()
    for x in (await funnel(plane)).lines:
        assert f'slipstream_funnel{{cause="{x.cause}",stage="{x.stage}"}} {float(x.count)}' in text


async def test_untagged_runs_of_one_call_each_are_told_where_they_go_on(plane):
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    for n in range(4):
        await plane.call(f"one{n}", task=None, done=True, origin="new")  # runs that are over after their only call
        await plane.seen(f"one{n}")
    assert "lone" not in [x.cause for x in (await funnel(plane)).lines]
    for n in range(8):
        clock = {"role": "system", "content": f"It is {n} o'clock."}
        request = {"messages": [clock, *said]}
        await plane.call(f"part{n}", task=None, done=True, origin="new", request=request)
        await plane.seen(f"part{n}")
    found = await line(plane, "episodes", "lone")
    assert found.count == 8 and "x-slipstream-episode" in found.fix and not found.blocks


async def test_greedy_calls_and_what_explores(make_plane):
    plane = await make_plane(models={"tiny": {"explore": "temperature", "explore_share": 0.1}})
    await plane.call("e1", request={"messages": [{"role": "user", "content": "hi"}], "temperature": 0})
    await plane.seen("e1")
    found = await line(plane, "untrainable", "temperature 0")
    assert "10% of such runs are sampled at a temperature" in found.fix


async def test_a_run_that_was_stopped_blocks_nothing(make_plane):
    plane = await make_plane(groups={"size": 4}, trainer={"min_groups": 1})
    for n in range(4):
        await plane.call(f"e{n}", done=True)
        await plane.seen(f"e{n}")
    for n in range(3):
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)})

    async def one_left():
        found = await line(plane, "reward", "missing_reward")
        return found if found.text.startswith("1 of 4 episodes of complete groups has no") else None

    found = await until(one_left)
    assert found.severity is Severity.SLOWS, "other groups complete without it"
