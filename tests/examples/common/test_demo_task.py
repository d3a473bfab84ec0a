"""Tasks for the demo: found by name, and what is missing is said before anything starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from common.demo.task import demo_config, load_task, open_agent
from tests.support import MODEL, ROOT

from slipstream.cli.start.demo import load_demo
from slipstream.config import load_config
from slipstream.errors import ConfigError, StartError
from slipstream.settings import Config, EngineConfig


def test_the_examples_are_found() -> None:
    assert Path(load_demo().__file__) == ROOT / "examples" / "common" / "demo" / "demo.py"
    assert load_task("inbox").model == MODEL


def test_the_settings(tmp_path: Path) -> None:
    inbox = load_task("inbox")
    config = demo_config(inbox, 3, tmp_path)
    assert (config.data_dir, config.trainer.seed, config.model_name) == (str(tmp_path), 3, "inbox")
    assert config.proxy.port == 0
    assert config.engine.model == str(MODEL)
    plain = Config(data_dir=str(tmp_path), engine=EngineConfig(model=str(MODEL), name="inbox"))
    plain.proxy.port, plain.trainer.seed = 0, 3
    assert config == plain, "what it shows is what a user has by default"
    assert demo_config(inbox, 3, tmp_path, ["trainer.learning_rate=1e-4"]).trainer.learning_rate == 1e-4
    with pytest.raises(ConfigError, match=r"did you mean trainer\.learning_rate"):
        demo_config(inbox, 0, tmp_path, ["trainer.learning_rat=1"])
    same = load_config(env={}, base=config.model_dump())
    assert same == config


def test_a_task_that_nobody_has_is_told_with_those_that_are_known() -> None:
    with pytest.raises(StartError, match=r"there is no task 'chess' in .*examples; known: .*inbox.*tictactoe"):
        load_task("chess")


def test_a_wheel_says_where_the_other_tasks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "common", tmp_path / "common")
    monkeypatch.setattr("common.task.EXAMPLES", tmp_path)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "task.py").touch()
    with pytest.raises(StartError, match=r"known: inbox\. The others are in a checkout of the repository"):
        load_task("tictactoe")


async def test_a_framework_that_is_not_installed_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("tictactoe")
    monkeypatch.setitem(sys.modules, "tictactoe.graph_agent", None)
    with pytest.raises(StartError, match=r"task tictactoe can't run: .*pip install langgraph langchain-openai"):
        await open_agent(task)


async def test_an_agent_is_opened_without_an_endpoint() -> None:
    await (await open_agent(load_task("inbox"))).close()


def test_a_model_that_was_not_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load_task("tictactoe")
    monkeypatch.setattr(task, "model", tmp_path / "model")
    with pytest.raises(StartError, match="the task tictactoe has no model in"):
        demo_config(task, 0, tmp_path)


def test_the_product_imports_no_example(tmp_path: Path) -> None:
    """In a process of its own, from elsewhere: a task is loaded when it is asked for, not before."""
    script = """
import sys
from slipstream.cli.start.demo import load_demo
assert not {"common", "inbox"} & set(sys.modules)
task = load_demo().load_task("inbox")
items = task.items("eval", 0)
print(len({next(items).id for _ in range(9)}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "9\n"
