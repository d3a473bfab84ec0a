#!/bin/sh
# Guess: where the model's server refuses, the agent's run() raises; and its content is the model's last reply.
# Is: run() raises nothing: its content is the error's text ("the server says no", "Connection error."), which reads as
# an answer; only status tells. And after tool calls the content is the texts of all turns, joined.
# Seen in agno 3.1.10 (October 2026), OpenAILike.
# Here: docs/frameworks.md: a reward that looks at the content alone would grade an error, and text of earlier calls.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'agno==3.1.10' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import logging
import os
import sys
import threading

logging.disable(logging.CRITICAL)
os.environ["AGNO_TELEMETRY"] = "false"

from agno.agent import Agent
from agno.models.openai import OpenAILike


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


def answer(request):
    if status != 200:
        return status, "application/json", json.dumps({"error": {"message": "the server says no"}}).encode()
    if request["messages"][-1]["role"] == "tool":
        return chat({"content": "It is sunny."})
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return chat({"content": "I look outside.", "tool_calls": [call]}, "tool_calls")


status = 200


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
url = f"http://127.0.0.1:{server.server_port}/v1"


def look() -> str:
    """Look outside."""
    return "sunny"


def told():
    model = OpenAILike(id="m", base_url=url, api_key="none", max_retries=0)
    run = Agent(model=model, tools=[look], telemetry=False).run("hi")
    return run.content, run.status.value


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("agno", "openai")))
print("behaviour: Agno's run() raises nothing where the server refuses; the error's text is the content of the run.")
seen = {}
for status in (200, 400, 503):
    seen[status] = told()
    print(f"seen: the server says {status}: content {seen[status][0]!r}, status {seen[status][1]}")
refused = ("the server says no", "ERROR")
same = seen == {200: ("I look outside.It is sunny.", "COMPLETED"), 400: refused, 503: refused}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
