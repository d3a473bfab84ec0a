#!/bin/sh
# Guess: a stream that ends by length gives its text and finish_reason length; only forms that are to be parsed raise.
# Is: chat.completions.stream() raises LengthFinishReasonError at such a text too, without response_format or tools,
# while one iterates. The same reply by create(), whole or as a stream, raises nothing.
# Seen in openai 3.57.0 and 2.54.0 against a local server.
# Here: docs/frameworks.md; a reply that max_tokens cut is recorded, and a client that raised has no reward for it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import json
import sys
import threading

import openai


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


def stream(*choices):
    chunks = ({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [c]} for c in choices)
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, "text/event-stream", (lines + "data: [DONE]\n\n").encode()


def answer(request):
    if request.get("stream"):
        said = {"index": 0, "delta": {"role": "assistant", "content": "Dear al"}, "finish_reason": None}
        return stream(said, {"index": 0, "delta": {}, "finish_reason": "length"})
    return chat({"content": "Dear al"}, "length")


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

client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
asking = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def helper():
    with client.chat.completions.stream(**asking) as events:
        for _ in events:
            pass
        return events.get_final_completion().choices[0].finish_reason


ways = {
    "create()": lambda: client.chat.completions.create(**asking).choices[0].finish_reason,
    "create(stream=True)": lambda: list(client.chat.completions.create(**asking, stream=True))[-1].choices[0].finish_reason,
    "stream()": helper,
}
print("versions: openai", openai.__version__)
print("behaviour: a text that max_tokens cut raises from openai's stream(), and from no other way to ask.")
seen = {}
for name, way in ways.items():
    try:
        seen[name] = way()
    except openai.LengthFinishReasonError as error:
        seen[name] = type(error).__name__
    print(f"seen: {name}: {seen[name]}")
same = list(seen.values()) == ["length", "length", "LengthFinishReasonError"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
