#!/bin/sh
# Guess: a finish_reason that OpenAI does not know, such as vLLM's abort or error, is handed on, or raises.
# Is: in a whole reply LiteLLM makes stop of abort, of error and of null, with no more than a line in the log; in a
# stream abort raises MidStreamFallbackError. So a judge takes half a verdict for a whole one.
# Seen in litellm 1.110.2, openai/ and hosted_vllm/ with api_base.
# Here: judge/slipstream_judge/model/llm.py reads finish_reason.
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
        return chat({"content": "I say"}, finish)
    said = {"index": 0, "delta": {"role": "assistant", "content": "I say"}, "finish_reason": None}
    return stream(said, {"index": 0, "delta": {}, "finish_reason": finish})


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
    try:
        reply = litellm.completion(model=provider + "/m", stream=streamed, max_retries=0, num_retries=0, **asking)
        return (list(reply)[-1] if streamed else reply).choices[0].finish_reason
    except Exception as error:
        return type(error).__name__


names = ("litellm", "openai")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: LiteLLM says stop of a reply that was aborted, or ended by null; in a stream abort raises.")
seen = []
for finish in ("length", "abort", "error", None):
    for provider in ("openai", "hosted_vllm"):
        seen.append((finish, told(provider, False)))
        print(f"seen: {provider}: a whole reply that ends by {finish}: {seen[-1][1]}")
finish = "abort"
for provider in ("openai", "hosted_vllm"):
    seen.append(("stream", told(provider, True)))
    print(f"seen: {provider}: a stream that ends by abort: {seen[-1][1]}")
expected = [("length", "length"), ("abort", "stop"), ("error", "stop"), (None, "stop")]
same = seen == [pair for pair in expected for _ in range(2)] + [("stream", "MidStreamFallbackError")] * 2

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
