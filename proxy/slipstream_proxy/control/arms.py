"""Which adapter a new episode gets: by share, from a hash of (task, episode), so that every process says the same and a task's group mixes arms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


def share_of(task: str | None, episode: str) -> float:
    """A number in [0, 1) that depends on task and episode alone."""
    digest = hashlib.blake2b(f"{task or ''}\0{episode}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def choose(
    live: str, arms: Iterable[Sequence[object]], task: str | None, episode: str, split: str = "train"
) -> tuple[str, str]:
    """(adapter, arm). ``arms`` are ``[name, arm, share]`` as in the live state. Evaluation episodes are always the live one's: they say how good that is."""
    if split == "eval":
        return live, "live"
    place = share_of(task, episode)
    for name, arm, share in arms:
        part = float(share)  # type: ignore[arg-type]
        if place < part:
            return str(name), str(arm)
        place -= part
    return live, "live"
