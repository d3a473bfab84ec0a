"""The doctor's look at a running proxy: is everything recorded, and does what is recorded make steps?"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from email.utils import parsedate_to_datetime

import httpx

from slipstream.client import Client
from slipstream.contract import Episode, Funnel, JudgingStatus, Status
from slipstream.errors import ApiError
from slipstream.operate.adapter_routes import NoAdapters
from slipstream.operate.findings import Finding, fail, ok, warn

SKEW_SECONDS = 5
MANY_CALLS = 200
"""Calls in one episode that look like an id used for ever."""
AGAIN = 5
"""Episodes in a row named ``id~2``, ``id~3``, … by one id."""
LAG_SECONDS = 60
MANY_FAILURES = 5
"""Groups on which a judge failed before the doctor calls it broken."""
MANY_EPISODES = 1_000_000
"""In one DuckDB file: beyond it scans of the columns are what routes wait for (docs/operations.md, *Sizing*)."""


def check_proxy(url: str | None, key: str | None, busy: str | None = None) -> Iterator[Finding]:
    """``busy``: what the engine of a running `up` is busy with; its proxy starts after it."""
    with Client(url, key, timeout=10.0) as client:
        try:
            date = client.http.get("/healthz").headers.get("date")
            status = client.status()
        except (ApiError, httpx.HTTPError) as e:
            if busy:
                yield warn("the proxy is not there yet", "wait: it starts once the engine answers")
                return
            yield warn(f"no proxy at {client.url}: {e}", "start it with `slipstream up`, or give --url and --key")
            return
        try:
            latest = client.episodes(limit=50).episodes
        except ApiError as e:
            latest = []
            yield warn(f"the proxy does not list episodes: {e}", "give a key with a scope of its own: --key")
    yield ok(f"the proxy at {client.url} answers; {status.calls} calls recorded")
    yield from check_clock(date)
    yield from check_recording(status, busy)
    yield from check_ids(status, latest)
    yield from check_judging(status.judging)
    yield from check_funnel(status.funnel)


def check_judging(judging: JudgingStatus) -> Iterator[Finding]:
    """Judges that fail more often than they score."""
    for judge in judging.judges:
        if judge.failed >= MANY_FAILURES and judge.failed > judge.scored:
            yield fail(
                f"the judge {judge.worker} failed on {judge.failed} groups and scored {judge.scored}: "
                f"{judge.last_error}",
                "correct judge.model or its API; then POST groups/{id}/retry for each group of GET groups/parked",
            )


def check_clock(date: str | None) -> Iterator[Finding]:
    """Against the proxy's ``Date``. Leases, groups and idle episodes go by the clock."""
    if not date:
        return
    skew = abs(parsedate_to_datetime(date).timestamp() - time.time())
    if skew > SKEW_SECONDS:
        yield warn(
            f"the proxy's clock differs from this machine's by {skew:.0f} s, more than {SKEW_SECONDS} s",
            "run an NTP client on both",
        )
    else:
        yield ok("this machine's clock and the proxy's agree")


def check_recording(status: Status, busy: str | None = None) -> Iterator[Finding]:
    if status.capture_lost:
        yield fail(
            f"{status.capture_lost} calls were served but not recorded",
            "free the spool's disk; see docs/operations.md, SlipstreamCaptureLost",
        )
    if status.ingest_lag_seconds > LAG_SECONDS:
        yield warn(
            f"the store is {status.ingest_lag_seconds:.0f} s behind the spool",
            "see docs/operations.md, SlipstreamSpoolGrowing",
        )
    stored = sum(status.episodes.values())
    if status.store == "duckdb" and stored > MANY_EPISODES:
        yield warn(
            f"{stored:,} episodes are in one DuckDB file, more than {MANY_EPISODES:,}",
            "move to PostgreSQL (docs/store.md, From DuckDB to PostgreSQL), or drop old days with store.keep_days",
        )
    for engine in status.engines:
        if not engine.get("ok") and not busy:
            yield fail(
                f"the proxy says that engine {engine.get('url')} is down: {engine.get('error') or 'no reason given'}",
                "see its log; docs/operations.md, SlipstreamEngineDown",
            )


def check_funnel(funnel: Funnel) -> Iterator[Finding]:
    """Why there is no step yet, in the words of `slipstream status`."""
    for line in funnel.lines:
        outage = line.cause in set(NoAdapters)
        if line.stage == "engine" and not outage:
            continue  # the engines have checks of their own
        if line.blocks or outage:
            yield warn(line.text, line.fix or "wait")
        else:
            yield ok(f"the next step: {line.sentence}")


def check_ids(status: Status, latest: list[Episode]) -> Iterator[Finding]:
    """One constant id used for ever: an episode that never ends, or one that starts again as ``id~2``, ``id~3``, …"""
    fix = "give each run of the agent its own x-slipstream-episode"
    total = sum(status.episodes.values())
    long = max(latest, key=lambda e: e.calls, default=None)
    stems = Counter(re.sub(r"~\d+$", "", e.id) for e in latest if re.search(r"~\d+$", e.id))
    if stems and (most := stems.most_common(1)[0])[1] >= AGAIN and 2 * most[1] > len(latest):
        yield warn(f"{most[1]} of the latest {len(latest)} episodes are called {most[0]}", fix)
    elif status.calls > MANY_CALLS and total <= 1:
        yield warn(f"all {status.calls} calls are one episode", fix)
    elif long is not None and long.calls > MANY_CALLS and 2 * long.calls > status.calls:
        yield warn(f"{long.calls} of {status.calls} calls are one episode ({long.id})", fix)
    elif status.calls > MANY_CALLS and total >= status.calls and all(e.calls == 1 for e in latest):
        yield warn(
            "every call is an episode of its own, so that no conversation is learned from",
            "send one x-slipstream-episode with all calls of a run, if the agent makes more than one call",
        )
