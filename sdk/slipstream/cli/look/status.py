from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import httpx
from pydantic import JsonValue

from slipstream.cli.common import TextColour, add_client, age, ago, away_line, connect, proxy_url, read_config, say
from slipstream.client import AsyncClient
from slipstream.contract.funnel import FunnelLine, Severity
from slipstream.contract.status import Space
from slipstream.engines.engine import NoAdapters
from slipstream.errors import ConfigError, Unavailable
from slipstream.operate.run.watch import watch
from slipstream.shared.clock import NTP_ADVICE, SKEW_SECONDS, clock_skew
from slipstream.shared.processes.sidecars import read_stack

SEVERITY_LOOKS = {Severity.BLOCKS: TextColour.BAD, Severity.SLOWS: TextColour.DOUBTFUL, Severity.REMARK: None}


def add(parser: argparse.ArgumentParser) -> None:
    add_client(parser)
    parser.add_argument("--all", action="store_true", help="print the remarks too, not only their number")
    parser.add_argument("--follow", action="store_true", help="then print steps, verdicts and errors as they come")


def counts(by: dict[str, int]) -> str:
    return ", ".join(f"{v} {k}" for k, v in by.items()) or "none"


def standing(engine: Mapping[str, JsonValue]) -> str:
    if not engine.get("ok"):
        return "down" if engine.get("answered", True) else "has not answered yet"
    outage = engine.get("outage")
    if isinstance(outage, dict) and outage.get("cause") == NoAdapters.NO_IDS:
        return f"ok; {NoAdapters.NO_IDS.what}"
    since = outage.get("since") if isinstance(outage, dict) else None
    return f"ok, but has taken no adapters for {age(since, time.time())}" if isinstance(since, int | float) else "ok"


def has(engine: Mapping[str, JsonValue], adapter: str) -> bool:
    """An engine without routes for adapters goes on with those that it has."""
    loaded = engine.get("loaded")
    return isinstance(loaded, list) and adapter in loaded


def served(live: str, engines: Sequence[Mapping[str, JsonValue]]) -> str:
    """What new episodes get while no engine takes adapters, too."""
    up = [engine for engine in engines if engine.get("ok")]
    if "@" not in live or not up or any(not engine.get("outage") or has(engine, live) for engine in up):
        return live
    return f"the base model, and {live} once an engine takes adapters"


def disk(space: Space) -> str:
    """What takes the space, and what to do where it is more than it may be."""
    parts = ", ".join(f"{name} {size(n)}" for name, n in space.parts.items())
    if space.limit is None:
        return f"disk {size(space.total)}: {parts}"
    text = f"disk {size(space.total)} of data.max_gb = {space.limit / 1e9:g}: {parts}"
    if space.total <= space.limit:
        return text
    fix = "raise data.max_gb, or set trainer.keep_checkpoints = 1"
    return f"{text}; the newest day and what a rollback needs stay → {fix}"


def size(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e9 else f"{n / 1e6:.0f} MB"


def clock_lines(date: str | None) -> Iterator[FunnelLine]:
    skew = clock_skew(date)
    if skew is not None and abs(skew) > SKEW_SECONDS:
        text = f"the proxy's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
        severity = Severity.SLOWS
        yield FunnelLine(
            stage="store", cause="clock", count=round(abs(skew)), text=text, fix=NTP_ADVICE, severity=severity
        )


def starting(args: argparse.Namespace) -> str | None:
    """What the engine of this folder's `up` is busy with: the proxy starts after it."""
    engine = read_stack(read_config(args).root).engine
    return engine.sentence(time.time()) if engine else None


def _now(line: str) -> None:
    say(line, look=TextColour.BAD if line.startswith(Severity.BLOCKS.mark) else None)
    sys.stdout.flush()


async def _follow(args: argparse.Namespace) -> None:
    async with AsyncClient(proxy_url(args), args.key, tenant=args.tenant) as client:
        await watch(client, _now)


def run(args: argparse.Namespace) -> int:
    if args.follow and args.json:
        raise ConfigError("--follow prints text only: GET /slipstream/v1/events has them as JSON")
    if not args.follow:
        return _shown(args)
    with contextlib.suppress(Unavailable):  # what follows says so, and waits
        _shown(args)
    sys.stdout.flush()
    asyncio.run(_follow(args))
    return 0


def _shown(args: argparse.Namespace) -> int:
    try:
        with connect(args) as client:
            status, date = client.status(), None
            with contextlib.suppress(httpx.HTTPError):
                date = client.http.get("/healthz").headers.get("date")
    except Unavailable:
        busy = None if args.url else starting(args)
        if busy is None:
            raise
        print(json.dumps({"starting": busy}) if args.json else busy)
        return 1
    if args.json:
        print(status.model_dump_json(indent=2))
        return 0
    troubles = [*clock_lines(date), *status.funnel.troubles()]
    for line in troubles:
        say(f"{line.severity.mark} {line.sentence}", look=SEVERITY_LOOKS[line.severity])
    if any(line.blocks for line in troubles):
        say("(! = nothing is learned, or the agent's calls fail, until somebody changes it)")
    for model, text in status.headlines.items():
        say(f"{model}: {text}" if len(status.headlines) > 1 else text)
    say(f"slipstream {status.version}, up for {age(status.started, time.time())}")
    for model, live in status.models.items():
        canary = f", but {status.canaries[model]}" if model in status.canaries else ""
        say(f"  {model}: new episodes get {served(live, status.engines)}{canary}")
    for engine in status.engines:
        title = f" ({engine['title']})" if engine.get("title") else ""
        say(f"  engine {engine.get('url')}{title}: {standing(engine)}")
    if (use := status.adapter_use).loads:
        loads = f"{use.calls - use.hits} waited while the engine loaded it"
        read = f"{use.loads} loads, {use.reads} of them from files, {use.load_seconds / use.loads:.2f} s each"
        say(f"  adapters: {use.hits} of {use.calls} calls found theirs in the engine, {loads} ({read})")
    for sidecar in status.sidecars:
        say(f"  {sidecar.name}: {sidecar.state} for {age(sidecar.since, time.time())}")
    say(f"  calls {status.calls} ({status.capture_lost} lost), episodes {counts(status.episodes)}")
    say(f"  groups {counts(status.groups)}")
    say(f"  steps {status.steps}, last {ago(status.last_step)}; ingest is {status.ingest_lag_seconds:.1f} s behind")
    if (people := status.judging.people) is not None:
        say(
            f"  {people.people} people labelled {people.runs} runs twice or more: {people.same:.0%} of {people.pairs} "
            f"pairs of labels are equal (truly {people.low:.0%} to {people.high:.0%})"
        )
    if (left := status.forgetting).episodes:
        why = f": {left.error}" if left.error else ""
        say(f"  forgetting: {left.episodes} episodes still in files ({left.step}){why}")
    if left.dropped:
        say(f"  dropped since the start: {left.dropped} calls and rewards of forgotten episodes (use a new id)")
    for proxy in left.elsewhere:
        if proxy.away:
            say(f"  forgetting: {away_line(proxy)}")
    if status.space.parts:
        say(f"  {disk(status.space)}")
    remarks = status.funnel.remarks()
    for line in remarks if args.all else ():
        say(f"  - {line.sentence}")
    if remarks and not args.all:
        say(f"  {len(remarks)} remark{'' if len(remarks) == 1 else 's'} on what comes next: `slipstream status --all`")
    return 0
