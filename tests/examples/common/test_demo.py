"""The demo's parts that need no engine."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from common.demo.curve import LearningCurve, VersionPoint
from common.demo.demo import Options, _keep, _told
from common.demo.driver import RewardSample
from tests.support import ROOT
from tests.support.fake_engine import FakeEngine


def test_each_task_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert Options(data_dir=tmp_path, seed=3).folder == tmp_path / "seed-3"
    assert Options(data_dir=tmp_path, seed=3, task="2048").folder == tmp_path / "2048-seed-3"


def test_a_reward_is_told_with_its_error_and_count() -> None:
    assert _told(RewardSample([0.0, 1.0])) == "0.50 (0.09 to 0.91) of 2 episodes"


def test_the_figures_are_kept_beside_the_picture(tmp_path: Path) -> None:
    options = Options(data_dir=tmp_path)
    options.folder.mkdir()
    curve = LearningCurve("inbox", [VersionPoint(0, 0.25, 0.1, 30, 12.0)], held_out=[(0.2, 0.01, 256)])
    picture = _keep(curve, {"task": "inbox", "steps": 0}, options)
    assert picture.read_bytes().startswith(b"\x89PNG")
    kept = json.loads((options.folder / "curve.json").read_text())
    assert kept["task"] == "inbox"
    assert kept["curve"]["versions"] == [{"version": 0, "mean": 0.25, "error": 0.1, "count": 30, "at": 12.0}]
    assert kept["curve"]["held_out"] == [[0.2, 0.01, 256]]


RUN = f"""
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "examples")!r})
from common.demo import driver, learning
from common.demo.demo import Options, demo
driver.HELD_OUT, learning.FIRST_STEP_LIMIT = 12, 3.0
flags = ['engine.urls=["' + sys.argv[1] + '"]', "trainer.enabled=false", "engine.name=inbox"]
sys.exit(asyncio.run(demo(Options(seed=1, data_dir=Path(sys.argv[2]), flags=flags))))
"""
"""In a process of its own, as the command is: it starts others, and a test's process has threads that no child may inherit."""


async def test_a_whole_run_without_a_trainer(tmp_path: Path) -> None:
    """On the fake engine, whose words are no answers: base, work, the reason why nothing was learned, last, and what is kept."""
    engine = await FakeEngine().start()
    engine.models = {"inbox"}
    options = Options(seed=1, data_dir=tmp_path)
    try:
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            RUN,
            engine.url,
            str(tmp_path),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, told = (text.decode() for text in await asyncio.wait_for(running.communicate(), 240))
    finally:
        await engine.stop()
    assert running.returncode == 0, told
    summary = json.loads(out.splitlines()[-1])
    assert summary["task"] == "inbox"
    assert (summary["success_base"], summary["success_last"], summary["steps"]) == (0, 0, 0)
    assert summary["failed_calls"] == 0
    assert summary["episodes"] >= 8
    assert summary["recorded"] >= summary["calls"] == summary["episodes"] + 24
    assert "no step in 3 s" in told
    assert "held-out reward of the base model: 0.00 (0.00 to 0.24) of 12 episodes; a scripted expert has 1.000" in told
    kept = json.loads((options.folder / "curve.json").read_text())["curve"]
    (version,) = kept["versions"]
    assert version["version"] == 0
    assert 0 < version["count"] <= summary["episodes"]
    assert 0 <= version["at"] < 60
    assert kept["held_out"] == [[0, 0, 12], [0, 0, 12]]
    assert (options.folder / "success.png").stat().st_size > 5000
