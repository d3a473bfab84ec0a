#!/bin/sh
# Guess: LiteLLM's error has the status that the server answered with.
# Is: a 400 whose message has the words "rate limit" becomes RateLimitError with status 429, which callers retry. The
# true status is in the chain of causes alone. 402 and 403 are plain APIErrors.
# Seen in 1.110, openai/ and hosted_vllm/ with api_base.
# Here: judge/slipstream_judge/model/llm.py (_status) looks for the last status in the chain.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'litellm==1.110.2'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import os
import sys
import threading

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm

litellm.suppress_debug_info = True


def answer(_):
    return status, "application/json", json.dumps({"error": {"message": text, "type": "x", "code": status}}).encode()


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


def error(provider):
    try:
        litellm.completion(
            model=provider + "/m",
            messages=[{"role": "user", "content": "hi"}],
            api_base=url + "/v1",
            api_key="none",
            max_retries=0,
            num_retries=0,
        )
    except Exception as e:
        return type(e).__name__, e.status_code


print("versions: litellm", importlib.metadata.version("litellm"))
print("behaviour: LiteLLM makes a 429 of a 400 whose text says 'rate limit'.")
expected = {
    (400, "temperature is too high"): ("BadRequestError", 400),
    (400, "this field sets no rate limit"): ("RateLimitError", 429),
    (403, "not yours"): ("APIError", 403),
}
same = True
for (status, text), told in expected.items():
    for provider in ("openai", "hosted_vllm"):
        seen = error(provider)
        print(f"seen: {provider}: {status} {text!r} →", *seen)
        same &= seen == told

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
