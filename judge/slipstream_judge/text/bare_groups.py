"""Groups for a judge that no proxy has made, from as much of their calls as is known."""

from __future__ import annotations

from typing import Any

from slipstream.contract import CallRecord, Episode, EpisodeState, Group, GroupEpisode, GroupKind, Split


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
