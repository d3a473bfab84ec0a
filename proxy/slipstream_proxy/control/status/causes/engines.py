"""Causes that lie in the engines."""

from __future__ import annotations

from collections.abc import Iterator

from slipstream.contract import FunnelLine
from slipstream.engines import DEFAULT_ENGINE
from slipstream.engines.engine import NoAdapters
from slipstream.shared.processes.remedies import remedy
from slipstream_proxy.control.engines.replica import AdapterOutage, EngineLacks, FailedLoad
from slipstream_proxy.control.status.causes.surroundings import BLOCKS, REMARK, SLOWS, Surroundings, in_the_file
from slipstream_proxy.store.read.wording import span

LONG_SLOT_WAIT_S = 1.0
"""Seconds, on average, for which a slot is worth somebody's while."""


def engine_lines(around: Surroundings) -> Iterator[FunnelLine]:
    down = [(url, error) for url, ok, error in around.engines if not ok]
    if not around.engines and not around.config.engine.urls:
        fix = "set engine.urls, or set engine.model and start with `slipstream up`"
        text = "no engine is configured (engine.urls)"
        yield FunnelLine(stage="engine", cause="not_configured", count=0, text=text, fix=fix, severity=BLOCKS)
    elif down and around.engine_busy:
        fix = "wait; `up.log` in data_dir says how far it is"
        text = around.engine_busy
        yield FunnelLine(stage="engine", cause="starting", count=len(down), text=text, fix=fix, severity=BLOCKS)
    elif not around.engines:
        fix = "start an engine, or see what the name or file of engine.urls says"
        text = f"no engine is up: {', '.join(around.config.engine.urls)} names none"
        yield FunnelLine(stage="engine", cause="down", count=0, text=text, fix=fix, severity=BLOCKS)
    elif len(down) == len(around.engines):
        fix = f"see the log of {down[0][0]} ({down[0][1] or 'it does not answer'}), and start it again"
        text = "no engine answers: calls fail"
        yield FunnelLine(stage="engine", cause="down", count=len(down), text=text, fix=fix, severity=BLOCKS)
    yield from _outages(around, up=len(around.engines) - len(down))
    yield from _lacking(around)
    if around.engine_ended:
        fix = remedy(around.engine_ended) or "see `up.log` in data_dir, above that error"
        yield FunnelLine(stage="engine", cause="ended", count=1, text=around.engine_ended, fix=fix, severity=SLOWS)
    if around.sampling is not None and around.sampling.cuts:
        text = (
            f"the engine samples with {around.sampling.said()} where a call says nothing (its generation_config.json)"
        )
        text += ": such calls are recorded so, and can't be trained on"
        fix = f"{DEFAULT_ENGINE.neutral_fix}; or {in_the_file(around.config.model_name)}"
        yield FunnelLine(stage="engine", cause="generation_config", count=1, text=text, fix=fix, severity=SLOWS)
    yield from _settings(around)
    if use := around.use.waits:
        each, most = around.use.wait_seconds / use, around.config.engine.max_loras
        text = f"{use} calls waited for a slot in the engine, {each:.1f} s on average (engine.max_loras is {most})"
        fix = "raise engine.max_loras, or add an engine: more adapters were asked for at once than it has slots"
        severity = SLOWS if each >= LONG_SLOT_WAIT_S else REMARK
        yield FunnelLine(stage="engine", cause="slot_waits", count=use, text=text, fix=fix, severity=severity)
    if around.held:
        text = "the trainer has the GPU: calls wait until its step is done"
        yield FunnelLine(stage="engine", cause="held", count=1, text=text)
    if around.behind:
        text = f"another proxy's adapter: {around.behind}"
        fix = "mount its adapters folder here too, or take it back with `slipstream demote`"
        yield FunnelLine(stage="engine", cause="behind", count=1, text=text, fix=fix, severity=SLOWS)


def _settings(around: Surroundings) -> Iterator[FunnelLine]:
    """A settings file that changed since the start, as far as the proxy does not follow it."""
    news = around.settings
    if news is not None and news.error is not None:
        text = f"the changed settings file cannot be read, and the previous settings stay in force: {news.error}"
        fix = "correct it: it is read again by itself"
        yield FunnelLine(stage="engine", cause="settings_unreadable", count=1, text=text, fix=fix, severity=SLOWS)
    if news is not None and news.waiting:
        text = f"the settings file changed, and these take effect at the next start: {', '.join(news.waiting)}"
        fix = "start the proxy again, one after the other where there are several"
        count = len(news.waiting)
        yield FunnelLine(stage="engine", cause="settings_waiting", count=count, text=text, fix=fix, severity=SLOWS)


def _lacking(around: Surroundings) -> Iterator[FunnelLine]:
    """Engines without an adapter that they are to have, and addresses behind which are several engines."""
    for error in around.lookups:
        fix = "correct engine.urls, or the name or file that it names"
        text = f"engines cannot be looked up: {error}"
        yield FunnelLine(stage="engine", cause="discovery", count=1, text=text, fix=fix, severity=SLOWS)
    for url, several in around.routers:
        those = ", ".join(f'"{u}"' for u in several if u != url) or "the address of each engine behind it"
        text = f"{url} is a router or a Service: an adapter reaches one of the engines behind it, and calls reach all"
        fix = f'set engine.urls = [{those}] and engine.router = "{url}"'
        yield FunnelLine(stage="engine", cause="router_as_engine", count=1, text=text, fix=fix, severity=BLOCKS)
    if around.rewrites is not None:
        text = f"engine.router {around.config.engine.router}: {around.rewrites}"
        fix = "take a router that passes bodies as they are (Envoy, nginx), or leave engine.router out"
        yield FunnelLine(stage="engine", cause="router_rewrites", count=1, text=text, fix=fix, severity=SLOWS)
    alike: dict[str, list[tuple[str, str, FailedLoad]]] = {}
    for url, name, failed in around.lacking:
        fix = (
            failed.error.fix if isinstance(failed.error, EngineLacks) else "compare its vLLM and flags with the others'"
        )
        alike.setdefault(fix, []).append((url, name, failed))
    for fix, found in alike.items():
        url, name, failed = found[0]
        nowhere = [n for _, n, _ in found if n not in around.loaded_somewhere]
        text = f"{url} lacks {name} (for {span(max(0.0, around.now - failed.since))}): {failed.error}"
        text += f", and {len(found) - 1} more" if len(found) > 1 else ""
        text += "; no engine has it" if nowhere else "; calls with it go to the other engines"
        fix += ". It is asked again by itself"
        line = FunnelLine(stage="engine", cause="adapter_lacking", count=len(found), text=text, fix=fix)
        yield line.model_copy(update={"severity": BLOCKS if nowhere else SLOWS})


def _outages(around: Surroundings, up: int) -> Iterator[FunnelLine]:
    """A line for each cause and fix. Its count is the seconds since the first of these engines took no adapters."""
    alike: dict[tuple[str, str], list[tuple[str, AdapterOutage]]] = {}
    for url, outage in around.outages:
        alike.setdefault((outage.cause.value, outage.fix), []).append((url, outage))
    none_takes = len(around.outages) >= up
    for (cause, fix), found in alike.items():
        these, s = ("the engine", "s") if len(found) == 1 else ("these engines", "")
        if cause == NoAdapters.NO_IDS:
            text = f"{these} {', '.join(url for url, _ in found)} give{s} no token ids: calls are relayed, recorded as "
            text += "text, judged and exported, and never trained on"
            yield FunnelLine(stage="engine", cause=cause, count=len(found), text=text, fix=fix, severity=BLOCKS)
            continue
        lasted = [(url, max(0.0, around.now - outage.since)) for url, outage in found]
        engines = ", ".join(f"{url} (for {span(age)})" for url, age in lasted)
        text = f"{these} {engines} take{s} no adapters: {found[0][1].what}"
        text += (
            "; agents get the base model, and adapters wait until it takes them"
            if none_takes
            else "; calls with an adapter go to the other engines"
        )
        count, severity = round(max(age for _, age in lasted)), BLOCKS if none_takes else SLOWS
        yield FunnelLine(stage="engine", cause=cause, count=count, text=text, fix=fix, severity=severity)


def folder_lines(around: Surroundings) -> Iterator[FunnelLine]:
    for name, folder in around.lost_folders:
        text = f"the folder of {name}, which new episodes get, is gone ({folder}): an engine that starts cannot load it"
        fix = f"bring the folder back from a backup, or `slipstream adapters demote {name}`"
        yield FunnelLine(stage="engine", cause="lost_folder", count=1, text=text, fix=fix, severity=BLOCKS)
