"""How trainer and judge are:

``slipstream up`` writes it to ``sidecars.json`` in the data folder, the control plane reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from slipstream.contract import Sidecar
from slipstream.operate.process import is_alive
from slipstream.operate.supervisor import Child, ChildState

FILE = "sidecars.json"


class _Written(BaseModel):
    pid: int
    """The supervisor's process id. If that process is gone, an earlier run wrote the file."""
    sidecars: list[Sidecar]


def sidecar_of(child: Child) -> Sidecar:
    bad = child.state in (ChildState.RESTARTING, ChildState.DOWN)
    return Sidecar(
        name=child.name,
        state=child.state.value,
        since=child.since,
        starts=child.starts,
        exit_code=child.exit_code,
        reason=child.last_words()[:500] if bad else None,
    )


def sentence(sidecar: Sidecar) -> str | None:
    """What is wrong with it, and what to do; None while it runs or its work is done."""
    if sidecar.state == "restarting":
        return f"the {sidecar.name} ended with exit code {sidecar.exit_code} and is restarted: {sidecar.reason}"
    if sidecar.state == "down":
        return (
            f"the {sidecar.name} is down after {sidecar.starts} starts, the last with exit code "
            f"{sidecar.exit_code}: {sidecar.reason}. "
            "Agents are served; fix it and start `slipstream up` again"
        )
    return None


class SidecarFile:
    """What the supervisor calls after each change."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE

    def __call__(self, children: Sequence[Child]) -> None:
        sidecars = [sidecar_of(c).model_dump(mode="json") for c in children if not c.essential]
        temp = self.path.with_suffix(".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temp.write_text(json.dumps({"pid": os.getpid(), "sidecars": sidecars}))
            temp.replace(self.path)
        except OSError:
            return  # a full disk must not end what runs; the next change tries again

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def read_sidecars(root: Path) -> list[Sidecar]:
    """Trainer and judge of the ``slipstream up`` that runs on this data folder; empty where none does."""
    try:
        found = _Written.model_validate_json((root / FILE).read_bytes())
    except (OSError, ValidationError):
        return []
    return found.sidecars if is_alive(found.pid) else []
