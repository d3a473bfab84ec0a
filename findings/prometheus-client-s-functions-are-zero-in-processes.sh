#!/bin/sh
# Guess: a Gauge with set_function gives the function's value at each scrape, or raises where it cannot.
# Is: where PROMETHEUS_MULTIPROC_DIR is set, as vLLM sets it with several API servers, the gauge is scraped as 0 and the
# function is never called; nothing raises or warns. A gauge that was set gives its value, once for each process.
# Seen in 0.26.0.
# Here: sdk/slipstream/engines/vllm/engine.py reads such metrics; docs/operations.md
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'prometheus-client==0.26.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import os
import subprocess
import sys

os.environ["PROMETHEUS_MULTIPROC_DIR"] = sys.argv[1]
process = """
import prometheus_client

prometheus_client.Gauge("asked", "By a function.").set_function(lambda: 7)
prometheus_client.Gauge("given", "By set.").set(7)
"""
done = subprocess.run([sys.executable, "-S", "-c", process], check=True, capture_output=True, text=True)
from prometheus_client import CollectorRegistry, generate_latest, multiprocess

registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
seen = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
print("versions: prometheus-client", importlib.metadata.version("prometheus-client"))
print("behaviour: a gauge with set_function is scraped as 0 where several processes share a folder, without a warning.")
print(f"seen: set_function of 7: {seen['asked']}; set(7): {seen['given']}; said: {done.stderr!r}")
same = seen == {"asked": "0.0", "given": "7.0"} and not done.stderr

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
