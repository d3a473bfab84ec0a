#!/bin/sh
# Guess: a reply whose text has <think> goes back as it came, or without its thought.
# Is: pydantic-ai takes the thought out and writes it anew, with line breaks of its own around each tag beside those
# that were there. What Qwen writes goes back with two breaks in place of each one, and four in place of two.
# Seen in pydantic-ai 2.68 against a local server.
# Here: docs/frameworks.md; such a turn has other tokens than were sampled.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'pydantic-ai-slim[openai]==2.68.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import logging
import sys
import threading
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


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
    return chat({"content": sampled})


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

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url + "/v1", api_key="none")))
print("versions: pydantic-ai-slim", importlib.metadata.version("pydantic-ai-slim"))
print("behaviour: pydantic-ai sends a thought in <think> back with more line breaks than it came with.")
expected = {
    "<think>\nx\n</think>\n\ny": "<think>\n\nx\n\n</think>\n\n\n\ny",
    "<think>x</think>y": "<think>\nx\n</think>\n\ny",
    "y \n": "y \n",
}
same = True
for sampled, again in expected.items():
    agent.run_sync("more", message_history=agent.run_sync("hi").all_messages())
    seen = next(m["content"] for m in asked[-1]["messages"] if m["role"] == "assistant")
    print(f"seen: {sampled!r} is sent as {seen!r}")
    same &= seen == again

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
