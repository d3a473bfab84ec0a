"""The metrics' page, the dashboards and the alerts speak of metrics that the code registers."""

from __future__ import annotations

import functools
import json
import re

import pytest
import yaml
from tests.support import ROOT
from tests.support.rendering import DEPLOY, load_script

docs = load_script(ROOT / "scripts" / "metrics_docs.py")
build = load_script(DEPLOY / "grafana" / "build.py")
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
ALERTS = [r for g in RULES["groups"] for r in g["rules"] if "alert" in r]
RECORDS = {r["record"]: r["expr"] for g in RULES["groups"] for r in g["rules"] if "record" in r}
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
BUILT_IN = {"le", "job", "instance"}
VLLM = {"model_name", "finished_reason", "running_lora_adapters"}
"""Labels of vLLM's metrics that the dashboards use."""


@functools.cache
def families():
    return {f.name: f for part in docs.parts() for f in part.families}


def queries():
    found = [(r.get("alert") or r["record"], r["expr"]) for g in RULES["groups"] for r in g["rules"]]
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", t["expr"]) for t in panel.get("targets", [])]
    return found


def strange(expr: str) -> set[str]:
    """Metrics and labels of a query that the code does not have."""
    series = {s: f for f in families().values() for s in f.series}
    bare = re.sub(r'"[^"]*"', '""', expr)
    used = set(re.findall(r"\bslipstream[\w:]*", bare))
    wrong = used - set(series) - set(RECORDS)
    labels = {x.strip() for group in re.findall(r"\bby \(([^)]*)\)", bare) for x in group.split(",")}
    labels |= set(re.findall(r"[{,]\s*(\w+)\s*(?:=|!=|=~|!~)\s*\"", bare))
    labels -= VLLM if "vllm:" in expr else set()
    return wrong | (labels - BUILT_IN - {x for s in used & set(series) for x in series[s].labels})


def test_the_page_is_current():
    assert docs.PAGE.read_text() == docs.page(), "run `python scripts/metrics_docs.py`"


def test_names_follow_prometheus():
    for f in families().values():
        assert re.fullmatch(r"(slipstream|gen_ai)_[a-z0-9_]+", f.name) and f.text.strip(), f
        assert (f.kind == "counter") == f.name.endswith("_total"), f
        assert not re.search(r"_(ms|milliseconds|minutes|hours|kb|mb|kib|mib|gib|percent)(_|$)", f.name), (
            f"{f.name}: base units"
        )
        assert "instance" not in f.labels and "episode" not in f.labels and "call" not in f.labels, (
            f"{f.name}: {f.labels} grows without bound"
        )


def test_each_name_belongs_to_one_part():
    names = [f.name for part in docs.parts() for f in part.families]
    assert len(names) == len(set(names))


def test_dashboards_are_current():
    for path, text in build.files().items():
        assert path.read_text() == text, "run `python deploy/grafana/build.py`"
    assert {p.stem for p in DASHBOARDS} == {"overview", "proxy", "judge", "trainer", "adapters", "engine"}


@pytest.mark.parametrize(
    "where, expr", queries(), ids=lambda x: x if ": " in str(x) or str(x).startswith("Slip") else ""
)
def test_queries_use_what_there_is(where, expr):
    assert not strange(expr), where


def test_that_check_can_fail():
    assert strange("sum(slipstream_no_such_total)") == {"slipstream_no_such_total"}
    assert strange("sum by (colour) (rate(slipstream_calls_total[5m]))") == {"colour"}
    assert strange('slipstream_calls_total{colour="red"}') == {"colour"}
    assert strange('histogram_quantile(0.5, sum by (le) (rate(slipstream_call_seconds_bucket{job="x"}[5m])))') == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda p: p.stem)
def test_dashboards_are_well_formed(path):
    board = json.loads(path.read_text())
    assert board["uid"] == f"slipstream-{path.stem}" and board["title"] and board["schemaVersion"] >= 30
    ids = [p["id"] for p in board["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert 0 <= at["x"] and at["x"] + at["w"] <= 24 and at["h"] > 0, panel["title"]
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells, f"{panel['title']} overlaps"
        cells |= mine
        if panel["type"] == "row":
            continue
        assert panel["type"] in {"timeseries", "stat"} and panel["title"]
        refs = [t["refId"] for t in panel["targets"]]
        assert refs and len(refs) == len(set(refs))
        assert all(t["datasource"]["uid"] == "${datasource}" and t["expr"] for t in panel["targets"])


def test_the_data_source_and_the_folder_are_provisioned():
    folder = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (
        source["uid"] == build.DATA_SOURCE["current"]["value"]
        and source["type"] == "prometheus"
        and source["url"] == "http://prometheus:9090"
    )
    (provider,) = yaml.safe_load((folder / "dashboards" / "slipstream.yml").read_text())["providers"]
    compose = (DEPLOY / "compose.yaml").read_text()
    assert (
        f"./grafana/dashboards:{provider['options']['path']}:ro" in compose
        and "./grafana/provisioning:/etc/grafana/provisioning:ro" in compose
    )
    assert f"{provider['options']['path']}/overview.json" in compose


def test_the_page_names_the_jobs_that_the_alerts_need():
    """Who follows the page scrapes under the names that an alert asks for, as deploy/ does."""
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    jobs = {c["job_name"] for c in scraped} - {"prometheus"}
    (line,) = re.findall(r"Let Prometheus scrape .*", (ROOT / "docs" / "operations.md").read_text())
    asked = {name for r in ALERTS for name in re.findall(r'job="([^"]+)"', r["expr"])}
    assert asked and asked <= jobs <= set(re.findall(r"`([\w-]+)`", line))


def test_panels_mean_the_same_with_many_proxies():
    """Every selector stands inside an aggregation, so that `instance` is gone."""
    for where, expr in queries():
        if where in RECORDS or where.startswith("Slipstream"):
            continue
        assert re.match(r"\(?(sum|max|min|avg|histogram_quantile)\b", expr), f"{where}: {expr}"


def test_each_alert_is_explained_and_tested():
    runbook = (ROOT / "docs" / "operations.md").read_text()
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yml").read_text())["tests"]
    cases = [c for t in tests for c in t["alert_rule_test"]]
    fired = {c["alertname"] for c in cases if c.get("exp_alerts")}
    quiet = {c["alertname"] for c in cases if not c.get("exp_alerts")}
    for rule in ALERTS:
        name = rule["alert"]
        assert f"### {name}\n" in runbook, f"{name} is not in docs/operations.md"
        assert name in fired & quiet, f"{name} has no test in which it fires, or none in which it does not"
        assert rule["labels"]["severity"] in {"info", "warning", "critical"} and rule["annotations"]["summary"]
    assert set(re.findall(r"^### (Slipstream\w+)$", runbook, re.M)) == {r["alert"] for r in ALERTS}
