#!/bin/sh
# Guess: num_retries=2 asks a server that answers 503 three times, and one that answers 400 once.
# Is: a 400 is asked three times. A 503, 429, 408 or 409 is asked five times by openai/, since openai's own two retries
# stand below the last one, and three times by hosted_vllm/. Without num_retries, openai/ asks three times.
# Seen in litellm 1.110.2 with openai 3.57.0 and api_base.
# Here: judge/slipstream_judge/model/llm.py sets num_retries and max_retries to 0, and repeats calls itself.
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


def answer(_):
    return status, "application/json", json.dumps({"error": {"message": "no"}}).encode()


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


def requests(provider, **settings):
    asked.clear()
    asking = {"messages": [{"role": "user", "content": "hi"}], "api_base": url + "/v1", "api_key": "none"}
    try:
        litellm.completion(model=provider + "/m", **asking, **settings)
    except Exception:
        return len(asked)


expected = {
    ("openai", 400, 2): 3,
    ("hosted_vllm", 400, 2): 3,
    ("openai", 503, 2): 5,
    ("openai", 429, 2): 5,
    ("hosted_vllm", 503, 2): 3,
    ("openai", 400, None): 1,
    ("openai", 503, None): 3,
}
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "openai")))
print("behaviour: with num_retries=2 LiteLLM asks three times where the server says 400, and openai/ five times at 503.")
seen = {}
for case in expected:
    provider, status, retries = case
    seen[case] = requests(provider, **({} if retries is None else {"num_retries": retries}))
    print(f"seen: {provider}: {status}, num_retries {retries}: {seen[case]} requests")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
