"""A task as the demo starts it: what is missing is told before anything starts."""

from __future__ import annotations

from pathlib import Path

from common import task as tasks
from common.task import Agent, Missing, Task
from slipstream.config import Config, load_config
from slipstream.errors import StartError

UNUSED_URL = "http://127.0.0.1:9/v1"


def load_task(name: str) -> Task:
    """The task of this name. Raises ``StartError`` where there is none, or where a package that it needs is missing."""
    known = sorted(tasks.task_names())
    if name not in known:
        hint = "" if len(known) > 1 else ". The others are in a checkout of the repository"
        raise StartError(f"there is no task {name!r} in {tasks.EXAMPLES}; known: {', '.join(known)}{hint}")
    try:
        return tasks.load_task(name)
    except Missing as missing:
        raise StartError(str(missing)) from missing


async def open_agent(task: Task, base_url: str = UNUSED_URL) -> Agent:
    """The task's agent. Raises ``StartError`` that says what to install where its framework is missing."""
    try:
        return await task.open(base_url)
    except Missing as error:
        raise StartError(f"the task {task.name} can't run: {error}") from error


def demo_config(
    task: Task, seed: int, data_dir: Path, flags: list[str] | None = None, path: str | None = None
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
