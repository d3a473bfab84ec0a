"""The trainer spoils a version: its replay refuses it, the trainer goes on from before, and no agent ever met it."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path

import pytest
from common.demo.task import demo_config, load_task, open_agent
from tests.support import process, wait_for

from slipstream.client import Client

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
TASKS, RUNS = 12, 4
REPLAY = {"mode": "replay", "holdout": 0.1, "replay": {"samples": 2, "cases": 40, "sets": ["auto-sample"]}}


async def play(url: str, rounds: int, stop: threading.Event) -> None:
    """Agents at their usual work: ``rounds`` rounds at once, then a run every two seconds."""
    task = load_task("inbox")
    agent = await open_agent(task, f"{url}/v1")
    items = task.items("train", 7)
    first = [next(items) for _ in range(TASKS)]
    await asyncio.gather(*(agent.episode(item) for item in first for _ in range(rounds)))
    while not stop.is_set():
        await agent.episode(first[0])
        await asyncio.sleep(2.0)
    await agent.close()


def test_a_spoiled_step_is_refused_before_any_agent_meets_it(engine, start_proxy, tmp_path: Path) -> None:
    demo = demo_config(load_task("inbox"), 0, tmp_path / "unused", [])
    trainer = demo.trainer.model_dump(mode="json", exclude_unset=True) | {"min_groups": 2}
    proxy = start_proxy(engine.url, gate=REPLAY, groups={"size": RUNS}, trainer=trainer)
    folder = tmp_path / "spoiler"
    folder.mkdir()
    (folder / "spoil").touch()
    stop = threading.Event()
    agents = threading.Thread(target=lambda: asyncio.run(play(proxy.url, RUNS, stop)))
    agents.start()
    argv = [
        sys.executable,
        "-m",
        "tests.support.spoiling_trainer",
        str(folder),
        "--url",
        proxy.url,
        "--config",
        str(proxy.config),
    ]
    try:
        with process(argv, tmp_path / "trainer.log", {"OMP_NUM_THREADS": "1"}), Client(proxy.url) as client:

            def refused():
                return next((a for a in client.adapters().adapters if a.state == "refused"), None)

            bad = wait_for(refused, 420, 1.0, f"a version is refused; {(tmp_path / 'trainer.log').read_text()[-2000:]}")
            restored = wait_for(lambda: [e for e in client.events() if e.kind == "restored"], 120, 1.0, "it goes back")
            shown = client.replay_of(bad.name)
            met = client.sql(f"SELECT count(*) FROM episodes WHERE adapter = '{bad.name}'").rows[0][0]
    finally:
        stop.set()
        agents.join(60)
    assert (folder / f"spoiled-{bad.name}").exists(), "another version than the spoiled one was refused"
    assert met == 0
    assert bad.replay is not None and bad.replay.outcome == "refused" and bad.replay.control == "inbox"
    assert bad.replay.exact == 1.0, "this vLLM takes token ids"
    assert len(shown.worst) >= 3 and all(p.candidate < p.control for p in shown.worst[:3])
    assert restored[0].data["adapter"] == "inbox"
    print(json.dumps({"reason": bad.reason, "tokens": bad.replay.tokens, "worst": shown.worst[0].model_dump()}))
