"""Write Grafana's dashboards from ``boards.py``: ``python deploy/grafana/build.py`` (``--check``: exit 1 when a file is not current)."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from boards import ANNOTATIONS, DASHBOARDS, Annotation, Dashboard, Panel, Variable

FOLDER = Path(__file__).resolve().parent / "dashboards"
SOURCE, WIDTH = {"type": "prometheus", "uid": "${datasource}"}, 24


def thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    return {"mode": "absolute", "steps": steps}


def render_panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(65 + i), "datasource": SOURCE, "expr": expr, "legendFormat": legend or "__auto", "range": True}
        for i, (expr, legend) in enumerate(panel.queries)
    ]
    found: dict[str, Any] = {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.text, "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height}, "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "thresholds": thresholds(panel)}, "overrides": []},
    }  # fmt: skip
    if panel.names:
        words = {str(value): {"text": text, "index": i} for i, (value, text) in enumerate(panel.names)}
        found["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": words}]
    if panel.kind == "stat":
        found["options"] = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
        }
    else:
        found["fieldConfig"]["defaults"]["custom"] = {"fillOpacity": 8, "showPoints": "never", "spanNulls": True}
        found["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return found


DATA_SOURCE: dict[str, Any] = {
    "type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus", "regex": "", "hide": 0, "skipUrlSync": False, "multi": False,
    "includeAll": False, "options": [], "refresh": 1, "current": {"selected": False, "text": "Prometheus", "value": "prometheus"},
}  # fmt: skip


def render_variable(variable: Variable) -> dict[str, Any]:
    return {
        "type": "query", "name": variable.name, "label": variable.label, "datasource": SOURCE, "query": variable.query, "regex": "",
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*", "hide": 0, "skipUrlSync": False, "options": [],
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def render_annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name, "datasource": SOURCE, "enable": True, "hide": False, "iconColor": annotation.colour, "expr": annotation.query,
    }  # fmt: skip


def render(dashboard: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        at = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []})  # fmt: skip
        y += 1
        x = height = 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            panels.append(render_panel(panel, len(panels) + 1, x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    others = {
        "type": "dashboards", "title": "Slipstream", "tags": ["slipstream"], "asDropdown": True, "includeVars": False, "keepTime": True,
        "icon": "external link", "targetBlank": False, "tooltip": "", "url": "",
    }  # fmt: skip
    return {
        "uid": f"slipstream-{dashboard.name}", "title": dashboard.title, "tags": ["slipstream"], "schemaVersion": 39, "version": 1, "editable": True,
        "timezone": "browser", "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "templating": {"list": [DATA_SOURCE, *(render_variable(v) for v in dashboard.variables)]},
        "annotations": {"list": [render_annotation(a) for a in ANNOTATIONS]},
        "links": [others], "panels": panels,
    }  # fmt: skip


def files() -> dict[Path, str]:
    return {FOLDER / f"{d.name}.json": json.dumps(render(d), indent=1) + "\n" for d in DASHBOARDS}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write Grafana's dashboards.")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        if not check:
            path.write_text(text)
        print(f"{'stale' if check else 'written'}: {path.name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
