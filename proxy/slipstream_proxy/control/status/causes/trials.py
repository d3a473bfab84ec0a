"""Causes between a step and a live version."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from slipstream.contract import AdapterState, FunnelLine, GateReport
from slipstream_proxy.control.status.causes.surroundings import Surroundings
from slipstream_proxy.store.read.wording import plural, span


def slot_lines(around: Surroundings) -> Iterator[FunnelLine]:
    if around.slots:
        count = sum(around.pins.get(a.name, 0) for a in around.slots)
        names = " and ".join(a.name for a in around.slots)
        keep = plural(count, "running episode keeps", "running episodes keep")
        most = around.config.engine.max_loras
        text = f"the next version waits for a slot in the engine: {keep} {names} there (engine.max_loras is {most})"
        patience = span(around.config.adapters.pin_seconds)
        fix = f"end runs with a reward or x-slipstream-done, or raise engine.max_loras; it waits {patience} at most"
        yield FunnelLine(stage="step", cause="slots", count=count, text=text, fix=fix)


def _of_groups(around: Surroundings) -> Iterator[FunnelLine]:
    """Groups of runs that get another version than all others, and those to which a person gave one."""
    by_hand = {(group, a.name) for a in around.served for group in a.given}
    for served in around.served:
        for group, to in served.kept_from.items():
            why = f"{served.name}, or what it was made from, was taken back for them alone"
            if (group, to) in by_hand:
                why = f"a person gave it to them while {served.name} was on trial"
            text = f"new runs of {group} get {to}, because {why}. All others go on with {served.name}"
            give = f"slipstream adapters promote {served.name} --group {shlex.quote(group)}"
            yield FunnelLine(stage="gate", cause="group", count=1, text=text, fix=f"if it is good for them: `{give}`")
        for group in served.given:
            text = f"a person gave {served.name} to {group}: losses of that group alone do not speak against it"
            take = f"slipstream adapters demote {served.name} --group {shlex.quote(group)}"
            yield FunnelLine(stage="gate", cause="given", count=1, text=text, fix=f"to take it back: `{take}`")


def gate_lines(around: Surroundings) -> Iterator[FunnelLine]:
    gate = around.config.gate
    for adapter in around.replayed:
        replay = adapter.replay
        assert replay is not None
        cases = sum(s.cases for s in replay.sets)
        held = replay.outcome == "undecided"
        text = f"{adapter.name} is tried on recorded steps, in the engine's idle time: {replay.reason}"
        fix = f"wait, or decide by hand: `slipstream adapters promote {adapter.name}`"
        if held:
            text = f"{adapter.name} waits for a person: {replay.reason}"
            fix = f'`slipstream adapters promote {adapter.name}`, add cases, or set gate.replay.undecided = "try"'
        yield FunnelLine(stage="gate", cause="replay", count=cases, text=text, fix=fix)
    yield from _of_groups(around)
    for served in around.served:
        if served.state == AdapterState.LIVE and served.frozen:
            text = f"{served.name} is {served.reason or 'frozen'}. Newer versions wait"
            fix = f"`slipstream adapters unfreeze {served.name}`"
            yield FunnelLine(stage="gate", cause="frozen", count=1, text=text, fix=fix)
    for candidate in around.candidates:
        if gate.trial == "manual":
            text = f"{candidate.name} waits for a person: gate.mode is manual"
            fix = f"`slipstream adapters promote {candidate.name}`, or `slipstream adapters demote {candidate.name}`"
            yield FunnelLine(stage="gate", cause="manual", count=1, text=text, fix=fix)
            continue
        report = candidate.gate or GateReport()
        seen = report.trial_episodes
        control = report.control or "the adapter before it"
        episodes = plural(seen, "episode", "episodes")
        text = f"the gate compares {candidate.name} with {control}: {episodes} on trial so far"
        if report.reason:
            text += f"; {report.reason}"
        if report.episodes_left is not None:
            left = plural(report.episodes_left, "more new run", "more new runs")
            text += f" (a verdict is likely after {left}, of all versions)"
        if report.gets:
            text += f". {report.gets}"
        fix = report.fix or f"wait, or decide by hand: `slipstream adapters promote {candidate.name}`"
        yield FunnelLine(stage="gate", cause="undecided", count=seen, text=text, fix=fix)
