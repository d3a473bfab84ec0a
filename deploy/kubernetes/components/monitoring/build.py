"""Write ``rules.yaml``, a PrometheusRule with the rules of ``deploy/prometheus/alerts.yml``."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
RULES = HERE.parents[2] / "prometheus" / "alerts.yml"
HEAD = """# Written by build.py from deploy/prometheus/alerts.yml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: slipstream
  labels: { app.kubernetes.io/name: slipstream }
spec:
"""


def text() -> str:
    """The file's content: the rules two columns further in."""
    lines = [line for line in RULES.read_text().splitlines() if not line.startswith("#")]
    return HEAD + "".join(f"  {line}".rstrip() + "\n" for line in lines)


if __name__ == "__main__":
    (HERE / "rules.yaml").write_text(text())
