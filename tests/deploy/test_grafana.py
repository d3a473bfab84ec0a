"""The dashboards against Grafana's own schema, as its SDK has it: what the SDK does not know is lost in a round trip."""

from __future__ import annotations

import copy
import importlib.util
import json
import re
from pathlib import Path

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


def boards():
    return [(path.stem, json.loads(path.read_text())) for path in DASHBOARDS]


def test_each_board_lets_the_data_source_be_chosen():
    for name, board in boards():
        source = board["templating"]["list"][0]
        assert (source["type"], source["query"]) == ("datasource", "prometheus"), name
        asking = [
            *board["annotations"]["list"],
            *board["templating"]["list"][1:],
            *(p for p in board["panels"] if p["type"] != "row"),
        ]
        asking += [t for p in board["panels"] for t in p.get("targets", ())]
        assert {x["datasource"]["uid"] for x in asking} == {"${datasource}"}, name


def test_each_variable_is_used_and_each_that_is_used_is_there():
    for name, board in boards():
        there = {v["name"] for v in board["templating"]["list"]}
        texts = [t["expr"] for p in board["panels"] for t in p.get("targets", ())] + [
            v["query"] for v in board["templating"]["list"]
        ]
        used = {m for text in texts for m in re.findall(r"\$(?!__)(\w+)", text)} | {"datasource"}
        assert used == there, name
        for variable in board["templating"]["list"][1:]:
            assert variable["includeAll"] and variable["multi"] and variable["allValue"] == ".*", name
    every = {v["name"] for _, board in boards() for v in board["templating"]["list"]}
    assert {"datasource", "adapter", "model", "tag", "value"} <= every


def test_swaps_and_rollbacks_stand_on_every_board():
    for name, board in boards():
        marks = {a["name"]: a["expr"] for a in board["annotations"]["list"] if a["enable"]}
        assert "slipstream_adapter_live_version" in marks["Swaps"], name
        assert "slipstream_adapter_rollbacks_total" in marks["Rollbacks"], name


def test_series_by_adapter_and_tag():
    board = dict(boards())["proxy"]
    exprs = [t["expr"] for p in board["panels"] for t in p.get("targets", ())]
    assert any("by (tag, value, adapter)" in e and 'adapter=~"$adapter", tag=~"$tag"' in e for e in exprs)


def test_judge_panels_count_functions_too():
    board = dict(boards())["judge"]
    for metric in ("calls_total", "seconds_bucket"):
        both = [
            p
            for p in board["panels"]
            if any(f"slipstream_judge_function_{metric}" in t["expr"] for t in p.get("targets", ()))
        ]
        assert len(both) == 1 and len(both[0]["targets"]) > 1, metric


def test_vllms_metrics_are_its_own():
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = (Path(spec.origin).parent / "v1" / "metrics" / "loggers.py").read_text()
    exprs = [t["expr"] for p in dict(boards())["engine"]["panels"] for t in p.get("targets", ())]
    used = {m for e in exprs for m in re.findall(r"vllm:\w+", e)}
    assert len(used) >= 10
    for metric in used:
        name = re.sub(r"_(total|bucket|sum|count)$", "", metric)
        assert f'"{name}"' in source or f'"{metric}"' in source, metric
