"""The doctor's look at a running proxy: is everything recorded, and does what is recorded make steps?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import httpx

from slipstream.client import Client
from slipstream.contract import Episode, Funnel, Status
from slipstream.contract.funnel import Stage
from slipstream.engines.engine import NoAdapters
from slipstream.engines.findings import Finding, fail, ok, warn
from slipstream.errors import ApiError
from slipstream.shared.clock import NTP_ADVICE, SKEW_SECONDS, clock_skew

MANY_CALLS = 200
"""Calls in one episode that look like an id used for ever."""
REUSED_ID_EPISODES = 5
"""Episodes in a row named ``id~2``, ``id~3``, … by one id."""
MANY_EPISODES = 1_000_000
"""In one DuckDB file: beyond it scans of the columns are what routes wait for (docs/operations.md, *Sizing*)."""
UNSEEN_TEXT = "what the proxy recorded, and why there is no step, can't be looked at"
OWN_CHECKS = {("engine", "down"), ("engine", "starting")}
"""Lines of the funnel that ``check_recording`` or the check of the engine speaks of."""
FAILURE_CAUSES = {("calls", "failing"), ("calls", "lost"), ("judge", "failing"), ("judge", "chance")}
"""Lines of the funnel for which something is broken, and not only in the way of a step."""
CAUSE_TEXTS: dict[tuple[Stage, str], str] = {
    ("engine", ""): "what is trained is not served until the engine takes it",
    ("engine", "ended"): "an engine that ended once ends again: calls fail meanwhile",
    ("store", ""): "newer calls and rewards are not shown or trained on until the store has them",
    ("calls", ""): "no step comes without calls of the trained model",
    ("calls", "lost"): "nothing is learned from them, and nobody can look at them",
    ("calls", "failing"): "agents get errors, and learn nothing from runs without an answer",
    ("calls", "refused"): "what was refused is not in the store: their senders have to send it again",
    ("calls", "orphan_rewards"): "a reward of a run that made no call trains nothing, and is dropped in the end",
    ("calls", "orphan_marks"): "the intended run stays open until it times out",
    ("episodes", ""): "episodes that are in no group of training are not learned from",
    ("episodes", "lone"): "each turn is taken for a run of its own, so that the reward reaches only the last one",
    ("groups", ""): "a step compares the runs of a group",
    ("judge", ""): "groups wait for its scores, and are lost when they are too old",
    ("judge", "chance"): "its scores are not used, so nothing is trained on them",
    ("reward", ""): "a step needs rewards that tell good runs from bad ones",
    ("untrainable", ""): "most calls are of this kind, and nothing is learned from them",
    ("lost", ""): "these runs were made and judged, and nothing is learned from them",
    ("ready", ""): "a step needs groups that are complete and scored",
    ("trainer", ""): "no step comes while the trainer does not work",
    ("trainer", "skipped"): "nothing was learned from that batch",
    ("step", ""): "steps that hardly change the policy improve nothing",
    ("step", "engine_gap"): "the gradient is that of tokens which the model would not have said",
    ("gate", ""): "no newer version is served until the gate decides",
    ("plugin", ""): "what the plug-in does is not done",
}
"""Why a line of the funnel matters; no cause: for all others of its stage."""


def check_proxy(
    url: str | None, key: str | None, busy: str | None = None, *, trainable: bool = True
) -> Iterator[Finding]:
    """``busy``: what the engine of a running `up` is busy with; its proxy starts beside it. Not ``trainable``: the
    engine's check has said that it gives no token ids.
    """
    with Client(url, key, timeout=10.0) as client:
        try:
            date = client.http.get("/healthz").headers.get("date")
            status = client.status()
        except (ApiError, httpx.HTTPError) as e:
            if busy:
                yield warn(
                    "the proxy is not there yet",
                    UNSEEN_TEXT,
                    "wait some seconds, and run `slipstream doctor` again: it starts beside the engine",
                )
                return
            if isinstance(e, ApiError) and e.status in (401, 403):
                fix = "give --key, or SLIPSTREAM_API_KEY: `slipstream keys add me --scopes viewer` makes one"
                yield warn(f"the proxy at {client.url} wants another key: {e}", UNSEEN_TEXT, fix)
                return
            yield warn(
                f"no proxy at {client.url}: {e}", UNSEEN_TEXT, "start it with `slipstream up`, or give --url and --key"
            )
            return
        try:
            latest = client.episodes(limit=50).episodes
        except ApiError as e:
            latest = []
            fix = "`slipstream keys add me --scopes viewer`, and give its secret as --key"
            yield warn(f"the proxy does not list episodes: {e}", "ids that are used for ever are not found", fix)
    yield ok(f"the proxy at {client.url} answers; {status.calls} calls recorded")
    yield from check_clock(date)
    yield from check_recording(status, busy)
    yield from check_ids(status, latest)
    yield from check_funnel(status.funnel, () if trainable else (NoAdapters.NO_IDS,))


def check_clock(date: str | None) -> Iterator[Finding]:
    """Against the proxy's ``Date``. Leases, groups and idle episodes go by the clock."""
    skew = clock_skew(date)
    if skew is None:
        return
    if abs(skew) > SKEW_SECONDS:
        yield warn(
            f"the proxy's clock differs from this machine's by {abs(skew):.0f} s, more than {SKEW_SECONDS:g} s",
            "leases, groups and the ends of idle episodes go by the clock",
            NTP_ADVICE,
        )
    else:
        yield ok("this machine's clock and the proxy's agree")


def check_recording(status: Status, busy: str | None = None) -> Iterator[Finding]:
    stored = sum(status.episodes.values())
    if status.store == "duckdb" and stored > MANY_EPISODES:
        yield warn(
            f"{stored:,} episodes are in one DuckDB file, more than {MANY_EPISODES:,}",
            "status, the page and leases wait longer for scans of that file",
            "set store.keep_days, which drops old days; or move to PostgreSQL: "
            "`slipstream export --format jsonl --out episodes.jsonl` and `slipstream adapters --json > adapters.json`, "
            "set store.url, start, and `slipstream import` both",
        )
    for engine in status.engines:
        if not engine.get("ok") and not busy:
            yield fail(
                f"the proxy says that engine {engine.get('url')} is down: {engine.get('error') or 'no reason given'}",
                "its calls go to other engines, or fail if there is none",
                "see its log (`up.log` in data_dir, if `slipstream up` started it), and start it again; "
                "its adapters are loaded by themselves",
            )


def check_funnel(funnel: Funnel, known: Sequence[str] = ()) -> Iterator[Finding]:
    """Why there is no step yet, in the words of `slipstream status`. ``known``: causes of which something was said
    already.
    """
    for line in funnel.troubles():
        at = (line.stage, line.cause)
        if at in OWN_CHECKS or line.cause in known:
            continue
        fix = line.fix or "see `up.log` in data_dir, and `slipstream status` in a minute"
        fails = at in FAILURE_CAUSES or (line.blocks and line.cause.startswith("refused_"))
        why = CAUSE_TEXTS.get(at) or CAUSE_TEXTS[line.stage, ""]
        yield Finding("fail" if fails else "warn", line.text, why, fix, line.stage)
    if remarks := len(funnel.remarks()):
        yield ok(f"{remarks} remark{'' if remarks == 1 else 's'} on the next step: `slipstream status --all`")


def check_ids(status: Status, latest: list[Episode]) -> Iterator[Finding]:
    """One constant id used for ever: an episode that never ends, or one that starts again as ``id~2``, ``id~3``, …"""
    why = "runs are compared with each other: one episode for all of them has one reward, and no other run beside it"
    fix = "give each run of the agent its own x-slipstream-episode"
    total = sum(status.episodes.values())
    long = max(latest, key=lambda e: e.calls, default=None)
    stems = Counter(re.sub(r"~\d+$", "", e.id) for e in latest if re.search(r"~\d+$", e.id))
    if stems and (most := stems.most_common(1)[0])[1] >= REUSED_ID_EPISODES and 2 * most[1] > len(latest):
        yield warn(f"{most[1]} of the latest {len(latest)} episodes are called {most[0]}", why, fix)
    elif status.calls > MANY_CALLS and total <= 1:
        yield warn(f"all {status.calls} calls are one episode", why, fix)
    elif long is not None and long.calls > MANY_CALLS and 2 * long.calls > status.calls:
        yield warn(f"{long.calls} of {status.calls} calls are one episode ({long.id})", why, fix)
