"""The demo's parts that need no engine."""

from __future__ import annotations

import json
from pathlib import Path

from slipstream.operate.curve import LearningCurve, VersionPoint
from slipstream.operate.demo import Options, _keep, _told
from slipstream.operate.demo_driver import RewardSample


def test_each_task_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert Options(data_dir=tmp_path, seed=3).folder == tmp_path / "seed-3"
    assert Options(data_dir=tmp_path, seed=3, task="2048").folder == tmp_path / "2048-seed-3"


def test_a_reward_is_told_with_its_error_and_count() -> None:
    assert _told(RewardSample([0.0, 1.0])) == "0.500 ± 0.500 (2 episodes)"


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
