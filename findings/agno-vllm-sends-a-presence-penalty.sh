#!/bin/sh
# Guess: a client's class for vLLM sends no sampling values that nobody set, so the server's own hold.
# Is: Agno's VLLM sends temperature 0.7, top_p 0.8 and presence_penalty 1.5 with each request; its OpenAILike, with the
# same arguments, sends none. With a penalty the tokens are not sampled from the model's own probabilities.
# Seen in agno 3.1.10 (October 2026).
# Here: docs/frameworks.md; proxy/slipstream_proxy/dialects/sampling.py leaves calls with a penalty out of training.
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
from agno.models.vllm import VLLM


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
url = f"http://127.0.0.1:{server.server_port}/v1"

print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("agno", "openai")))
print("behaviour: Agno's VLLM sends temperature 0.7, top_p 0.8 and presence_penalty 1.5, which nobody set.")
seen = {}
for kind in (OpenAILike, VLLM):
    Agent(model=kind(id="m", base_url=url, api_key="none"), telemetry=False).run("hi")
    seen[kind.__name__] = {key: value for key, value in asked[-1].items() if key not in ("model", "messages")}
    print(f"seen: {kind.__name__} sends {seen[kind.__name__]}")
penalised = {"temperature": 0.7, "top_p": 0.8, "presence_penalty": 1.5}
same = seen["OpenAILike"] == {} and seen["VLLM"] == penalised

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
