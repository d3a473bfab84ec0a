#!/bin/sh
# Guess: where no server listens, LiteLLM raises its APIConnectionError, as openai's SDK does.
# Is: it raises InternalServerError with status 500, as if a server had answered. APIConnectionError is in the chain.
# Seen in 1.110, openai/ and hosted_vllm/ with api_base.
# Here: judge/slipstream_judge/model/llm.py (_no_connection) looks through the chain.
# Source: https://github.com/BerriAI/litellm/issues/33969
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'litellm==1.110.2' 'openai==3.57.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import os
import socket
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import litellm
import openai

litellm.suppress_debug_info = True
with socket.create_server(("127.0.0.1", 0)) as closed:
    port = closed.getsockname()[1]  # nobody listens there once it is closed
address = f"http://127.0.0.1:{port}/v1"
messages = [{"role": "user", "content": "hi"}]
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("litellm", "openai")))
print("behaviour: a refused connection is LiteLLM's InternalServerError with status 500, and no APIConnectionError.")
same = True
for provider in ("openai", "hosted_vllm"):
    try:
        litellm.completion(
            model=provider + "/m", messages=messages, api_base=address, api_key="none", max_retries=0, num_retries=0
        )
    except Exception as e:
        print(f"seen: litellm, {provider}: {type(e).__name__} {e.status_code}")
        same &= isinstance(e, litellm.InternalServerError) and not isinstance(e, litellm.APIConnectionError)
try:
    openai.OpenAI(base_url=address, api_key="none", max_retries=0).chat.completions.create(model="m", messages=messages)
except openai.APIConnectionError as e:
    print(f"seen: openai: {type(e).__name__}, without a status")

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
