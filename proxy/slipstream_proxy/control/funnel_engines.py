"""The lines of the funnel on the engines: which are down, and which take no adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from slipstream.contract import FunnelLine
from slipstream_proxy.store.counts import span

if TYPE_CHECKING:
    from slipstream_proxy.control.adapter_outage import AdapterOutage
    from slipstream_proxy.control.funnel import Surroundings


def engine_lines(around: Surroundings) -> Iterator[FunnelLine]:
    down = [(url, error) for url, ok, error in around.engines if not ok]
    if not around.engines:
        fix = "set engine.urls, or set engine.model and start with `slipstream up`"
        text = "no engine is configured (engine.urls)"
        yield FunnelLine(stage="engine", cause="not_configured", count=0, text=text, fix=fix, blocks=True)
    elif down and around.engine_busy:
        fix = "wait; the lines `engine |` of `slipstream up` say how far it is"
        text = around.engine_busy
        yield FunnelLine(stage="engine", cause="starting", count=len(down), text=text, fix=fix, blocks=True)
    elif len(down) == len(around.engines):
        fix = f"see the log of {down[0][0]} ({down[0][1] or 'it does not answer'}), and start it again"
        yield FunnelLine(stage="engine", cause="down", count=len(down), text="no engine answers", fix=fix, blocks=True)
    yield from _outages(around, up=len(around.engines) - len(down))
    if around.held:
        text = "the trainer has the GPU: calls wait until its step is done"
        yield FunnelLine(stage="engine", cause="held", count=1, text=text)
    if around.behind:
        text = f"another proxy's adapter: {around.behind}"
        fix = "mount its adapters folder here too, or roll it back"
        yield FunnelLine(stage="engine", cause="behind", count=1, text=text, fix=fix)


def _outages(around: Surroundings, up: int) -> Iterator[FunnelLine]:
    """A line for each cause and fix. Its count is the seconds since the first of these engines took no adapters."""
    alike: dict[tuple[str, str], list[tuple[str, AdapterOutage]]] = {}
    for url, outage in around.outages:
        alike.setdefault((outage.cause.value, outage.fix), []).append((url, outage))
    none_takes = len(around.outages) >= up
    for (cause, fix), found in alike.items():
        lasted = [(url, max(0.0, around.now - outage.since)) for url, outage in found]
        engines = ", ".join(f"{url} (for {span(age)})" for url, age in lasted)
        text = f"{'the engine' if len(found) == 1 else 'these engines'} {engines}"
        text += f" take{'s' if len(found) == 1 else ''} no adapters: {found[0][1].what}"
        text += (
            "; agents get the base model, and adapters wait until it takes them"
            if none_takes
            else "; calls with an adapter go to the other engines"
        )
        count = round(max(age for _, age in lasted))
        yield FunnelLine(stage="engine", cause=cause, count=count, text=text, fix=fix, blocks=none_takes)
