"""Episodes whose truth is known, from JSON lines, as groups: what ``slipstream judge eval`` reads.

A line: ``{"group": "…", "truth": 0.5, "messages": […]}``, or with ``"calls"`` in place of ``"messages"`` (a list of
calls with ``messages``, ``reply`` and, where wanted, ``tools``, ``dialect``, ``outcome``). Optional: ``episode``,
``task``, ``tools``. Lines without a ``group`` or ``task`` are judged alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slipstream.contract import (
    PLAIN_ID_PATTERN,
    CallRecord,
    Episode,
    EpisodeState,
    Group,
    GroupEpisode,
    GroupKind,
    Split,
)
from slipstream.errors import ConfigError

CASE_FIELDS = {"group", "truth", "messages", "calls", "tools", "episode", "task"}


def _call(id: str, number: int, given: dict[str, Any]) -> CallRecord:
    filled = {
        "id": f"{id}.{number}",
        "episode": id,
        "number": number,
        "at": float(number),
        "seconds": 0.0,
        "dialect": "chat",
        "model": "",
        "adapter": None,
        "status": 200,
        "outcome": "ok",
        "trainable": True,
    }
    return CallRecord.model_validate(filled | given)


def make_episode(id: str, task: str | None, calls: list[dict[str, Any]]) -> GroupEpisode:
    """An episode from as much of its calls as is known."""
    plain = {"key": "-", "split": Split.TRAIN, "model": "", "adapter": None, "state": EpisodeState.DONE}
    episode = Episode(id=id, task=task, started=0.0, ended=0.0, calls=len(calls), **plain)
    return GroupEpisode(episode=episode, calls=[_call(id, n, c) for n, c in enumerate(calls)], rewards=[])


def make_group(id: str, episodes: list[GroupEpisode]) -> Group:
    """Runs of one task that no proxy has grouped."""
    plain = {"kind": GroupKind.TASK, "key": "-", "split": Split.TRAIN, "model": ""}
    return Group(id=id, task=episodes[0].episode.task if episodes else None, episodes=episodes, **plain)


def _line(number: int, line: str) -> tuple[str, GroupEpisode, float]:
    read = json.loads(line)
    if not isinstance(read, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  # one kind of error a line
    if unknown := set(read) - CASE_FIELDS:
        raise ValueError(f"unknown field {min(unknown)}; known are {', '.join(sorted(CASE_FIELDS))}")
    truth = read.get("truth")
    if isinstance(truth, bool):
        truth = float(truth)
    if not isinstance(truth, int | float) or not math.isfinite(truth):
        raise ValueError("truth must be a number")
    calls = read.get("calls")
    if calls is None:
        if not isinstance(read.get("messages"), list):
            raise ValueError("messages (a list) or calls must be there")
        calls = [{"messages": read["messages"], "tools": read.get("tools") or []}]
    name = str(read.get("episode") or f"line-{number}")
    task = str(read["task"]) if read.get("task") else None
    group = str(read.get("group") or task or f"line-{number}")
    return group, make_episode(name, task if task and PLAIN_ID_PATTERN.match(task) else None, calls), float(truth)


def read_cases(path: str | Path) -> tuple[list[Group], dict[str, float]]:
    """Groups, and the truth of each episode by its id. Raises ``ConfigError`` with the line's number."""
    groups: dict[str, list[GroupEpisode]] = {}
    truth: dict[str, float] = {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: {e}") from e
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            group, episode, true = _line(number, line)
        except (ValueError, TypeError, ValidationError) as e:
            raise ConfigError(f"{path}:{number}: {e}") from e
        if episode.episode.id in truth:
            raise ConfigError(f"{path}:{number}: episode {episode.episode.id} appears twice")
        truth[episode.episode.id] = true
        groups.setdefault(group, []).append(episode)
    if not groups:
        raise ConfigError(f"{path} has no episodes")
    return [make_group(f"eval-{n}", episodes) for n, episodes in enumerate(groups.values())], truth
