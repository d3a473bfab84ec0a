#!/bin/sh
# Guess: Predict(..., n=3) asks once with n: 3, and max_tokens reaches the server under that name.
# Is: DSPy 3.4 asks three times, each without n, and sends max_completion_tokens. A second Predict with the same input
# asks nothing more, at temperature 1 too, since replies are cached.
# Seen in dspy 3.4.1 (October 2026), openai/ with api_base.
# Here: docs/frameworks.md: DSPy needs cache=False, since a repeated run would hold no call of its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'dspy==3.4.1' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import logging
import os
import sys
import threading

logging.disable(logging.CRITICAL)
os.environ["DSPY_CACHEDIR"] = sys.argv[1] + "/cache"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import dspy


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
    return chat({"content": f"[[ ## answer ## ]]\nreply {len(asked)}\n\n[[ ## completed ## ]]"})



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

dspy.configure(lm=dspy.LM("openai/m", api_base=url, api_key="none", temperature=1.0, max_tokens=50))
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("dspy", "openai")))
print("behaviour: DSPy sends n=3 as three requests without n, and max_tokens as max_completion_tokens.")
answers = list(dspy.Predict("question -> answer", n=3)(question="hi").completions.answer)
sent = [{key: value for key, value in request.items() if key not in ("model", "messages")} for request in asked]
again = list(dspy.Predict("question -> answer", n=3)(question="hi").completions.answer)
print(f"seen: {len(sent)} requests, each with {sent[0]}; the answers are {answers}")
print(f"seen: asked once more: {len(asked) - len(sent)} more requests, the answers are {again}")
same = sent == [{"temperature": 1.0, "max_completion_tokens": 50}] * 3 and len(asked) == 3 and len(set(answers)) == 3

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
