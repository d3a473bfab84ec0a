#!/bin/sh
# Guess: a router in front of vLLM hands a 429 or 503 on, or tries one other worker.
# Is: vllm-router sends each failing call (429, 500, 503; not 400) five times within half a second, and does not wait
# for Retry-After. openai's SDK repeats that twice: one call of an agent is fifteen calls of the workers.
# Seen in vllm-router 0.1.17 with openai 3.57, before two local servers.
# Here: docs/faq.md, retries: each one is a call of its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'vllm-router==0.1.17' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import openai


class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.say(200, {"data": [{"id": "m"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        times.append(time.monotonic())
        self.say(status, {"error": {"message": "busy", "code": status}})

    def say(self, code, data):
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.send_header("retry-after", "1")
        self.end_headers()
        self.wfile.write(body)


def worker():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return str(taken.getsockname()[1])


def requests(retries):
    times.clear()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=retries)
    try:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    except openai.APIStatusError as e:
        return e.status_code, len(times)


times = []
status = 200
port = free_port()
argv = [sys.executable, "-S", "-m", "vllm_router.launch_router", "--worker-urls", worker(), worker()]
argv += ["--policy", "round_robin", "--host", "127.0.0.1", "--port", port, "--prometheus-port", free_port()]
router = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    for _ in range(300):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            break
        except OSError:
            time.sleep(1)
    names = ("vllm-router", "openai")
    print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
    print("behaviour: one call that the workers refuse with 429 becomes five by vllm-router, and fifteen with openai's SDK.")
    seen = {}
    for status, retries in ((429, 0), (503, 0), (400, 0), (429, 2)):
        seen[status, retries] = requests(retries)
        print(f"seen: {status}, max_retries={retries}: {seen[status, retries][1]} requests to the workers")
finally:
    router.terminate()
    router.wait()
same = seen == {(429, 0): (429, 5), (503, 0): (503, 5), (400, 0): (400, 1), (429, 2): (429, 15)}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
