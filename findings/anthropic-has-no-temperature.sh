#!/bin/sh
# Guess: messages.create of anthropic's SDK takes temperature, top_p and top_k, as the API does.
# Is: since its release 1 it knows none of them: a TypeError before any request. They go through extra_body. Code that
# takes several replies of one task at temperature 1 from a server of its own breaks with the upgrade.
# Seen in 1.0.0 to 2.14.0 against a local server.
# Here: docs/frameworks.md; what a call was sampled with is part of its record.
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

replies = []
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
asking = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
print("versions: anthropic", anthropic.__version__)
print("behaviour: anthropic's messages.create has no temperature, top_p or top_k: they are sent by extra_body alone.")
seen = {}
for name, value in (("temperature", 1.0), ("top_p", 0.9), ("top_k", 20), ("extra_body", {"temperature": 1.0})):
    asked.clear()
    try:
        client.messages.create(**asking, **{name: value})
        seen[name] = f"sent as {asked[-1]}"
    except TypeError as error:
        seen[name] = f"TypeError: {error}"
    print(f"seen: {name}={value}: {seen[name]}")
same = all(seen[name].startswith("TypeError") for name in ("temperature", "top_p", "top_k"))
same = same and asked[-1]["temperature"] == 1.0

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
