#!/bin/sh
# Guess: a stream of two choices (n=2) gives each choice its finish_reason, as the server sent them.
# Is: LiteLLM tells one for both, as choice 0's: where the server ends choice 0 by stop and later choice 1 by length,
# the caller sees choice 0 end by length, or choice 1 never end. The texts of both come whole.
# Seen in litellm 1.110.2, openai/ and hosted_vllm/ with api_base.
# Here: docs/frameworks.md; which reply max_tokens cut is told by it.
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


def stream(*choices):
    chunks = ({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [c]} for c in choices)
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, "text/event-stream", (lines + "data: [DONE]\n\n").encode()


def answer(_):
    return stream(*({"index": i, "delta": delta, "finish_reason": finish} for i, delta, finish in sent))


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


def told(provider):
    asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url + "/v1", "api_key": "none"}
    chunks = litellm.completion(model=provider + "/m", n=2, stream=True, **asking)
    choices = [choice for chunk in chunks for choice in chunk.choices]
    texts = ["".join(c.delta.content or "" for c in choices if c.index == i) for i in (0, 1)]
    return texts, [(c.index, c.finish_reason) for c in choices if c.finish_reason]


begun = [(0, {"role": "assistant", "content": "a"}, None), (1, {"role": "assistant", "content": "b"}, None)]
cases = {
    "both end in one chunk each, at the end": [*begun, (0, {}, "stop"), (1, {}, "length")],
    "choice 0 ends with its last text": [*begun, (0, {"content": "A"}, "stop"), (1, {"content": "B"}, "length")],
}
names = ("litellm", "openai")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: of a stream of two choices LiteLLM tells one finish_reason, as choice 0's, also where it was choice 1's.")
seen = []
for what, sent in cases.items():
    for provider in ("openai", "hosted_vllm"):
        texts, ends = told(provider)
        seen.append(ends)
        print(f"seen: {provider}: {what}: texts {texts}, ends {ends}")
same = seen == [[(0, "stop")]] * 2 + [[(0, "length")]] * 2

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
