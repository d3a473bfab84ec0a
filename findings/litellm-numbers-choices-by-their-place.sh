#!/bin/sh
# Guess: a choice keeps the index that the server gave it, so choices may come in any order, as from a server that lists
# each one when it is done.
# Is: LiteLLM numbers them anew by their place: of [{index 1, "b"}, {index 0, "a"}] "b" is choice 0. The text is right,
# its number is not, and what is kept by number elsewhere belongs to another choice. A stream's texts keep theirs.
# Seen in litellm 1.110.2, openai/ and hosted_vllm/ with api_base.
# Here: judge/slipstream_judge/model/llm.py asks for one choice.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'litellm==1.110.2' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import sys
import threading
import logging
import os

logging.disable(logging.CRITICAL)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        asked.append(self.path)
        body = json.dumps(answer["body"]).encode()
        self.send_response(answer["status"])
        for name, value in {"content-type": "application/json", "content-length": str(len(body)), **answer["headers"]}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


asked = []
answer = {}
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
hi = [{"role": "user", "content": "hi"}]


def told(provider):
    asking = {"messages": hi, "api_base": url + "/v1", "api_key": "none", "max_retries": 0}
    reply = litellm.completion(model=provider + "/m", n=2, **asking)
    return [(choice.index, choice.message.content) for choice in reply.choices]


texts = {1: "b", 0: "a"}
choices = [
    {"index": index, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    for index, text in texts.items()
]
usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
answer.update(status=200, headers={}, body=body)
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "openai")))
print("behaviour: LiteLLM numbers the choices of a whole reply by their place, whatever index the server gave them.")
print("seen: the server's choices:", list(texts.items()))
seen = {provider: told(provider) for provider in ("openai", "hosted_vllm")}
for provider, result in seen.items():
    print(f"seen: {provider}: {result}")
same = list(seen.values()) == [[(0, "b"), (1, "a")]] * 2

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
