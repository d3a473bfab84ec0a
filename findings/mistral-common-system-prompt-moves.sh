#!/bin/sh
# Guess: a system prompt stands at the beginning, so that each prompt begins with the one before.
# Is: mistral-common with a tokenizer of version 3 writes it into the last user message. It moves at each turn, so no
# prompt extends the one before it: no prefix cache, and no two calls that are one sequence. Version 7 keeps it first.
# Seen in 1.13, with the tokenizers that the package brings.
# Here: sdk/slipstream/engines/vllm/parsers.py says which models are rendered by it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'mistral-common[sentencepiece]==1.13.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import pathlib
import sys

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

folder = pathlib.Path(mistral_common.__file__).parent / "data"
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
more = [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Nothing."}]
print("versions: mistral-common", mistral_common.__version__)
print("behaviour: a Mistral tokenizer of version 3 puts the system prompt into the last user message.")
seen = {}
for name in ("tekken_240911.json", "mistral_instruct_tokenizer_241114.model.v7"):
    tokenizer = MistralTokenizer.from_file(str(folder / name))
    version = tokenizer.instruct_tokenizer.tokenizer.version.value
    asked = (ChatCompletionRequest(messages=m, model="m") for m in (messages, messages + more))
    first, second = (tokenizer.encode_chat_completion(request) for request in asked)
    seen[version] = second.tokens[: len(first.tokens)] == first.tokens
    print(f"seen: {version}: {second.text!r}; begins with the prompt before: {seen[version]}")
same = seen == {"v3": False, "v7": True}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
