#!/bin/sh
# Guess: the text of a reply is what the server sent, <think> included, whether it is streamed or not.
# Is: LiteLLM takes <think>…</think> out of the content of a whole reply and gives it as reasoning_content; in a stream
# the same text stays. It does so only where the reply begins with <think>: not for one that has its end alone, as
# Qwen's do.
# Seen in litellm 1.110.2, openai/ and hosted_vllm/ with api_base.
# Here: docs/frameworks.md; the next request of a streaming agent has another history than that of one that does not.
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
    if not request.get("stream"):
        return chat({"content": text})
    said = ({"index": 0, "delta": {"content": part}, "finish_reason": None} for part in text.partition("</think>"))
    return stream(*said, {"index": 0, "delta": {}, "finish_reason": "stop"})


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


def told(provider, streamed):
    asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url + "/v1", "api_key": "none"}
    reply = litellm.completion(model=provider + "/m", stream=streamed, **asking)
    if streamed:
        return "".join(chunk.choices[0].delta.content or "" for chunk in reply)
    return reply.choices[0].message.content


print("versions: litellm", importlib.metadata.version("litellm"))
print("behaviour: LiteLLM takes <think> out of the content of a whole reply, and leaves it in a stream's.")
expected = {
    ("<think>a</think>b", False): "b",
    ("<think>a</think>b", True): "<think>a</think>b",
    ("a</think>b", False): "a</think>b",
    ("<think>a", False): "<think>a",
}
same = True
for (text, streamed), content in expected.items():
    for provider in ("openai", "hosted_vllm"):
        seen = told(provider, streamed)
        print(f"seen: {provider}: {text!r}, {'streamed' if streamed else 'whole'}: content {seen!r}")
        same &= seen == content

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
