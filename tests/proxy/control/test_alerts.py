"""Alerts fire in their situation, as the control plane's own metrics tell it, and Prometheus' own tool judges."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.support.plane import until
from tests.support.rendering import DEPLOY

from slipstream.operate.run.sidecars import SidecarFile
from slipstream.operate.run.supervisor import Child
from slipstream_proxy.control.observe import boards as activity
from slipstream_proxy.control.status import status as metrics_scrape

PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here (Debian: apt install prometheus)")
RULES = DEPLOY / "prometheus" / "alerts.yml"
ALERTS = [r["alert"] for g in yaml.safe_load(RULES.read_text())["groups"] for r in g["rules"] if "alert" in r]
FEW = {"groups": {"size": 2}, "trainer": {"min_groups": 1}}


@pytest.fixture(autouse=True)
def _look(monkeypatch):
    monkeypatch.setattr(metrics_scrape, "LOOK_EVERY", 0.0)


async def scrape(plane) -> dict[str, float]:
    """Series → value, as a Prometheus gets them."""
    for _ in range(2):  # the second one has what the first one looked for
        text = await (await plane.client.get("/internal/metrics")).text()
        await plane.deps.ask(plane.deps.store.statistics.counts, plane.deps.now())
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in s.labels.items())
            found[f"{s.name}{{{labels}}}"] = s.value
    return found


def firing(tmp_path, before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Alerts 25 minutes after the metrics changed. They were as before for 80 minutes."""
    series = [
        {"series": name, "values": f"{before.get(name, 0.0)}x79 {value}x60"}
        for name, value in after.items()
        if "_bucket" not in name and "_created" not in name
    ]
    wanted = [{"eval_time": "105m", "alertname": name, "exp_alerts": []} for name in ALERTS]
    test = {"interval": "1m", "input_series": series, "alert_rule_test": wanted}
    file = tmp_path / "test.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    run = subprocess.run([str(PROMTOOL), "test", "rules", str(file)], check=False, capture_output=True, text=True)
    said = run.stdout + run.stderr
    assert (run.returncode == 0) is ("FAILED" not in said), said
    return {name for name in ALERTS if f"alertname: {name}," in said}


async def make_ready(plane) -> None:
    for n in range(2):
        await plane.call(f"e{n}", task="t", done=True)
        await plane.seen(f"e{n}")
        assert (await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": float(n)}))[0] == 200

    async def ready():
        return (await scrape(plane)).get('slipstream_funnel{cause="ready",stage="ready"}', 0.0) > 0.0

    await until(ready)


async def test_a_paused_trainer_is_not_stalled(make_plane, tmp_path):
    plane = await make_plane(**FEW)
    before = await scrape(plane)
    await make_ready(plane)
    assert "SlipstreamTrainerStalled" in firing(tmp_path, before, await scrape(plane))
    assert (await plane.ask("POST", "/training/pause", {"reason": "new rewards"}))[0] == 200
    assert "SlipstreamTrainerStalled" not in firing(tmp_path, before, await scrape(plane))
    assert (await plane.ask("POST", "/training/resume", {}))[0] == 200
    assert "SlipstreamTrainerStalled" in firing(tmp_path, before, await scrape(plane))


async def test_groups_that_teach_nothing_stall_no_trainer(make_plane, tmp_path):
    plane = await make_plane(**FEW)
    before = await scrape(plane)
    for n in range(20):
        await plane.call(f"e{n}", task=f"t{n // 2}", done=True)
        await plane.seen(f"e{n}")
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": 1.0})

    async def complete():
        return (await scrape(plane)).get('slipstream_groups{state="ready"}') == 10.0

    await until(complete)
    assert "SlipstreamTrainerStalled" not in firing(tmp_path, before, await scrape(plane))


async def test_what_the_page_knows_has_an_alert(plane, tmp_path, monkeypatch):
    SidecarFile(plane.config.root)([Child("trainer", [sys.executable], essential=False)])
    before = await scrape(plane)
    assert firing(tmp_path, before, before) == set()
    monkeypatch.setattr(activity, "SILENCE", 0.0)
    for n in range(5):
        data = {"batch": f"b{n}", "reason": "max_ratio"}
        assert (await plane.ask("POST", "/training/events", {"kind": "skipped", "data": data}))[0] == 200
    plane.deps.swapper.moves["slot"] = 12
    plane.deps.lifecycle.rollbacks += 1
    plane.engine.up = False
    await until(lambda: not plane.deps.engines.engines[0].ok)
    assert firing(tmp_path, before, await scrape(plane)) == {
        "SlipstreamSidecarDown", "SlipstreamStepsSkipped", "SlipstreamEpisodesMoved", "SlipstreamEngineDown",
    }  # fmt: skip
