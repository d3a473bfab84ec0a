"""Which adapter a new episode gets, and with what probability: one rule for the control plane and for a worker that
decides alone.

The rule is pure: it looks at the live state and at the episode's names, so every process gives the same answer. A keyed
hash stands in for the coin. The live adapter's name salts it: when a new version goes live, names that an agent uses
again (a task's, an episode's) get a new coin.

The gate's estimates need the probability of every arm *at the time of the assignment*, because the control arm's share
moves with the evidence. So an assignment carries ``chances``, which the pin and the episode keep.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

LIVE_ARM = "live"
"""The arm of the adapter that new episodes get unless another arm has them."""
CONTROL_ARM = "control"
"""The last accepted adapter."""
BEST_ARM = "best"
"""The version that no later one has been shown to beat."""
CANDIDATE_ARM = "candidate"
"""The adapter on trial, in canary mode."""


TRIED_ARM = "tried"
"""In ``chances``: the adapter that the other arms are compared with."""


class Assignment(NamedTuple):
    adapter: str
    arm: str
    propensity: float
    """Probability of this arm, in (0, 1]."""
    chances: str
    """Probability of each arm, and what was on trial: ``live=0.9 control=0.1 tried=agent@7``. Empty: there was nothing
    to choose, so the episode is no evidence about arms.
    """


def place(salt: str, key: str, task: str | None, episode: str) -> float:
    """A number in [0, 1), uniform over episodes, that depends on these four alone."""
    text = "\0".join((key, task or "", episode)).encode("utf-8", "surrogatepass")
    name = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    digest = hashlib.blake2b(text, digest_size=8, key=name).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53


def groups_of(task: str | None, tags: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """→ (what ``gate.by`` calls it, the group's name) of each group of an episode."""
    for name, value in tags.items():
        yield f"tag.{name}", f"tag.{name}={value}"
    if task:
        yield "task", f"task={task}"


def assign(
    live: str,
    arms: Sequence[tuple[str, str, float]],
    key: str,
    task: str | None,
    episode: str,
    split: str = "train",
    tags: Mapping[str, str] | None = None,
    kept: Mapping[str, str] | None = None,
    first: Collection[str] = (),
) -> Assignment:
    """The adapter of a new episode. ``arms`` are (adapter, arm, share) as in the live state; ``live`` gets the rest.
    ``kept``: group → the adapter of all its episodes, because the live one was taken back for it alone. ``first``: the
    arms are only for episodes of these groups, or of these keys (``gate.first``); empty: for all.

    An evaluation episode always gets the live adapter: it says how good that one is. So does one that is not stored:
    its reward would never come, and it would count as a failure of its arm.
    """
    if kept and split != "eval":
        for _, group in groups_of(task, tags or {}):
            if group in kept:
                return Assignment(kept[group], CONTROL_ARM, 1.0, "")
    if split in ("eval", "off") or not arms or (first and not _goes_first(first, key, task, tags or {})):
        return Assignment(live, LIVE_ARM, 1.0, "")
    at = place(live, key, task, episode)
    on_trial = next((adapter for adapter, arm, _ in arms if arm == CANDIDATE_ARM), live)
    text = f"{chances_of(arms)} {TRIED_ARM}={quote(on_trial, safe='/@', errors='replace')}"
    for adapter, arm, share in arms:
        if at < share:
            return Assignment(adapter, arm, share, text)
        at -= share
    return Assignment(live, LIVE_ARM, chance(text, LIVE_ARM), text)


def _goes_first(first: Collection[str], key: str, task: str | None, tags: Mapping[str, str]) -> bool:
    return f"key={key}" in first or any(group in first for _, group in groups_of(task, tags))


def chances_of(arms: Sequence[tuple[str, str, float]]) -> str:
    """The live arm's probability, then the others'. ``chance`` reads it."""
    rest = 1.0 - sum(share for _, _, share in arms)
    return " ".join((f"{LIVE_ARM}={max(rest, 0.0):.6g}", *(f"{arm}={share:.6g}" for _, arm, share in arms)))


def chance(chances: str, arm: str) -> float:
    """Probability of an arm in ``Assignment.chances``. 0.0: it was not in play, or the text is not ours."""
    try:
        found = float(_part(chances, arm) or 0.0)
    except ValueError:
        return 0.0
    return found if 0.0 <= found <= 1.0 else 0.0


def tried(chances: str) -> str | None:
    """The adapter that was on trial when ``Assignment.chances`` was written. None: it does not say."""
    adapter = _part(chances, TRIED_ARM)
    return unquote(adapter) if adapter is not None else None


def _part(chances: str, name: str) -> str | None:
    """What stands for a name; None: it is not there."""
    for part in chances.split():
        known, _, value = part.partition("=")
        if known == name:
            return value
    return None
