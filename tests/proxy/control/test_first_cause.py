"""Each of the troubles that stop learning or the agent's calls is the first thing that status says."""

from __future__ import annotations

import json
import os
import shutil
import time

import pytest
from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.contract import Funnel, FunnelLine
from slipstream.contract.funnel import Severity
from slipstream_proxy.control.status.causes.calls import WELL_AGAIN
from slipstream_proxy.data.observe.metrics import WorkerMetrics

SMALL = {"groups": {"size": 2}, "trainer": {"min_groups": 2}}
JUDGED = SMALL | {"judge": {"model": "openai/m"}}
TEMPLATE = "Conversation roles must alternate user/assistant/user/assistant/..."


async def first(plane, *words: str, severity: Severity = Severity.BLOCKS) -> FunnelLine:
    """The first line, as soon as it says all of the words."""

    async def look():
        lines = Funnel.model_validate((await plane.ask("GET", "/status"))[1]["funnel"]).lines
        order = [list(Severity).index(line.severity) for line in lines]
        assert order == sorted(order)
        return lines[0] if lines and all(word in lines[0].sentence for word in words) else None

    try:
        found = await until(look, 20.0)
    except AssertionError:
        raise AssertionError((await plane.ask("GET", "/status"))[1]["waiting"]) from None
    assert found.severity is severity, found
    return found


async def runs(plane, count: int = 2, reward: bool = True, **call) -> None:
    for n in range(count):
        await plane.call(f"e{n}", done=True, **call)
    for n in range(count):
        await plane.seen(f"e{n}")
        if reward:
            assert (await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)}))[0] == 200


def refused(message: str, status: int = 400) -> dict:
    return {"status": status, "outcome": "error", "answer": {"error": {"message": message, "type": "x"}, "choices": []}}


async def test_refusals(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, 3, reward=False, **refused("tools must not be empty"))
    found = await first(plane, "3 of 3 calls fail: 400 tools must not be empty")
    assert found.fix and found.cause == "failing"
    for n in range(WELL_AGAIN):  # the agent was mended
        await plane.call(f"good{n}")
    await plane.seen(f"good{WELL_AGAIN - 1}")
    lines = (await plane.ask("GET", "/status"))[1]["funnel"]["lines"]
    assert "failing" not in [line["cause"] for line in lines]


async def test_calls_without_a_key(make_plane):
    plane = await make_plane(**SMALL)
    metrics = WorkerMetrics()
    for _ in range(4):
        metrics.turn_away(401)
    metrics.save(plane.config.root / "metrics" / "data0.json")
    await first(plane, "4 calls were refused with 401", "API key", "slipstream keys")


async def test_an_engine_that_refuses_our_key(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, reward=False, **refused("Unauthorized", 401))
    await first(plane, "2 of 2 calls fail: 401 Unauthorized", "engine.api_key")


async def test_a_judge_without_quota(make_plane):
    plane = await make_plane(**JUDGED)
    await runs(plane, reward=False)
    why = "RateLimitError: 429 insufficient_quota: You exceeded your current quota"
    report = {"worker": "j", "names": ["judge"], "model": "openai/m", "last_error": why}
    assert (await plane.ask("POST", "/judge/report", report))[0] == 200
    found = await first(plane, "no quota left", "restore the quota")
    assert "concurrency" not in found.sentence


async def test_a_template_that_does_not_take_the_messages(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, reward=False, **refused(TEMPLATE))
    await first(plane, TEMPLATE, "--chat-template")


@pytest.mark.parametrize(
    ("status", "said", "fix"),
    [
        (400, "`tools` must not be an empty array. Either provide at least one tool or omit the field.", "leave `tools` out"),
        (404, "Response with id 'resp_27d0' not found.", "`store: false`"),
        (400, "Unsupported input item type: item_reference", "chat completions"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "engine.tool_parser"),
        (400, "This model's maximum context length is 512 tokens. However, your prompt contains 9000", "--max-model-len"),
        (404, "The model `gpt-4o` does not exist.", "a model that"),
        (422, "n must be 1", "change what the agent sends"),
        (500, "worker died", "the engine's log"),
    ],
)  # fmt: skip
async def test_the_engines_words_say_what_to_change(make_plane, status: int, said: str, fix: str):
    plane = await make_plane(**SMALL)
    await runs(plane, reward=False, **refused(said, status))
    assert fix in ((await first(plane, f"calls fail: {status} {said[:20]}")).fix or "")


async def test_greedy_calls(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, request={"temperature": 0})
    await first(plane, "can't be trained on: temperature 0")


async def test_no_rewards(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, reward=False)
    await first(plane, "2 of 2 episodes of complete groups have no reward 'reward'", "/rewards")


async def test_a_trainer_that_is_dead(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane)
    dead = {"name": "trainer", "state": "down", "since": 1.0, "starts": 10, "reason": "ended with exit code 1: no GPU"}
    (plane.config.root / "sidecars.json").write_text(json.dumps({"pid": os.getpid(), "sidecars": [dead]}))
    await first(plane, "trainer", "no GPU")


async def test_a_full_disk(make_plane, monkeypatch):
    def full(*_):
        raise OSError("No space left on device")

    plane = await make_plane(**SMALL)
    monkeypatch.setattr(plane.deps.store, "ingest", full)
    await plane.call("e1")
    await first(plane, "No space left on device")


async def test_an_adapter_whose_folder_is_gone(make_plane):
    plane = await make_plane(**SMALL)
    write_adapter(plane.config.adapters_dir / "tiny@1")
    assert (await plane.ask("POST", "/adapters?wait=60", {"path": "tiny@1"}))[1]["state"] == "live"
    await runs(plane)
    shutil.rmtree(plane.config.adapters_dir / "tiny@1")
    await first(plane, "the folder of tiny@1", "is gone", "slipstream adapters demote tiny@1")


async def test_an_engine_that_is_dead(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane)
    plane.engine.up = False
    await first(plane, "no engine answers", plane.engine.url)


async def test_a_clock_that_was_set_back(make_plane):
    plane = await make_plane(**SMALL)
    await runs(plane, at=time.time() + 7200)
    await first(plane, "the clock is 120 min behind", "NTP", severity=Severity.SLOWS)


async def test_imported_runs_alone(make_plane):
    plane = await make_plane(**SMALL)
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    assert (await plane.ask("POST", "/import", {"messages": talk, "reward": 1.0}))[0] == 200
    await first(plane, "no call has come through the proxy yet (1 call was imported)", "OPENAI_BASE_URL")


@pytest.mark.parametrize("request_", [{"temperature": 0}, {"temperature": 1.0}])
async def test_nothing_is_blocked_while_steps_come(make_plane, request_):
    plane = await make_plane(**SMALL)
    await runs(plane)
    lease = {"worker": "w", "min_groups": 1, "max_wait": 0}
    r = await plane.client.post("/slipstream/v1/batches/lease", json=lease, headers=plane.as_())
    assert r.status == 200
    ack = {"lease": r.headers["x-slipstream-lease"], "outcome": "trained", "step": 1}
    assert (await plane.ask("POST", f"/batches/{r.headers['x-slipstream-batch']}/ack", ack))[0] == 200
    for n in range(2):
        await plane.call(f"later{n}", done=True, request=request_)
        await plane.seen(f"later{n}")
    lines = Funnel.model_validate((await plane.ask("GET", "/status"))[1]["funnel"]).lines
    assert not [line for line in lines if line.blocks], "a step came a moment ago"
