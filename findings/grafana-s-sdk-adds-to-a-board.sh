#!/bin/sh
# Guess: a dashboard that Grafana's SDK reads and writes again is the same, or what it does not know is refused.
# Is: once its plugins are registered, a panel without a tooltip comes back with one that sorts its rows, and a misspelt
# option is gone; before that, options stay as they are. Neither says a word.
# Seen in the SDK for Grafana 11.1. The one that pip holds for the newest is for 10.1: its version has a higher epoch.
# Here: tests/deploy/test_grafana.py registers them, and compares only what a board of ours has.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'grafana-foundation-sdk==1769699681!11.1.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import json
import sys

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

legend = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
panel = {"type": "timeseries", "title": "Calls", "options": {"legend": legend, "tooltipp": {"mode": "multi"}}}


def options():
    board = Dashboard.from_json({"title": "Calls", "schemaVersion": 39, "panels": [panel]})
    return json.loads(JSONEncoder().encode(board))["panels"][0]["options"]


print("versions: grafana-foundation-sdk", importlib.metadata.version("grafana-foundation-sdk"))
print("behaviour: reading and writing a panel gives it a sorted tooltip that it lacked, and drops a misspelt option.")
before = options()
plugins.register_default_plugins()
after = options()
print("seen: before the plugins are registered:", before)
print("seen: after:", after)
same = before == panel["options"] and after == {"legend": legend, "tooltip": {"mode": "single", "sort": "asc"}}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
