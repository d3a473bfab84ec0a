"""Alerts fire in their situation, as the control plane's own metrics tell it, and Prometheus' own tool judges."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.support.plane import register, until
from tests.support.rendering import DEPLOY

from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child
from slipstream_judge.model.metrics import JudgeMetrics
from slipstream_proxy.control.observe import activity
from slipstream_proxy.control.status import status as metrics_scrape
from slipstream_proxy.data.observe.losses import LossCount
from slipstream_proxy.data.observe.metrics import CAPTURE_LOST_METRIC, WorkerMetrics, gather

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
    return series_in(text)


def series_in(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for s in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in s.labels.items())
            found[f"{s.name}{{{labels}}}"] = s.value
    return found


def firing(
    tmp_path,
    before: dict[str, float],
    after: dict[str, float],
    first: dict[str, float] | None = None,
    *,
    steadily: bool = False,
) -> set[str]:
    """Alerts within 25 minutes after the metrics changed. They were as ``before`` for an hour, and as ``first`` for 20
    minutes before that. ``steadily``: they change by as much in each minute.
    """
    first = before if first is None else first
    grows = {name: value - before.get(name, 0.0) if steadily else 0.0 for name, value in after.items()}
    series = [
        {"series": name, "values": f"{first.get(name, 0.0)}x19 {before.get(name, 0.0)}x59 {value}+{grows[name]}x60"}
        for name, value in after.items()
        if "_bucket" not in name and "_created" not in name
    ]
    times = ("82m", "86m", "90m", "105m")
    wanted = [{"eval_time": at, "alertname": name, "exp_alerts": []} for name in ALERTS for at in times]
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
    monkeypatch.setattr(activity, "SIDECAR_TIMEOUT_S", 0.0)
    for n in range(5):
        data = {"batch": f"b{n}", "reason": "max_ratio"}
        assert (await plane.ask("POST", "/training/events", {"kind": "skipped", "data": data}))[0] == 200
    plane.deps.rollout.swapper.moves["slot"] = 12
    plane.deps.rollout.lifecycle.rollbacks += 1
    plane.engine.up = False
    await until(lambda: not plane.deps.engines.engines[0].ok)
    assert firing(tmp_path, before, await scrape(plane)) == {
        "SlipstreamSidecarDown", "SlipstreamStepsSkipped", "SlipstreamEpisodesMoved", "SlipstreamEngineDown", "SlipstreamRolledBack",
    }  # fmt: skip


async def test_an_engine_that_computes_otherwise_and_takes_no_adapters(plane, tmp_path):
    before = await scrape(plane)
    assert (await plane.ask("POST", "/training/events", {"kind": "step", "data": {"engine_gap": 0.3}}))[0] == 200
    plane.engine.up = False
    await until(lambda: not plane.deps.engines.engines[0].healthy)
    plane.engine.restart("no routes")
    plane.engine.up = True
    await until(lambda: plane.deps.engines.engines[0].outage is not None)
    assert firing(tmp_path, before, await scrape(plane)) == {"SlipstreamEngineGap", "SlipstreamEngineTakesNoAdapters"}


async def test_a_freeze_and_a_kept_group_wait_for_a_person(make_plane, tmp_path):
    plane = await make_plane(gate={"holdout": 0.5, "group_verdict": "group"})
    await plane.call("a", tags={"customer": "acme"}, done=True)
    await plane.seen("a")
    assert (await register(plane, 1))[0] < 300
    before = await scrape(plane)
    body = {"group": "tag.customer=acme", "reason": "fails for acme"}
    assert (await plane.ask("POST", "/adapters/tiny@1/rollback", body))[0] == 200
    assert (await plane.ask("POST", "/adapters/tiny@1/freeze", {"reason": "not yet"}))[0] == 200
    frozen = await scrape(plane)
    assert firing(tmp_path, before, frozen) == {
        "SlipstreamGateKeepsGroups", "SlipstreamGateFrozen", "SlipstreamRolledBack",
    }  # fmt: skip
    assert (await plane.ask("POST", "/adapters/tiny@1/unfreeze", {}))[0] == 200
    assert firing(tmp_path, frozen, await scrape(plane)) == {"SlipstreamGateKeepsGroups"}


async def test_a_store_that_takes_nothing_while_the_spool_grows(plane, tmp_path, monkeypatch):
    before = await scrape(plane)
    ingester = plane.deps.ingester

    def gone(*_: object) -> None:
        raise OSError("the disk is gone")

    ingester.stats.skipped += 1
    monkeypatch.setattr(ingester, "_commit", gone)
    await plane.call("e1", at=plane.deps.now() - 100)
    await until(lambda: ingester.stats.broken is not None)
    assert firing(tmp_path, before, await scrape(plane)) == {
        "SlipstreamSpoolGrowing", "SlipstreamStoreDown", "SlipstreamRecordsSkipped",
    }  # fmt: skip


async def test_a_judge_that_gives_groups_up(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2}, judge={"model": "m", "max_attempts": 1})
    before = await scrape(plane)
    for n in range(2):
        await plane.call(f"e{n}", task="t", done=True)

    async def leased():
        status, body = await plane.ask("POST", "/groups/lease", {"worker": "j"})
        return body if status == 200 else None

    lease = await until(leased)
    failed = {"lease": lease["lease"], "failed": "refused"}
    assert (await plane.ask("POST", f"/groups/{lease['groups'][0]['id']}/scores", failed))[0] == 200
    assert firing(tmp_path, before, await scrape(plane)) == {"SlipstreamJudgeParked"}


def test_a_judge_that_is_behind_waits_and_costs(tmp_path):
    metrics = JudgeMetrics()
    before = series_in(generate_latest(metrics.registry).decode())
    metrics.queue.set(33)
    metrics.lag.set(301)
    metrics.waiting.labels("dollars_per_day").set(1)
    metrics.cost.inc(51)
    after = series_in(generate_latest(metrics.registry).decode())
    assert firing(tmp_path, before, after) == {
        "SlipstreamJudgeBehind", "SlipstreamJudgeBudget", "SlipstreamJudgeCost",
    }  # fmt: skip


def test_calls_that_fail_or_are_lost_and_a_proxy_that_is_away(tmp_path):
    def told(failed: int, lost: int) -> dict[str, float]:
        metrics, losses = WorkerMetrics(), LossCount(tmp_path, 0)
        for status, count in ((2, 100), (5, failed)):
            for _ in range(count):
                metrics.count("chat", "ok" if status == 2 else "error", status, "tiny", None)
        if lost:
            losses.add(lost, OSError(errno.ENOSPC, "full"))
        metrics.set(CAPTURE_LOST_METRIC, losses.calls)
        losses.close()
        return series_in(gather(tmp_path / "none", metrics, "data0.json"))

    found = firing(tmp_path, told(0, 0), told(20, 3), steadily=True)
    assert found == {"SlipstreamCallsFailing", "SlipstreamCaptureLost"}
    up = 'up{job="slipstream-proxy"}'  # Prometheus' own
    assert firing(tmp_path, {up: 1.0}, {up: 0.0}) == {"SlipstreamProxyDown"}


@pytest.mark.slow
async def test_rewards_that_fall_after_a_new_version(make_plane, tmp_path):
    plane = await make_plane()

    async def rewarded(adapter: str, value: float) -> dict[str, float]:
        runs = {f"{adapter.replace('@', 'v')}-{n}": value + 0.1 * (n % 2) for n in range(24)}
        for name in runs:
            await plane.call(name, task=name, adapter=adapter, done=True)
        await plane.seen(name)
        for name, reward in runs.items():
            assert (await plane.ask("POST", f"/episodes/{name}/rewards", {"value": reward}))[0] == 200

        async def counted():
            found = await scrape(plane)
            name = f'slipstream_rewarded_episodes{{adapter="{adapter}",arm="live",split="train"}}'
            return found if found.get(name) == 24.0 else None

        return await until(counted)

    first = await scrape(plane)
    good = await rewarded("tiny", 0.8)
    assert (await register(plane, 1))[0] < 300
    assert (await plane.ask("POST", "/adapters/tiny@1/promote", {"reason": "by hand"}))[0] == 200
    bad = await rewarded("tiny@1", 0.1)
    assert "SlipstreamRewardFallingAfterSwap" in firing(tmp_path, good, bad, first)


def test_every_alert_fires_in_a_test_here():
    here = Path(__file__).read_text()
    assert [name for name in ALERTS if f'"{name}"' not in here] == []
