#!/bin/sh
# Guess: a Retry-After above 60 seconds is ignored, as openai 1 did, and the SDK tries again after half a second.
# Is: openai 3 waits up to 120 s, and above that raises at once, without the retries that were asked for. anthropic 2
# waits as long as it is told, an hour or a day. No timeout ends that wait, for it counts each request alone.
# Seen in openai 3.57.0 and anthropic 2.14.0.
# Here: judge/slipstream_judge/model/llm.py sets max_retries to 0 and waits itself; docs/proxy.md, Retry-After.
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
import time

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


def tried(sdk, seconds):
    answer.update(status=429, headers={"retry-after": str(seconds)}, body={"error": {"type": "x", "message": "later"}})
    asked.clear()
    slept.clear()
    try:
        if sdk is openai:
            client = openai.OpenAI(base_url=url, api_key="none", max_retries=1, timeout=5)
            client.chat.completions.create(model="m", messages=hi)
        else:
            client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=1, timeout=5)
            client.messages.create(model="m", max_tokens=9, messages=hi)
    except sdk.RateLimitError:
        return len(asked), list(slept)


slept = []
time.sleep = slept.append
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("openai", "anthropic")))
print("behaviour: Retry-After is obeyed up to 120 s by openai, which gives up above, and without end by anthropic.")
expected = {
    (openai, 30): (2, [30.0]),
    (openai, 120): (2, [120.0]),
    (openai, 4000): (1, []),
    (anthropic, 30): (2, [30.0]),
    (anthropic, 4000): (2, [4000.0]),
    (anthropic, 86400): (2, [86400.0]),
}
same = True
for (sdk, seconds), wanted in expected.items():
    requests, waits = tried(sdk, seconds)
    print(f"seen: {sdk.__name__}, Retry-After {seconds}, max_retries 1, timeout 5: {requests} requests, waits {waits}")
    same &= (requests, waits) == wanted

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
