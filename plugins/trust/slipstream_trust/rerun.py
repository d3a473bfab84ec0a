"""``slipstream judge rerun``: score stored episodes again.

New rows are added; none is changed, and the latest of a name counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import json
import logging
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from slipstream.client import AsyncClient
from slipstream.config import Config
from slipstream.contract import (
    Episode,
    EpisodeState,
    Group,
    GroupEpisode,
    GroupKind,
    GroupLeaseIn,
    RerunIn,
    RewardIn,
    Score,
    ScoresIn,
    name_of,
)
from slipstream.errors import ApiError
from slipstream.shared.log import brief
from slipstream.shared.moments import parse_moment
from slipstream.shared.printable import own
from slipstream_judge.compare.panel import Panel
from slipstream_judge.model.budget import OverBudget
from slipstream_judge.model.cache import judged
from slipstream_judge.model.llm import JudgeFailed
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_judge.run.worker import lease_seconds, worker_name

log = logging.getLogger(__name__)
Filters = Mapping[str, Any]
"""Of ``slipstream episodes``, by name."""
BUSY_POLL_INTERVAL_S = 1.0
"""Seconds between two looks at a group that another judge has."""
BUSY_GROUP_TIMEOUT_S = 120.0
"""Seconds that such a group is waited for."""


def _asked(task: str | None, wanted: str | None) -> bool:
    """``wanted``: a glob of names, or the text that an agent gave as its task; None: all."""
    return wanted is None or fnmatch.fnmatchcase(task or "", wanted) or (bool(wanted) and task == name_of(wanted))


async def _listed(client: AsyncClient, since: float, task: str | None, filters: Filters) -> list[list[Episode]]:
    """Done episodes, together as they were grouped. An episode without a task stands alone."""
    groups: dict[tuple[str, ...], list[Episode]] = {}
    async for e in client.all_episodes(since=since, limit=500, **filters):
        if e.state != EpisodeState.DONE or not _asked(e.task, task):
            continue
        if e.group:
            groups.setdefault(("group", e.group), []).append(e)
        elif e.task is None:
            groups["alone", e.key, e.id] = [e]
        else:
            groups.setdefault(("task", e.key, e.model, e.task, e.split), []).append(e)
    return list(groups.values())


async def _fetched(client: AsyncClient, episodes: Sequence[Episode], number: int) -> Group:
    found = []
    for e in episodes:
        detail = await client.episode(e.id, of_key=e.key)
        plain = Episode.model_validate({k: getattr(detail, k) for k in Episode.model_fields})
        found.append(GroupEpisode(episode=plain, calls=detail.call_list, rewards=detail.rewards))
    first = episodes[0]
    kind = GroupKind.TASK if first.task is not None else GroupKind.WINDOW
    shared = first.model_dump(include={"key", "task", "split", "model"})
    return Group(id=f"rerun-{number}", kind=kind, episodes=found, **shared)


class Rerun:
    """``id`` makes each row's idempotency key: a repeated post adds nothing, another run does.

    A group is leased, so no other judge scores it meanwhile. Runs that are in none yet are scored one by one.
    """

    def __init__(self, config: Config, client: AsyncClient, panel: Panel, rubric: str | None = None) -> None:
        self.config, self.client, self.panel, self.rubric = config, client, panel, rubric
        self.id = uuid.uuid4().hex[:12]
        self.scored = self.failed = self.groups = 0
        self.worker, self.seconds = worker_name(), lease_seconds(config)

    async def run(self, since: float, task: str | None, filters: Filters) -> None:
        todo = await _listed(self.client, since, task, filters)
        if todo:
            await self.client.begin_rerun(RerunIn(id=self.id, text=self._said(todo, since, task, filters)))
        slots = asyncio.Semaphore(self.config.judge.concurrency)

        async def one(number: int, episodes: list[Episode]) -> None:
            async with slots:
                await self._group(number, episodes)
                self.groups += 1
                if sys.stderr.isatty():
                    print(f"\r{self.groups}/{len(todo)} groups", end="", file=own(sys.stderr), flush=True)

        await asyncio.gather(*(one(n, e) for n, e in enumerate(todo)))
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def _said(self, todo: Sequence[Sequence[Episode]], since: float, task: str | None, filters: Filters) -> str:
        judge = self.config.judge
        which = {"since": datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds"), "task": task, **filters}
        named = ", ".join(f"{name} {value}" for name, value in which.items() if value is not None)
        by = " and ".join(x for x in (judge.model, judge.function) if x)
        rubric = f", rubric {self.rubric[:200]!r}" if self.rubric else ""
        text = f"{sum(map(len, todo))} runs in {len(todo)} groups ({named}) by {by}, as {self.panel.names}{rubric}"
        return text[:2000]

    async def _group(self, number: int, episodes: list[Episode]) -> None:
        try:
            group = episodes[0].group
            scored = await (self._leased(group) if group else self._alone(number, episodes))
            self.scored += scored
        except (JudgeFailed, ApiError) as e:
            self.failed += 1
            log.warning("%s and %s more were not judged: %s", episodes[0].id, len(episodes) - 1, brief(e))

    async def _leased(self, group: str) -> int:
        """→ Scores of the whole group's done runs."""
        wanted = GroupLeaseIn(
            worker=self.worker, names=self.panel.names, seconds=self.seconds, form="deltas", groups=[group]
        )
        until = time.monotonic() + BUSY_GROUP_TIMEOUT_S
        while (lease := await self.client.lease_groups(wanted)) is None:
            if time.monotonic() > until:
                raise JudgeFailed("another judge has this group, or an episode of it was forgotten")
            await asyncio.sleep(BUSY_POLL_INTERVAL_S)
        if not lease.groups:  # its episodes were forgotten a moment ago
            return 0
        judged.set((group, lease.lease))
        whole = lease.groups[0]
        whole.episodes = [e for e in whole.episodes if e.episode.state == EpisodeState.DONE]
        scores = await self._scored(whole)
        marked = [score.model_copy(update={"meta": score.meta | {"rerun": self.id}}) for score in scores]
        await self.client.post_scores(group, ScoresIn(lease=lease.lease, scores=marked))
        return len(marked)

    async def _alone(self, number: int, episodes: list[Episode]) -> int:
        scores = await self._scored(await _fetched(self.client, episodes, number))
        for score in scores:
            await self._store(score, episodes[0].key)
        return len(scores)

    async def _scored(self, group: Group) -> list[Score]:
        """Over budget: waits. Scores are taken after the lease's end, too, if no other judge has the group by then."""
        while True:
            try:
                outcome = await self.panel.score(group, time.time() + self.seconds)
                return outcome.scores
            except OverBudget as e:
                await asyncio.sleep(min(e.seconds, 60.0))

    async def _store(self, score: Score, of_key: str) -> None:
        meta = score.meta | {"values": [*score.values], "rerun": self.id}
        key = f"rerun-{self.id}-{score.name}-{score.episode}"[:200]
        given = score.model_dump(include={"name", "value", "source"})
        reward = RewardIn(**given, reason=score.reason or None, key=key, meta=meta)
        await self.client.add_reward(score.episode, reward, of_key=of_key)


async def rerun(
    config: Config,
    client: AsyncClient,
    since: float,
    *,
    rubric: str | None = None,
    task: str | None = None,
    name: str | None = None,
    filters: Filters | None = None,
) -> dict[str, object]:
    """Judge all done episodes since then, with the whole groups that they are in.

    The cache is not read: they are judged again, even by the same rubric.
    """
    panel = Panel(config, JudgeMetrics(), client, rubric=rubric, name=name, fresh=True)
    await panel.budget.sync()
    work = Rerun(config, client, panel, rubric)
    try:
        await work.run(since, task, filters or {})
    finally:
        with contextlib.suppress(ApiError):
            await client.release(work.worker)
        await panel.budget.sync()
    return {"groups": work.groups, "scored": work.scored, "failed": work.failed, "names": panel.names, "rerun": work.id}


def main(
    config: Config,
    url: str | None,
    key: str | None,
    *,
    since: str = "24h",
    rubric: str | None = None,
    task: str | None = None,
    name: str | None = None,
    filters: Filters | None = None,
) -> int:
    """The command. The last line on stdout is JSON. Exit code 1 when a group could not be judged."""
    start = parse_moment(since)

    async def go() -> dict[str, object]:
        async with AsyncClient(url, key) as client:
            return await rerun(config, client, start, rubric=rubric, task=task, name=name, filters=filters)

    result = asyncio.run(go())
    if result["scored"]:
        print("the new scores train if you ask for it: slipstream train --from-store", file=sys.stderr)
    print(json.dumps(result))
    return 1 if result["failed"] else 0
