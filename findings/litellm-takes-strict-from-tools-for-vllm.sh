#!/bin/sh
# Guess: LiteLLM's hosted_vllm/ sends tools and response_format as they were given, or cleans both.
# Is: it takes `strict` and additionalProperties out of the tools, and leaves both in response_format; openai/ with the
# same api_base sends both. vLLM puts a grammar on strict tools alone, so calls come without one.
# Seen in litellm 1.110.2.
# Here: docs/frameworks.md; docs/decisions.md, strict tools.
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
    return chat({"content": "x"})


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

schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
tool = {"type": "function", "function": {"name": "look", "strict": True, "parameters": schema}}
form = {"type": "json_schema", "json_schema": {"name": "town", "strict": True, "schema": schema}}
asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url + "/v1", "api_key": "none"}
print("versions: litellm", importlib.metadata.version("litellm"))
print("behaviour: LiteLLM's hosted_vllm/ drops strict from tools and keeps it in response_format; openai/ keeps both.")
seen = {}
for provider in ("openai", "hosted_vllm"):
    litellm.completion(model=provider + "/m", tools=[json.loads(json.dumps(tool))], response_format=form, **asking)
    sent, formed = asked[-1]["tools"][0]["function"], asked[-1]["response_format"]["json_schema"]
    closed = ["additionalProperties" in part for part in (sent["parameters"], formed["schema"])]
    seen[provider] = (sent.get("strict"), formed.get("strict"), *closed)
    print(f"seen: {provider}: the tool: {sent}; the form: {formed}")
same = seen == {"openai": (True, True, True, True), "hosted_vllm": (None, True, False, True)}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
