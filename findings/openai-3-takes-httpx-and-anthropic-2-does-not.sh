#!/bin/sh
# Guess: of SDKs that moved from httpx to httpx2 each refuses an httpx.Client and an httpx.Timeout, or each takes them.
# Is: openai 3 takes them and works with them, retries and its own errors included, but refuses an httpx.URL as
# base_url. anthropic 2 raises a TypeError for client and timeout. A helper that makes clients of both breaks at one.
# Seen in openai 3.57.0 and anthropic 2.14.0 with httpx 0.28.1 and httpx2 2.16.2 (November 2026).
# Here: docs/frameworks.md; plugins/models/slipstream_models/destinations.py catches errors of either.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai==3.57.0' 'anthropic==2.14.0' 'httpx==0.28.1' 'httpx2==2.16.2'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import http.server
import json
import sys
import threading

import anthropic
import httpx
import openai


def chat(message, finish="stop"):
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    return 200, "application/json", json.dumps(reply).encode()


def answer(_):
    return chat({"content": "hello"})


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        status, kind, body = answer(asked[-1])
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


asked = []
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"


def outcome(make):
    try:
        client = make()
        if isinstance(client, openai.OpenAI):
            said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            return said.choices[0].message.content
        return "taken"
    except TypeError:
        return "TypeError"


makers = {"openai": openai.OpenAI, "anthropic": anthropic.Anthropic}
given = {"http_client": httpx.Client(), "timeout": httpx.Timeout(5.0), "base_url": httpx.URL(url + "/v1")}
names = ("openai", "anthropic", "httpx", "httpx2")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: openai 3 takes httpx's Client and Timeout but not its URL; anthropic 2 refuses Client and Timeout.")
seen = {}
for name, maker in makers.items():
    for what, value in given.items():
        settings = {"base_url": url + "/v1", "api_key": "none", what: value}
        seen[name, what] = outcome(lambda: maker(**settings))
        print(f"seen: {name}: {what}={type(value).__module__}.{type(value).__name__}: {seen[name, what]}")
same = [seen["openai", what] for what in given] == ["hello", "hello", "TypeError"]
same = same and [seen["anthropic", what] for what in ("http_client", "timeout")] == ["TypeError", "TypeError"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
