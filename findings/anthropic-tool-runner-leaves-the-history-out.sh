#!/bin/sh
# Guess: tool_runner sends the whole conversation with each request, as each client of a Messages API must.
# Is: it asks the server to keep a thread. Its second request has the tool's result alone, without the user's message,
# the call, the system prompt and the tools. A server that knows no threads answers to that; thread=False sends all.
# Seen in 2.14.0 (November 2026); 2.0.0 and 1.17.0 send the whole conversation.
# Here: proxy/slipstream_proxy/dialects/messages.py reads a conversation from each request alone.
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


@anthropic.beta_tool
def look(town: str) -> str:
    """Look at the weather."""
    return "sunny"


client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
asking = {"model": "m", "max_tokens": 9, "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
print("versions: anthropic", anthropic.__version__)
print("behaviour: the second request of anthropic's tool_runner has the tool's result alone, and names a thread.")
seen = {}
for name, more in (("by default", {}), ("thread=False", {"thread": False})):
    replies = [[{"type": "tool_use", "id": "t", "name": "look", "input": {"town": "Rome"}}]]
    client.beta.messages.tool_runner(**asking, tools=[look], **more).until_done()
    last = asked[-1]
    seen[name] = (len(last["messages"]), "system" in last, "tools" in last, last.get("thread"))
    print(f"seen: {name}: {len(last['messages'])} messages, with {sorted(last)}, thread {last.get('thread')}")
continued = {"type": "continue", "previous_message_id": "msg_1"}
same = seen == {"by default": (1, False, False, continued), "thread=False": (3, True, True, None)}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
