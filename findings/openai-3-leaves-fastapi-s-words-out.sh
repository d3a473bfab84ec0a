#!/bin/sh
# Guess: str() of an error holds the reply's body: "Error code: 400 - {'detail': 'no such route'}".
# Is: openai 3 says `error.message` of the body alone: code, type and param are in no text, and of FastAPI's
# {"detail": …} and of a plain text nothing is left but "Error code: 400". The body is in error.body. anthropic 2 says all.
# Seen in openai 3.57.0 and anthropic 2.14.0.
# Here: judge/slipstream_judge/model/llm.py (_said) reads the bodies, too.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai==3.57.0' 'anthropic==2.14.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import sys
import threading

import anthropic
import openai


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


def said(sdk, body):
    answer.update(status=400, headers={}, body=body)
    try:
        if sdk is openai:
            openai.OpenAI(base_url=url, api_key="none").chat.completions.create(model="m", messages=hi)
        else:
            anthropic.Anthropic(base_url=url, api_key="none").messages.create(model="m", max_tokens=9, messages=hi)
    except sdk.BadRequestError as error:
        return str(error)


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("openai", "anthropic")))
print("behaviour: openai's error says a body's message alone, and nothing of a body that has none.")
expected = [
    (openai, {"error": {"message": "too long", "code": "context_length_exceeded"}}, "Error code: 400 - too long"),
    (openai, {"detail": "no such route"}, "Error code: 400"),
    (openai, "no such route", "Error code: 400"),
    (anthropic, {"detail": "no such route"}, "Error code: 400 - {'detail': 'no such route'}"),
]
same = True
for sdk, body, wanted in expected:
    text = said(sdk, body)
    print(f"seen: {sdk.__name__}, {json.dumps(body)}: {text}")
    same &= text == wanted

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
