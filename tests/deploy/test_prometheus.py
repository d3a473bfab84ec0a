"""The rules and the configuration, by Prometheus's own tool."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from tests.support.rendering import DEPLOY

FOLDER = DEPLOY / "prometheus"
PROMTOOL = shutil.which("promtool")
pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here (Debian: apt install prometheus)"),
]


def promtool(*args, cwd=FOLDER):
    return subprocess.run([str(PROMTOOL), *args], check=False, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "args",
    [("check", "config", "prometheus.yml"), ("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")],
    ids=" ".join,
)
def test_promtool_is_content(args):
    run = promtool(*args)
    assert run.returncode == 0, run.stdout + run.stderr


def test_that_it_can_fail(tmp_path):
    for name in ("alerts.yml", "alerts_test.yml"):
        shutil.copy(FOLDER / name, tmp_path / name)
    rules = (tmp_path / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(
        rules.replace("slipstream_capture_lost_total[10m])) > 0", "slipstream_capture_lost_total[10m])) > 1000")
    )
    assert (tmp_path / "alerts.yml").read_text() != rules
    run = promtool("test", "rules", "alerts_test.yml", cwd=tmp_path)
    assert run.returncode != 0 and "SlipstreamCaptureLost" in run.stdout + run.stderr
