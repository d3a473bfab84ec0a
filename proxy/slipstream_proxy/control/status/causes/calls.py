"""Causes between an agent's call and the store."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.contract import FunnelLine
from slipstream_proxy.control.status.causes.surroundings import (
    BLOCKS,
    LAG_SHOWN_S,
    RECENT_SECONDS,
    REMARK,
    SHOWN_SECONDS,
    SLOWS,
    SOON_S,
    Surroundings,
)
from slipstream_proxy.control.status.refusals import fix_of
from slipstream_proxy.store.read.recent_calls import RecentCalls
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural, span

TURNED_AWAY = {
    401: (
        "they had no API key, or one that is not known",
        "give the agent a key that `slipstream keys list` shows (`slipstream keys add` makes one)",
    ),
    403: (
        "their API key has no scope inference, or is another tenant's",
        "give the agent one (`slipstream keys list`)",
    ),
    413: ("they were too large", "raise proxy.body_limit, or send less in one request"),
    429: (
        "their key's limits, or a quota, were used up",
        "raise the key's limits or the quota, or let the agent ask less at a time",
    ),
}
"""Status of a call that the proxy refused → why, and what to do."""
WELL_AGAIN = 8
"""Calls that were answered after an error, from which on calls are taken to be answered again."""


def call_lines(recent: RecentCalls, around: Surroundings) -> Iterator[FunnelLine]:
    """The agent's calls fail."""
    for status, (count, at) in sorted(around.workers.turned_away.items()):
        if around.now - at > RECENT_SECONDS or status >= 500:
            continue  # of an engine that is away another line speaks
        why, fix = TURNED_AWAY.get(status) or (f"the proxy answered {status}", "see the message that the agent got")
        text = f"{plural(count, 'call was', 'calls were')} refused with {status}, the last "
        text += f"{span(max(0.0, around.now - at))} ago: {why}"
        severity = SLOWS if around.now - recent.answered_at < RECENT_SECONDS else BLOCKS
        yield FunnelLine(stage="calls", cause=f"refused_{status}", count=count, text=text, fix=fix, severity=severity)
    if recent.failed and recent.answered_since < WELL_AGAIN:
        text = f"{recent.failed} of {plural(recent.calls, 'call fails', 'calls fail')}: {recent.status} {recent.error}"
        severity = BLOCKS if 2 * recent.failed >= recent.calls else SLOWS
        fix = fix_of(recent.status, recent.error)
        yield FunnelLine(stage="calls", cause="failing", count=recent.failed, text=text, fix=fix, severity=severity)


def store_lines(counts: FunnelCounts | None, around: Surroundings) -> Iterator[FunnelLine]:
    if around.store_error or counts is None:
        why = around.store_error or "it does not answer"
        fix = "see the proxy's log; the spool keeps calls and rewards meanwhile"
        text = f"the store takes nothing just now: {why}"
        yield FunnelLine(stage="store", cause="away", count=1, text=text, fix=fix, severity=BLOCKS)
    elif around.lag > LAG_SHOWN_S:
        text = f"the store is {span(around.lag)} behind: it reads the spool's backlog"
        severity = SLOWS if around.lag > SOON_S else REMARK
        yield FunnelLine(stage="store", cause="behind", count=round(around.lag), text=text, severity=severity)
    if around.archive_error:
        text = f"days do not leave the store: {around.archive_error}"
        fix = "mend store.archive (its place, or the keys in the proxy's environment): it is tried every ten minutes"
        yield FunnelLine(stage="store", cause="archive", count=1, text=text, fix=fix, severity=SLOWS)
    settings = around.config.store
    if settings.archive and settings.keep_days is not None and around.config.store_url.startswith("postgres"):
        text = f"queries do not see calls older than {settings.keep_days:g} days: PostgreSQL reads no store.archive"
        place = settings.archive.partition("?")[0].rstrip("/")
        fix = f"""duckdb -c "SELECT count(*) FROM '{place}/calls-*.parquet'" reads them"""
        yield FunnelLine(stage="store", cause="archive_apart", count=1, text=text, fix=fix)


def clock_lines(recent: RecentCalls, around: Surroundings) -> Iterator[FunnelLine]:
    back = recent.last_at - around.now
    if back > SOON_S:
        text = (
            f"the clock is {span(back)} behind the newest call's: it was set back, or the call came from another proxy"
        )
        fix = "run an NTP client (`timedatectl set-ntp true`): leases, groups and idle episodes go by the clock"
        yield FunnelLine(stage="store", cause="clock", count=round(back), text=text, fix=fix, severity=SLOWS)


def loss_lines(around: Surroundings) -> Iterator[FunnelLine]:
    """What was lost on a disk that takes nothing, for a day; and what was refused there."""
    lost, refused = around.losses, around.refused_writes
    if around.missing is not None:
        text, fix = around.missing
        yield FunnelLine(stage="calls", cause="missing", count=1, text=text, fix=fix, severity=BLOCKS)
    fix = "free space under data_dir, or mend its disk: calls are recorded again by themselves"
    if lost.calls and around.now - lost.at < SHOWN_SECONDS:
        ago = span(max(0.0, around.now - lost.at))
        what = plural(lost.calls, "call was", "calls were")
        text = f"{what} answered and not recorded, the last {ago} ago: {lost.why}"
        severity = BLOCKS if around.now - lost.at < RECENT_SECONDS else SLOWS
        yield FunnelLine(stage="calls", cause="lost", count=lost.calls, text=text, fix=fix, severity=severity)
    if refused and around.now - around.refused_at < SHOWN_SECONDS:
        what = plural(refused, "reward or end mark was", "rewards and end marks were")
        text = f"{what} refused (503), because the disk took nothing"
        fix = "free space under data_dir, or mend its disk: then send them again"
        yield FunnelLine(stage="calls", cause="refused", count=refused, text=text, fix=fix, severity=SLOWS)


def traffic_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    asked = {"capture": "x-slipstream-capture: off", "split": "x-slipstream-split: off"}
    found = [
        (around.workers.uncaptured[by], header) for by, header in asked.items() if around.workers.uncaptured.get(by)
    ]
    unseen = sum(count for count, _ in found)
    if unseen:
        text = f"{plural(unseen, 'call was', 'calls were')} relayed and not recorded since the proxy's start, because "
        text += " or ".join(f"their header {header} asked for it" for _, header in found)
        fix = "leave the header out of the agent's calls to record them" if not counts.live else None
        severity = REMARK if counts.live else BLOCKS
        yield FunnelLine(stage="calls", cause="uncaptured", count=unseen, text=text, fix=fix, severity=severity)
    if unseen and not counts.live:
        return
    lost = around.losses.calls and around.now - around.losses.at < SHOWN_SECONDS
    if not counts.live and (lost or around.store_error or around.lag > LAG_SHOWN_S):
        pass  # calls may have come: a line above says why they are not here
    elif not counts.live:
        fix = "set the agent's OPENAI_BASE_URL to the proxy's address with /v1"
        text = "no call has come through the proxy yet"
        text += f" ({plural(counts.calls, 'call was', 'calls were')} imported)" if counts.calls else ""
        yield FunnelLine(stage="calls", cause="none", count=0, text=text, fix=fix, severity=BLOCKS)
    elif not counts.trained_calls and not counts.untrainable and not around.text_only:
        fix = f'let the agent ask for {around.config.model_name}, or map its model name in [models."<name>"]'
        fix += "; `slipstream distill --from NAME` trains on what another model answered"
        text = "calls have come, and none asks for the trained model"
        count = counts.calls
        yield FunnelLine(stage="calls", cause="untrained_model", count=count, text=text, fix=fix, severity=BLOCKS)
    fix = (
        "their calls were refused, or never came here: post rewards and done marks to the x-slipstream-episode that "
        "the replies carry, with the key that made the calls"
    )
    if n := counts.orphans.rewarded:
        text = f"{plural(n, 'unknown episode has', 'unknown episodes have')} rewards but no calls"
        yield FunnelLine(stage="calls", cause="orphan_rewards", count=n, text=text, fix=fix, severity=SLOWS)
    if n := counts.orphans.ended:
        text = f"{plural(n, 'unknown episode was', 'unknown episodes were')} marked as done and made no calls"
        yield FunnelLine(stage="calls", cause="orphan_marks", count=n, text=text, fix=fix, severity=SLOWS)
    if n := around.workers.unknown_tenants:
        tag = around.config.proxy.tenant_tag
        text = f"{plural(n, 'request has', 'requests have')} a tag {tag} that names no tenant: they are no tenant's"
        remedy = f'correct the tag, or declare the tenant ([tenants."<{tag}>"])'
        yield FunnelLine(stage="calls", cause="unknown_tenant", count=n, text=text, fix=remedy, severity=SLOWS)
    for name, n in sorted(around.workers.split_names.items()):
        several = plural(n, "session is named", "sessions are named")
        text = f"{several} in {name} by what many runs share, a hash or a tenant: each conversation is an episode"
        remedy = f"name runs with x-slipstream-episode, or take {name} out of [identity]"
        yield FunnelLine(stage="calls", cause="shared_session_name", count=n, text=text, fix=remedy, severity=REMARK)
