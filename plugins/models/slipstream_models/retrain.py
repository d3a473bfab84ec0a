"""Train a version anew from the store, from the last version before it: without episodes that were forgotten, or named.

What it and the versions after it were trained on is read from the store, written to a file, and trained on offline.
The result is registered as the next version, so the gate decides on it as on any other.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.client import Client
from slipstream.contract import Adapter
from slipstream.errors import ApiError, ConfigError
from slipstream_models.push import lineage


@dataclass(slots=True)
class RetrainPlan:
    """``start``: the version that training begins with; None: the base model."""

    first: str
    last: str
    start: Adapter | None
    batches: list[str]
    episodes: int = 0
    left_out: list[str] = field(default_factory=list)
    """Named ones that the batches had."""
    forgotten: int = 0
    """Episodes of the batches that the store has no more."""


def plan_of(client: Client, adapter: str | None, without: Collection[str]) -> RetrainPlan:
    """``adapter``: the first version to be made anew; None: the first that was trained on one of ``without``. Raises
    ``ConfigError``: there is none.
    """
    listed = client.adapters()
    known = listed.adapters
    named = {a.name: a for a in known}
    chosen = adapter
    if chosen is None:
        lines = [x for e in without for x in client.episode_page(e).lineage if x.outcome == "trained" and x.adapter]
        trained = sorted((named[str(x.adapter)] for x in lines if x.adapter in named), key=lambda a: a.version)
        if not trained:
            raise ConfigError("no version was trained on them; name the first one that is to be made anew")
        chosen = trained[0].name
    first = named.get(chosen) or next((a for a in known if str(a.version) == chosen), None)
    if first is None:
        raise ConfigError(f"no adapter {chosen}: list them with slipstream adapters")
    served = named.get(listed.live.get(first.model, ""), first)
    chain = lineage(served, known)
    chain = chain[chain.index(first) :] if first in chain else [first]
    batches = list(dict.fromkeys(b for a in chain for b in a.batches))
    if not batches:
        raise ConfigError(f"{first.name} says of no batch that it was trained on it")
    return RetrainPlan(first.name, chain[-1].name, named.get(first.parent or ""), batches)


def write_rows(client: Client, plan: RetrainPlan, without: Collection[str], path: Path) -> None:
    """The batches' episodes as JSON lines, in the order in which they were trained on."""
    written: set[tuple[str, str]] = set()
    with path.open("w", encoding="utf-8") as out:
        for name in plan.batches:
            for link in client.batch(name).episodes:
                if (link.key, link.episode) in written:
                    continue
                written.add((link.key, link.episode))
                if link.episode in without:
                    plan.left_out.append(link.episode)
                    continue
                try:
                    episode = client.episode(link.episode, tokens=True, of_key=link.key)
                except ApiError as e:
                    if e.status != 404:
                        raise
                    plan.forgotten += 1
                    continue
                out.write(json.dumps(episode.model_dump(mode="json"), ensure_ascii=True) + "\n")
                plan.episodes += 1
