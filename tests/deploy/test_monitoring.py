"""The kustomize component for the Prometheus operator."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess

import pytest
import yaml
from tests.support.rendering import DEPLOY, kustomize

FOLDER = DEPLOY / "kubernetes"
COMPONENT = FOLDER / "components" / "monitoring"


def documents(name):
    return list(yaml.safe_load_all((COMPONENT / name).read_text()))


def test_the_rules_are_those_of_the_alerts_file():
    spec = importlib.util.spec_from_file_location("build", COMPONENT / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (COMPONENT / "rules.yaml").read_text() == module.text(), (
        "run deploy/kubernetes/components/monitoring/build.py"
    )
    (rule,) = documents("rules.yaml")
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert rule["kind"] == "PrometheusRule" and rule["spec"] == alerts


def test_each_monitor_finds_its_target_under_the_job_that_the_alerts_name():
    objects = kustomize(FOLDER / "overlays" / "production")
    wanted = {
        c["job_name"] for c in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    }
    jobs = set()
    for monitor in documents("monitors.yaml"):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        if monitor["kind"] == "ServiceMonitor":
            (endpoint,) = monitor["spec"]["endpoints"]
            hit = [o for o in objects if o["kind"] == "Service" and labels <= o["metadata"]["labels"].items()]
            ports = {p["name"] for o in hit for p in o["spec"]["ports"]}
        else:
            (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
            pods = [o["spec"]["template"] for o in objects if "template" in o.get("spec", {})]
            hit = [p for p in pods if labels <= p["metadata"]["labels"].items()]
            ports = {p["name"] for pod in hit for c in pod["spec"]["containers"] for p in c.get("ports", [])}
        assert len(hit) == 1 and endpoint["port"] in ports and endpoint["path"] == "/metrics"
        (relabeling,) = endpoint["relabelings"]
        assert relabeling["targetLabel"] == "job"
        jobs.add(relabeling["replacement"])
    assert jobs == wanted - {"prometheus"}
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert set(re.findall(r'job="([^"]+)"', alerts)) <= jobs


@pytest.mark.deploy
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
def test_kustomize_takes_it_into_an_overlay(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "cpu" / "kustomization.yaml"
    overlay.write_text(overlay.read_text() + "components: [../../components/monitoring]\n")
    (overlay.parent / "secrets").mkdir(exist_ok=True)
    for name in re.findall(r"secrets/([\w.-]+)", overlay.read_text()):
        (overlay.parent / "secrets" / name).write_text("of a test")
    argv = ["kubectl", "kustomize", str(overlay.parent)]
    made = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert made.returncode == 0, made.stderr
    objects = list(yaml.safe_load_all(made.stdout))
    kinds = [o["kind"] for o in objects]
    assert (kinds.count("ServiceMonitor"), kinds.count("PodMonitor"), kinds.count("PrometheusRule")) == (2, 2, 1)
    assert {o["metadata"].get("namespace") for o in objects if o["kind"] == "PrometheusRule"} == {"slipstream"}
