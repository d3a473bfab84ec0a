#!/bin/sh
# Guess: an agent sends a tool call back under the id that the server gave it.
# Is: Agno replaces each id by its place in the request: call_, zeros and a number that begins at 0 in each request. So
# all runs hold the same ids, and no id of the server ever comes back.
# Seen in agno 3.1.10 (October 2026), OpenAILike.
# Here: docs/frameworks.md: runs without a name are found by what they said, not by ids of tool calls.
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
    said = sum(message["role"] == "assistant" for message in request["messages"])
    if said == 2:
        return chat({"content": "done"})
    given.append(f"chatcmpl-tool-{len(given)}a7f3")
    call = {"id": given[-1], "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return chat({"content": None, "tool_calls": [call]}, "tool_calls")


given = []


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


def sent_back():
    """The ids of the calls in the last request of a run."""
    Agent(model=OpenAILike(id="m", base_url=url, api_key="none"), tools=[look], telemetry=False).run("hi")
    return [call["id"] for message in asked[-1]["messages"] for call in message.get("tool_calls", [])]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("agno", "openai")))
print("behaviour: Agno sends tool calls back under ids that it counts from 0 in each request, not under the server's.")
first, second = sent_back(), sent_back()
print(f"seen: the server gave {given}")
print(f"seen: two runs sent back {first} and {second}")
counted = ["call_" + str(place).rjust(35, "0") for place in range(2)]
same = first == second == counted and len(set(given)) == 4

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
