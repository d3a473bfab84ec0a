"""A file of any known form, read, and its episodes on their way in: many at once, because each waits for its commit."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from slipstream.client import AsyncClient
from slipstream.contract import Imported
from slipstream.errors import ApiError
from slipstream.shared.backoff import Backoff
from slipstream.shared.progress import Progress
from slipstream_chat.report import Counts, Report, Value
from slipstream_chat.values import listed, mapping
from slipstream_imports.contract import import_episode, import_episodes
from slipstream_imports.records import LogRun, digest
from slipstream_imports.registry import detected, form_of
from slipstream_imports.rows import LogRow, read_rows
from slipstream_imports.survey import Entry, Survey


def named_rows(rows: Iterator[LogRow], form: str | None, report: Report) -> Iterator[tuple[str, LogRow]]:
    """Rows with their form's name. Rows that no form claims go with a form that gathers, else they are refused."""
    current = form
    for row in rows:
        name = form or detected(row.value)
        if name is None and current is not None and form_of(current).GATHERS_ROWS:
            name = current
        if name is None:
            fields = ", ".join(sorted(map(str, row.value))[:8]) or "none"
            report.refuse(row.where, f"no messages (nor request and response); its fields: {fields}")
            continue
        current = name
        yield name, row


def read_log(paths: Sequence[Path], task: str | None, report: Report, form: str | None = None) -> Iterator[Entry]:
    """The episodes of files. What is not taken is told to ``report``. ``task``: of those that name none."""
    rows = (
        row._replace(share=(n + row.share) / len(paths))
        for n, path in enumerate(paths)
        for row in read_rows(path, report)
    )
    named = named_rows(rows, form, report)
    names = _Names()
    for name, part in itertools.groupby(named, lambda pair: pair[0]):
        for run in form_of(name).runs((row for _, row in part), report):
            if (entry := entry_of(run, task, report)) is not None:
                yield names.told_apart(entry, run, report)


class _Names:
    """The episodes of one import, by a hash of their ids, and the runs without ids by their places."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.rewards: dict[int, float] = {}

    def told_apart(self, entry: Entry, run: LogRun, report: Report) -> Entry:
        """Runs that say the same and have no id are episodes of their own. Those with one id are one episode."""
        if not (run.id or entry.whole):
            at = hash((run.file, run.row))
            self.times[at] += 1
            place = f"{run.row}" if self.times[at] == 1 else f"{run.row}.{self.times[at]}"
            said = entry.said + digest(sorted(entry.rewards.items()))[:4]
            entry = entry._replace(file=run.file, place=place, said=said)
            return entry.named(f"import-{entry.text}-{place}")
        at = hash(str(entry.bodies[0]["id"]))
        self.times[at] += 1
        before = self.rewards.get(at)
        if run.reward is not None:
            self.rewards[at] = run.reward
        if self.times[at] == 1 or entry.whole:
            return entry
        if run.reward is not None and before not in (None, run.reward):
            why = "runs with one id are one episode, and its last reward counts"
            report.note(report.converted, entry.where, "reward", why)
        return entry._replace(counts=entry.counts._replace(episodes=0))


def entry_of(run: LogRun, task: str | None, report: Report) -> Entry | None:
    """None: nothing in it was sampled, which is told."""
    if run.whole is not None:
        calls = [mapping(c) for c in listed(run.whole.get("call_list"))]
        replies = [mapping(m) for c in calls for m in listed(c.get("reply"))[:1]]
        counts = Counts(1, len(calls), _tool_calls(replies), len(listed(run.whole.get("rewards"))))
        return Entry(run.where, run.share, [run.whole], whole=True, counts=counts)
    bodies = run.bodies(task, report)
    if not bodies:
        report.refuse(run.where, run.empty)
        return None
    replies = [
        mapping(listed(body["messages"])[int(str(mapping(told)["message"]))])
        for body in bodies
        for told in listed(body["replies"])
    ]
    rewards = (bodies[0].get("reward") is not None) + len(mapping(bodies[0].get("metrics")))
    counts = Counts(1, len(replies), _tool_calls(replies), rewards)
    return Entry(run.where, run.share, bodies, counts=counts, said=str(bodies[0]["id"])[-8:])


def _tool_calls(replies: list[dict[str, Value]]) -> int:
    return sum(len(listed(m.get("tool_calls"))) for m in replies)


T = TypeVar("T")
RETRIED_STATUSES = (0, 429, 502, 503, 504)
"""Statuses that another try may better; 0: nobody answered."""
RETRY_TIMEOUT_S = 20.0
AT_ONCE = 16
"""Requests under way. The store commits what has arrived together."""
BATCH_EPISODES, BATCH_BYTES = 64, 4 * 2**20
"""Episodes of one request, and their JSON."""
IN_BATCH = re.compile(r"body\.(?:episodes|conversations)\.(\d+)(?:\.|$)")


async def patiently(send: Callable[[], Awaitable[T]]) -> T:
    """Again while the proxy is busy or away: sending twice changes nothing.

    Raises ``ApiError`` for a refusal, or after ``RETRY_TIMEOUT_S``.
    """
    backoff, end = Backoff(0.1, 5.0), time.monotonic() + RETRY_TIMEOUT_S
    while True:
        try:
            return await send()
        except ApiError as e:
            if e.status not in RETRIED_STATUSES or time.monotonic() + backoff.pause > end:
                raise
            await backoff.sleep()


def together(entries: Iterator[Entry]) -> Iterator[list[Entry]]:
    """Episodes in batches for one request each; one with several histories by itself."""
    batch: list[Entry] = []
    weight = 0
    for entry in entries:
        size = len(json.dumps(entry.bodies[0])) if entry.whole or len(entry.bodies) == 1 else BATCH_BYTES
        if batch and (weight + size > BATCH_BYTES or len(batch) >= BATCH_EPISODES or entry.whole != batch[0].whole):
            yield batch
            batch, weight = [], 0
        batch.append(entry)
        weight += size
    if batch:
        yield batch


async def send(client: AsyncClient, batch: list[Entry], report: Report) -> None:
    """What the proxy refuses is told to the report with its place in the file; the rest of the batch goes in.

    Raises ``ApiError`` where nothing can go in: nobody answers, or the key may not.
    """
    while batch:
        try:
            told = await _send(client, batch)
        except ApiError as e:
            if e.status < 400 or e.status in (*RETRIED_STATUSES, 401, 403, 404, 405):
                raise
            named = IN_BATCH.match(e.field or "")
            if named is None and len(batch) > 1:  # the whole of it is too long, or of a kind that only one of them is
                for entry in batch:
                    await send(client, [entry], report)
                return
            refused = batch.pop(int(named.group(1)) if named else 0)
            report.refuse(refused.where, f"{e}" + (f": {e.fix}" if e.fix else ""))
        else:
            for entry, episodes in zip(batch, told, strict=True):
                report.take(entry.counts)
                _tell(report, entry, episodes)
            return


def _tell(report: Report, entry: Entry, episodes: Sequence[Imported]) -> None:
    for at, told in enumerate(episodes):
        report.stand(told.episode, told.state if at == 0 else "changed" if told.state == "changed" else "there")
        for name in told.kept:
            why = "the episode is there already, and keeps its own; forget it to import it anew"
            report.note(report.dropped, entry.where, f"another {name}", why)


async def _send(client: AsyncClient, batch: list[Entry]) -> list[list[Imported]]:
    """What became of each entry's bodies."""
    first = batch[0]
    if len(batch) > 1:
        bodies = [entry.bodies[0] for entry in batch]
        many = partial(client.restore_episodes, bodies) if first.whole else partial(client.ask, import_episodes(bodies))
        told = await patiently(many)
        return [[episode] for episode in told.episodes]
    if first.whole:
        return [[await patiently(partial(client.restore_episode, body)) for body in first.bodies]]
    return [[await patiently(partial(client.ask, import_episode(body))) for body in first.bodies]]


async def bring_in(
    client: AsyncClient, survey: Survey, entries: Iterator[Entry], report: Report, progress: Progress | None = None
) -> None:
    """Send what the survey has seen, each run under the name that it has at the proxy."""
    await survey.name_files(client)
    await upload(client, survey.settled(entries), report, progress)


async def upload(
    client: AsyncClient, entries: Iterator[Entry], report: Report, progress: Progress | None = None
) -> None:
    """Send them all. ``report`` counts what went in and names what was refused."""
    batches = together(entries)

    async def work() -> None:
        for batch in batches:  # shared by all workers: each takes the next
            share = batch[-1].share
            await send(client, batch, report)
            if progress is not None:
                progress.update("import", share, 1.0, episodes=report.episodes)

    workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
