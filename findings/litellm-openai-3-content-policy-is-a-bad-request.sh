#!/bin/sh
# Guess: a refusal by OpenAI's content policy is LiteLLM's ContentPolicyViolationError, whichever release of openai.
# Is: with openai 3 it is a plain BadRequestError for openai/…, and still a ContentPolicyViolationError for
# hosted_vllm/…. LiteLLM looks for the code in the error's text, which held all of the body with openai 2.
# Seen in litellm 1.110.2 with openai 3.57 (November 2026); litellm 1.106 with openai 2.54 tells it for both.
# Here: judge/slipstream_judge/model/llm.py (_said) reads the body too: quota and context are lost the same way.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'litellm==1.110.2' 'openai==3.57.0'
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
    refused = {
        "message": "Your request was rejected.",
        "type": "invalid_request_error",
        "param": None,
        "code": "content_policy_violation",
    }
    return 400, "application/json", json.dumps({"error": refused}).encode()


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
        return type(e).__name__, str(e)


names = ("litellm", "openai")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: with openai 3, LiteLLM's openai/ no longer tells a refusal by the content policy from other 400s.")
expected = {"openai": "BadRequestError", "hosted_vllm": "ContentPolicyViolationError"}
seen = {}
for provider in expected:
    seen[provider], text = error(provider)
    print(f"seen: {provider}/m: {seen[provider]}: {text}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
