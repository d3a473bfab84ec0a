#!/bin/sh
# Guess: Mode.TOOLS_STRICT sends the tool with strict: true and additionalProperties: false.
# Is: it sends what Mode.TOOLS does: neither. So a server that puts a grammar on strict tools alone, as vLLM does,
# leaves the arguments free. An invalid reply is asked four times by default, a 503 once.
# Seen in instructor 1.17.0 with openai 2.54.0 (September 2026), against a local server.
# Here: docs/frameworks.md; docs/decisions.md, strict tools.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'instructor==1.17.0' 'openai==2.54.0'
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


def call(arguments, name="look", id="call_abc12"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(_):
    if status != 200:
        return status, "application/json", json.dumps({"error": {"message": "busy"}}).encode()
    return chat({"content": None, "tool_calls": [call(arguments, "Town")]}, "tool_calls")


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

import instructor
import openai
import pydantic


class Town(pydantic.BaseModel):
    name: str


def ask(mode):
    asked.clear()
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    create = instructor.from_openai(client, mode=mode).chat.completions.create
    try:
        create(model="m", messages=[{"role": "user", "content": "hi"}], response_model=Town)
    except Exception:
        return len(asked)
    return asked[-1]["tools"][0]["function"]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("instructor", "openai")))
print("behaviour: instructor's TOOLS_STRICT sends a tool without strict; an invalid reply is asked four times, a 503 once.")
status, arguments = 200, '{"name": "Rome"}'
sent = {mode: ask(getattr(instructor.Mode, mode)) for mode in ("TOOLS", "TOOLS_STRICT")}
for mode, tool in sent.items():
    print(f"seen: {mode}: strict {tool.get('strict')}, additionalProperties in {'additionalProperties' in tool['parameters']}")
arguments = "{}"
invalid = ask(instructor.Mode.TOOLS)
status = 503
busy = ask(instructor.Mode.TOOLS)
print(f"seen: requests where each reply lacks the name: {invalid}, where each is a 503: {busy}")
same = sent["TOOLS"] == sent["TOOLS_STRICT"] and (invalid, busy) == (4, 1)
same = same and not {"strict"} & set(sent["TOOLS_STRICT"]) and "additionalProperties" not in sent["TOOLS"]["parameters"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
