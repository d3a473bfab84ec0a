#!/bin/sh
# Guess: a streamed tool call whose JSON is cut by max_tokens raises, or has no input.
# Is: anthropic's SDK gives a ToolUseBlock without the text that was being written, but with the number: of 1200, cut
# after two digits, it makes 12. An agent that does not look at stop_reason pays 12, or writes no text.
# Seen in 2.11 to 2.14 against a local server.
# Here: proxy/slipstream_proxy/dialects/messages.py leaves a call out that was cut short: it must not run.
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


def answer(_):
    call = {"type": "tool_use", "id": "t", "name": "write", "input": {}}
    cut = {"type": "input_json_delta", "partial_json": written}
    body = (
        message_start
        + event("content_block_start", index=0, content_block=call)
        + event("content_block_delta", index=0, delta=cut)
        + event("content_block_stop", index=0)
        + event("message_delta", delta={"stop_reason": "max_tokens", "stop_sequence": None}, usage={"output_tokens": 9})
        + event("message_stop")
    )
    return 200, "text/event-stream", body.encode()


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

client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
print("versions: anthropic", anthropic.__version__)
print("behaviour: of a tool call that max_tokens cut a text is dropped, and half of a number is a number.")
expected = {'{"path": "a.txt", "text": "Dear al': {"path": "a.txt"}, '{"to": "Ann", "amount": 12': {"to": "Ann", "amount": 12}}
same = True
for written, left in expected.items():
    with client.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]) as stream:
        message = stream.get_final_message()
    call = message.content[0]
    print(f"seen: {written} → {type(call).__name__} {call.input}, {message.stop_reason}")
    same &= call.input == left and message.stop_reason == "max_tokens"

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
