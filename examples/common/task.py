"""The shape of a task: what `slipstream demo --task NAME` and `make curves` need to run it.

A task is a folder `examples/<folder>/` with a file `task.py` that holds one object, `TASK`, or several, `TASKS` by name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, cast, runtime_checkable

__all__ = ["EXAMPLES", "Agent", "Item", "Missing", "Played", "Task", "load_task", "needs", "task_names"]

EXAMPLES = Path(__file__).resolve().parents[1]


class Item(Protocol):
    """What one episode is about: a question, an opening, a customer. All runs of an item have the same `id`."""

    @property
    def id(self) -> str: ...


class Played(NamedTuple):
    """One finished episode: the reward that the agent saw, and how many model calls were answered."""

    reward: float
    calls: int


class Agent(Protocol):
    """The task's agent, connected to an endpoint. Many episodes run at once."""

    async def episode(
        self, item: Item, *, split: str = "train", tagged: bool = True, post_reward: bool = True
    ) -> Played:
        """Run one episode. `tagged`: name episode, task and split in headers. `post_reward`: post the reward at its end.

        An episode that is not tagged posts nothing. Errors of the endpoint are raised.
        """
        ...

    async def close(self) -> None:
        """Close connections and processes."""
        ...


@runtime_checkable
class Task(Protocol):
    """A world, an agent in it, and a small model that plays it badly."""

    name: str
    """Also the name under which the model is served: what the agent asks for."""
    model: Path
    """Folder of the small model."""
    rubric: str
    """What a judge is told about good and bad runs."""

    def items(self, split: str, seed: int) -> Iterator[Item]:
        """Items without end, the same ones for the same seed. "train" and "eval" have none in common."""
        ...

    def expert(self, items: Sequence[Item]) -> float:
        """Mean reward of the scripted expert on these items."""
        ...

    def rule(self, transcript: str) -> float:
        """A simulated judge's score of one run, 0 to 1, from nothing but the text that a judge reads."""
        ...

    async def open(self, base_url: str) -> Agent:
        """Connect an agent to an endpoint (with /v1). Raises ``Missing`` where its framework is not installed.

        It is called once before anything runs, too, to find that out: it asks nothing of the endpoint.
        """
        ...


class Missing(Exception):
    """Something that the task's agent needs is not installed. The message says which line installs it."""


@contextmanager
def needs(install: str) -> Iterator[None]:
    """Imports that may fail: `with needs("pip install openai"): import openai`. Raises ``Missing`` with that line."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Missing(f"the package {error.name} is not installed: {install}") from error


def task_names() -> dict[str, Path]:
    """The names that `--task` takes, each with its folder.

    A folder's name is its task's name. Where that can't be, or where it holds several tasks, it has a file `names.txt`:
    one name a line.
    """
    found = {}
    for file in sorted(EXAMPLES.glob("*/task.py")):
        listed = file.parent / "names.txt"
        names = listed.read_text().split() if listed.is_file() else [file.parent.name]
        found |= dict.fromkeys(names, file.parent)
    return {name: folder for name, folder in found.items() if folder.name != "common"}


def load_task(name: str) -> Task:
    """The task of this name: `TASKS[name]` of its folder's `task.py`, or `TASK` where the folder holds one.

    Raises ``KeyError`` for a name that no task has, and ``Missing`` where a package that it needs is not installed.
    """
    folder = task_names()[name]
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    try:
        module = importlib.import_module(f"{folder.name}.task")
    except ModuleNotFoundError as error:
        raise Missing(f"the task {name} needs the package {error.name}: see {folder}/README.md") from error
    return cast("Task", module.TASKS[name] if hasattr(module, "TASKS") else module.TASK)
