"""How trainer and judge are. ``slipstream up`` writes it to ``sidecars.json`` in the data folder, and the control plane
reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from slipstream.contract import Sidecar
from slipstream.shared.processes.process import is_alive
from slipstream.shared.processes.remedies import remedy
from slipstream.shared.processes.supervisor import Child, ChildState

SIDECARS_FILE_NAME = "sidecars.json"
RECENT_SECONDS = 3600.0


class OwnEngine(BaseModel):
    """The engine of a ``slipstream up``, as the supervisor knows it: before it answers, nobody else can."""

    state: Literal["starting", "running", "restarting"]
    """``starting``: its process runs and does not answer yet. ``restarting``: it ended, and is started in a moment."""
    since: float
    starts: int = 1
    reason: str | None = None
    """How the run before this one ended (``Child.end``)."""

    def ended(self, now: float) -> str | None:
        """That it serves again, and what it ended with within the last hour."""
        if self.state != "running" or self.starts == 1 or now - self.since > RECENT_SECONDS:
            return None
        again = (
            f"the engine was started again {self.starts - 1} times"
            if self.starts > 2
            else "the engine was started again"
        )
        return f"{again}: it {self.reason or 'ended'}"

    def sentence(self, now: float) -> str | None:
        """What it is busy with; None while it serves."""
        if self.state == "running":
            return None
        spent = f"{max(0.0, now - self.since):.0f} s so far"
        if self.starts == 1 and self.state == "starting":
            return f"the engine is starting ({spent}); that takes a minute or more"
        fix = remedy(self.reason or "")
        return f"the engine {self.reason or 'ended'}, and `slipstream up` is starting it again ({spent})" + (
            f"; {fix}" if fix else ""
        )


class StackReport(BaseModel):
    """What a ``slipstream up`` says of its trainer, its judge and its engine."""

    pid: int = 0
    """The supervisor's process id. If that process is gone, an earlier run wrote the file."""
    sidecars: list[Sidecar] = []
    pids: dict[str, int] = {}
    """Name of one that runs → its process id."""
    engine: OwnEngine | None = None


def sidecar_of(child: Child) -> Sidecar:
    bad = child.state in (ChildState.RESTARTING, ChildState.DOWN)
    return Sidecar(
        name=child.name,
        state=child.state.value,
        since=child.since,
        starts=child.starts,
        exit_code=child.exit_code,
        reason=child.end() if bad else child.last_end,
    )


def sentence(sidecar: Sidecar) -> str | None:
    """What is wrong with it, and what to do; None while it runs or its work is done."""
    fix = remedy(sidecar.reason or "")
    if sidecar.state == "restarting":
        said = f"the {sidecar.name} {sidecar.reason}, and is restarted"
        return said + (f"; {fix}" if fix else "")
    if sidecar.state == "down":
        return (
            f"the {sidecar.name} is down after {sidecar.starts} starts: it {sidecar.reason}. "
            f"Agents are served; {fix or 'fix it'} and start `slipstream up` again"
        )
    return None


def starts_again(sidecar: Sidecar, silence: float, now: float) -> str | None:
    """That it runs, failed before, and has not asked for work since; ``silence``: seconds since it last did."""
    if sidecar.state != "running" or sidecar.reason is None or silence < now - sidecar.since:
        return None
    fix = remedy(sidecar.reason)
    said = f"the {sidecar.name} was started again (start {sidecar.starts}): before, it {sidecar.reason}"
    return said + (f"; {fix}" if fix else "")


def engine_of(children: Sequence[Child]) -> OwnEngine | None:
    """The engine among the children, with what was said of it when it last ended."""
    child = next((c for c in children if c.slow_start), None)
    if child is None:
        return None
    if child.state is not ChildState.RUNNING:
        return OwnEngine(state="restarting", since=child.since, starts=child.starts, reason=child.end())
    state: Literal["running", "starting"] = "running" if child.answers else "starting"
    return OwnEngine(state=state, since=child.since, starts=child.starts, reason=child.last_end)


class SidecarFile:
    """What the supervisor calls after each change."""

    def __init__(self, root: Path) -> None:
        self.path = root / SIDECARS_FILE_NAME

    def __call__(self, children: Sequence[Child]) -> None:
        sidecars = [sidecar_of(c).model_dump(mode="json") for c in children if not c.essential]
        temp = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            own = engine_of(children)
            engine = {"engine": own.model_dump(mode="json")} if own else {}
            pids = {c.name: c.process.pid for c in children if c.process and c.state is ChildState.RUNNING}
            temp.write_text(json.dumps({"pid": os.getpid(), "sidecars": sidecars, "pids": pids, **engine}))
            temp.replace(self.path)
        except OSError:
            return  # a full disk must not end what runs; the next change tries again

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def read_stack(root: Path) -> StackReport:
    """The report of the ``slipstream up`` that runs on this data folder; an empty one where none does."""
    try:
        found = StackReport.model_validate_json((root / SIDECARS_FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return StackReport()
    return found if is_alive(found.pid) else StackReport()
