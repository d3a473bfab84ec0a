"""The demo's tasks: the folders of ``examples/``, beside the sources or inside an installed wheel.

A task's files import their own packages by name, so the examples' folder goes onto the path. Nothing else of this
package imports them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from slipstream.config import Config, load_config
from slipstream.errors import StartError

UNUSED_URL = "http://127.0.0.1:9/v1"


class TaskItem(Protocol):
    """What an episode is about."""

    @property
    def id(self) -> str: ...


class PlayedEpisode(Protocol):
    @property
    def reward(self) -> float: ...

    @property
    def calls(self) -> int: ...


class TaskAgent(Protocol):
    """An agent, connected to an endpoint; many episodes run at once."""

    async def episode(
        self, item: TaskItem, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> PlayedEpisode: ...

    async def close(self) -> None: ...


class DemoTask(Protocol):
    """What the demo needs of a task; ``examples/common/task.py`` says what each part has to do."""

    name: str
    model: Path
    rubric: str

    def items(self, split: str, seed: int) -> Iterator[TaskItem]: ...

    def expert(self, items: Sequence[TaskItem]) -> float: ...

    def rule(self, transcript: str) -> float: ...

    async def open(self, base_url: str) -> TaskAgent: ...


def examples_dir() -> Path:
    """The examples' folder: inside an installed wheel, or beside the sources.

    Raises ``StartError`` where it is neither.
    """
    here = Path(__file__).resolve().parents[2]
    for folder in (here / "examples", here.parents[1] / "examples"):
        if (folder / "common" / "task.py").is_file():
            return folder
    raise StartError("the examples are not installed beside this package")


def load_task(name: str) -> DemoTask:
    """The task of this name. Raises ``StartError`` where there is none, or where a package that it needs is missing."""
    folder = examples_dir()
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    common = importlib.import_module("common.task")
    known = sorted(common.task_names())
    if name not in known:
        hint = "" if len(known) > 1 else ". The others are in a checkout of the repository"
        raise StartError(f"there is no task {name!r} in {folder}; known: {', '.join(known)}{hint}")
    try:
        return cast("DemoTask", common.load_task(name))
    except common.Missing as missing:
        raise StartError(str(missing)) from missing


async def open_agent(task: DemoTask, base_url: str = UNUSED_URL) -> TaskAgent:
    """The task's agent. Raises ``StartError`` that says what to install where its framework is missing."""
    missing = importlib.import_module("common.task").Missing
    try:
        return await task.open(base_url)
    except missing as error:
        raise StartError(f"the task {task.name} can't run: {error}") from error


def demo_config(
    task: DemoTask, seed: int, data_dir: Path, flags: list[str] | None = None, path: str | None = None
) -> Config:
    """Where the model and the data are, a free port, and the seed. All else is what a user has by default.

    Raises ``StartError`` where the small model was not made yet.
    """
    if not (task.model / "config.json").is_file():
        raise StartError(f"the task {task.name} has no model in {task.model}: its README says how one is made")
    base: dict[str, object] = {
        "data_dir": str(data_dir),
        "engine": {"model": str(task.model), "name": task.name},
        "proxy": {"port": 0},
        "trainer": {"seed": seed},
    }
    return load_config(path, base=base, flags=flags or [])
