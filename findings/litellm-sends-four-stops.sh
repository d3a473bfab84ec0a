#!/bin/sh
# Guess: a list of stop texts reaches one's own server as it is given; vLLM takes any number.
# Is: LiteLLM sends the first four and drops the others without a word, for openai/ with api_base and for hosted_vllm/.
# Where litellm.disable_stop_sequence_limit is set, all are sent.
# Seen in litellm 1.110.2 (November 2026).
# Here: docs/frameworks.md: agents that call through LiteLLM; the record holds the stops that came.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'litellm==1.110.2' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import logging
import os
import sys
import threading

logging.disable(logging.CRITICAL)
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True


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


def sent(provider):
    asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url, "api_key": "none"}
    litellm.completion(model=provider + "/m", stop=list("abcdef"), max_retries=0, num_retries=0, **asking)
    return "".join(asked[-1]["stop"])


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "openai")))
print("behaviour: of six stop texts LiteLLM sends the first four to one's own server, without a word.")
seen = {}
for limit_is_off in (False, True):
    litellm.disable_stop_sequence_limit = limit_is_off
    for provider in ("openai", "hosted_vllm"):
        seen[provider, limit_is_off] = sent(provider)
        print(f"seen: {provider}, disable_stop_sequence_limit {limit_is_off}: {seen[provider, limit_is_off]}")
same = list(seen.values()) == ["abcd", "abcd", "abcdef", "abcdef"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
