#!/bin/sh
# Guess: a metric has one name, so vllm:num_requests_running is found by it whoever scrapes.
# Is: for a scraper that asks for OpenMetrics 1.0 and does not add escaping=allow-utf-8, prometheus-client writes the
# samples as vllm_num_requests_running, below HELP and TYPE of vllm:num_requests_running. The text format keeps the colon.
# Seen in 0.26.0, which vLLM 0.32 writes its metrics with.
# Here: sdk/slipstream/engines/vllm/engine.py reads the text format; deploy/grafana/boards.py asks for names with a colon.
# Source: https://github.com/prometheus/client_python/pull/1180
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'prometheus-client==0.26.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys
import threading
import urllib.request
import wsgiref.simple_server

import prometheus_client

registry = prometheus_client.CollectorRegistry()
prometheus_client.Gauge("vllm:num_requests_running", "Running.", registry=registry).set(3)


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *_):
        pass


app = prometheus_client.make_wsgi_app(registry)
server = wsgiref.simple_server.make_server("127.0.0.1", 0, app, handler_class=Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("versions: prometheus-client", importlib.metadata.version("prometheus-client"))
print("behaviour: a scraper that asks for OpenMetrics 1.0 gets vllm_num_requests_running for vllm:num_requests_running.")
seen = []
openmetrics = "application/openmetrics-text;version=1.0.0"
for accept in ("text/plain;version=0.0.4", openmetrics, openmetrics + ";escaping=allow-utf-8"):
    asked = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/", headers={"accept": accept})
    lines = urllib.request.urlopen(asked).read().decode().splitlines()
    seen.append([lines[1].split()[2], lines[2].split()[0]])
    print(f"seen: {accept}: TYPE of {seen[-1][0]}, sample {seen[-1][1]}")
colon, underscore = "vllm:num_requests_running", "vllm_num_requests_running"
same = seen == [[colon, colon], [colon, underscore], [colon, colon]]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
