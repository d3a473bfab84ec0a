#!/bin/sh
# Guess: except httpx.HTTPError catches what huggingface_hub and openai raise where no server answers.
# Is: huggingface_hub 2 and openai 3 stand on httpx2, whose classes have httpx's names and are no subclasses of them. So
# the handler is passed over, also where httpx is installed beside it. openai's own APIConnectionError has it as a cause.
# Seen in huggingface_hub 2.4.0 and openai 3.57.0 with httpx 0.28.1 and httpx2 2.16.2.
# Here: sdk/slipstream/operate/models/destinations.py catches either; judge/slipstream_judge/model/llm.py goes by names.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'huggingface_hub==2.4.0' 'openai==3.57.0' 'httpx==0.28.1' 'httpx2==2.16.2'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import socket
import sys

import httpx
import huggingface_hub
import openai

with socket.create_server(("127.0.0.1", 0)) as taken:
    nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"  # where nobody listens, once it is closed


def raised(ask):
    try:
        ask()
    except Exception as error:
        while error.__cause__ is not None and not type(error).__module__.startswith("httpx"):
            error = error.__cause__
        return f"{type(error).__module__}.{type(error).__name__}", isinstance(error, httpx.HTTPError)


names = ("huggingface_hub", "openai", "httpx", "httpx2")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: what huggingface_hub 2 and openai 3 raise without a server is httpx2's, which httpx's class does not catch.")
seen = {
    "huggingface_hub": raised(lambda: huggingface_hub.HfApi(endpoint=nobody).model_info("a/b")),
    "openai": raised(lambda: openai.OpenAI(base_url=nobody, api_key="none", max_retries=0).models.list()),
}
for name, (error, caught) in seen.items():
    print(f"seen: {name}: {error}, caught by httpx.HTTPError: {caught}")
same = all(error == "httpx2.ConnectError" and not caught for error, caught in seen.values())

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
