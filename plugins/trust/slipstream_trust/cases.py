"""Episodes whose truth is known, from JSON lines, as groups: what ``slipstream judge eval`` reads.

A line: ``{"group": "…", "truth": 0.5, "messages": […]}``, or with ``"calls"`` in place of ``"messages"`` (a list of
calls with ``messages``, ``reply`` and, where wanted, ``tools``, ``dialect``, ``outcome``). Optional: ``episode``,
``task``, ``tools``. Lines without a ``group`` or ``task`` are judged alone.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from pydantic import ValidationError

from slipstream.contract import PLAIN_ID_PATTERN, Group, GroupEpisode
from slipstream.errors import ConfigError
from slipstream_judge.text.bare_groups import make_episode, make_group

CASE_FIELDS = {"group", "truth", "messages", "calls", "tools", "episode", "task"}


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
        lines = Path(path).read_text().split("\n")
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
