"""Which tenants' control planes run, as their keeper tells the operator's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

STATES_FILE_NAME = "tenants.json"
"""In the proxy's folder: tenant → why its control plane does not run. Empty: it runs."""


def states_of(home: Path) -> dict[str, str]:
    try:
        return dict(json.loads((home / STATES_FILE_NAME).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


def tell_states(home: Path, states: Mapping[str, str]) -> None:
    file = home / STATES_FILE_NAME
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps(states))
    fresh.replace(file)
