#!/bin/sh
# Guess: stream_chunk_builder makes of a stream what the whole reply would have been; if anything is lost, it is the
# fields that OpenAI does not know, such as vLLM's token_ids.
# Is: the token_ids of all chunks are kept, one after the other, and the log-probabilities are gone. Where the server
# told no usage, the builder counts tokens with a tokenizer of its own.
# Seen in litellm 1.110.2 (November 2026).
# Here: judge/slipstream_judge/model/llm.py asks for whole replies.
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


def choice(place, text):
    entry = {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
    delta = {"role": "assistant", "content": text}
    return {"index": 0, "delta": delta, "logprobs": {"content": [entry]}, "token_ids": [place], "finish_reason": None}


def answer(_):
    parts = [choice(place, text) for place, text in enumerate(("I ", "am ", "here"))]
    parts.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    chunks = ({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [c]} for c in parts)
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, "text/event-stream", (lines + "data: [DONE]\n\n").encode()



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
url = f"http://127.0.0.1:{server.server_port}/v1"


def told(provider):
    asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url, "api_key": "none", "logprobs": True}
    chunks = list(litellm.completion(model=provider + "/m", stream=True, max_retries=0, num_retries=0, **asking))
    built = litellm.stream_chunk_builder(chunks)
    (one,) = built.choices
    streamed = sum(bool(getattr(c.choices[0], "logprobs", None)) for c in chunks)
    told_usage = built.usage.prompt_tokens > 0
    return one.message.content, streamed, getattr(one, "logprobs", None), getattr(one, "token_ids", None), told_usage


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "openai")))
print("behaviour: stream_chunk_builder keeps vLLM's token_ids, drops the log-probabilities, and makes up the usage.")
seen = [told(provider) for provider in ("openai", "hosted_vllm")]
for provider, (text, streamed, kept, ids, counted) in zip(("openai", "hosted_vllm"), seen, strict=True):
    print(f"seen: {provider}: {text!r}; {streamed} chunks had logprobs, built {kept}; token_ids {ids}; usage {counted}")
same = seen == [("I am here", 3, None, [0, 1, 2], True)] * 2

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
