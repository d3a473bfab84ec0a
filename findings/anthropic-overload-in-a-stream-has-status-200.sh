#!/bin/sh
# Guess: overloaded_error raises OverloadedError (529) from anthropic's SDK, wherever it comes.
# Is: as an event of a stream it raises plain APIStatusError with status_code 200. Code that goes by class or status
# takes it for no overload, and the SDK does not retry it.
# Seen in 2.11 to 2.14 against a local server.
# Here: proxy/slipstream_proxy/dialects/messages.py writes such events where an engine fails within a stream.
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


def event(name, **data):
    return f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n"


message_start = event(
    "message_start",
    message={
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "m",
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
)


def answer(request):
    error = {"type": "overloaded_error", "message": "busy"}
    if request.get("stream"):
        return 200, "text/event-stream", (message_start + event("error", error=error)).encode()
    return 529, "application/json", json.dumps({"type": "error", "error": error}).encode()


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

client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=1)
asking = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
print("versions: anthropic", anthropic.__version__)
print("behaviour: overloaded_error in a stream is an APIStatusError with status 200 and is not retried.")
seen = []
for name, ask in (
    ("a whole reply", lambda: client.messages.create(**asking)),
    ("a stream", lambda: list(client.messages.create(**asking, stream=True))),
):
    asked.clear()
    try:
        ask()
    except anthropic.APIStatusError as e:
        seen.append((type(e).__name__, e.status_code, len(asked)))
        print(f"seen: {name}: {type(e).__name__} {e.status_code}, requests: {len(asked)}")
same = seen == [("OverloadedError", 529, 2), ("APIStatusError", 200, 1)]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
