#!/bin/sh
# Guess: anthropic's SDK sends its api_key as x-api-key, with anthropic-version 2023-06-01.
# Is: since release 2 it sends Authorization: Bearer and anthropic-version 2026-10-21, and api_key beside auth_token
# raises. A proxy or gateway that looks for x-api-key finds no key.
# Seen in 2.0.0 and 2.14.0; 1.17.0 sends x-api-key (October 2026).
# Here: proxy/slipstream_proxy/data/access/admission.py reads a key from either header.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'anthropic==2.14.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import json
import sys
import threading

import anthropic


def answer(_):
    content = replies.pop(0) if replies else [{"type": "text", "text": "done"}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content}
    message["stop_reason"] = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
    message |= {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    return 200, "application/json", json.dumps(message).encode()


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        heard.append({name.lower(): value for name, value in self.headers.items()})
        asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        status, kind, body = answer(asked[-1])
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


asked, heard = [], []
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"

replies = []
client = anthropic.Anthropic(base_url=url, api_key="secret", max_retries=0)
client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
print("versions: anthropic", anthropic.__version__)
print("behaviour: anthropic 2 sends api_key as Authorization: Bearer, and no x-api-key.")
seen = {name: heard[-1].get(name) for name in ("x-api-key", "authorization", "anthropic-version")}
print("seen:", seen)
try:
    anthropic.Anthropic(base_url=url, api_key="secret", auth_token="other")
    both = "taken"
except ValueError as error:
    both = f"ValueError: {error}"
print("seen: api_key and auth_token:", both)
same = seen == {"x-api-key": None, "authorization": "Bearer secret", "anthropic-version": "2026-10-21"}
same = same and both.startswith("ValueError")

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
