"""The dashboards against Grafana's own schema, as its SDK has it: what the SDK does not know is lost in a round trip."""

from __future__ import annotations

import copy
import json

import pytest
from tests.support.rendering import DEPLOY

pytest.importorskip("grafana_foundation_sdk")
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))


def lost(ours, theirs, path="") -> list[str]:
    """What is not there, or not the same, after the SDK has read it and written it again."""
    if isinstance(ours, dict):
        if not isinstance(theirs, dict):
            return [path]
        return [
            x for k, v in ours.items() for x in (lost(v, theirs[k], f"{path}.{k}") if k in theirs else [f"{path}.{k}"])
        ]
    if isinstance(ours, list):
        if not isinstance(theirs, list) or len(ours) != len(theirs):
            return [path]
        return [x for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) for x in lost(a, b, f"{path}[{i}]")]
    return [] if ours == theirs else [path]


def round_trip(board):
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(board))))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_the_schema_knows_everything(path):
    board = json.loads(path.read_text())
    assert lost(board, round_trip(board)) == []


@pytest.mark.parametrize(
    "where, name",
    [((), "titel"), (("panels", 1), "titel"), (("panels", 1, "targets", 0), "expression"), (("panels", 1, "fieldConfig", "defaults"), "units"),
     (("panels", 1, "fieldConfig", "defaults", "custom"), "fillOpacitty"), (("panels", 1, "options"), "legendd")],
)  # fmt: skip
def test_that_check_can_fail(where, name):
    board = json.loads(DASHBOARDS[0].read_text())
    at = board
    for step in where:
        at = at[step]
    at[name] = 1
    assert [x.rpartition(".")[2] for x in lost(board, round_trip(board))] == [name]
