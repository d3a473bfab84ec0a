#!/bin/sh
# Guess: a reply that was sampled and read back as text and tool calls can be sent again as history.
# Is: mistral-common with a tokenizer of version 3 refuses an assistant message that has both ("either content or
# tool_calls, but not both"), and a call's id that is not nine letters or digits, as no OpenAI id is.
# Seen in 1.13, with the tokenizer that the package brings.
# Here: sdk/slipstream/engines/vllm/parsers.py; vLLM cuts the ids itself, and an engine's 400 is counted in `status`.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'mistral-common==1.13.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import pathlib
import sys

import mistral_common
from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

tokenizer = MistralTokenizer.from_file(str(pathlib.Path(mistral_common.__file__).parent / "data/tekken_240911.json"))


def outcome(content, name):
    call = {"id": name, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": name, "name": "look", "content": "sunny"},
    ]
    try:
        tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages, model="m"))
    except MistralCommonException as e:
        return type(e).__name__
    return "taken"


print("versions: mistral-common", mistral_common.__version__)
print("behaviour: a tokenizer of version 3 refuses text beside a tool call, and ids of another length than nine.")
expected = {
    (None, "abcdefghi"): "taken",
    ("I look.", "abcdefghi"): "InvalidAssistantMessageException",
    (None, "call_abc123"): "InvalidFunctionCallException",
}
seen = {case: outcome(*case) for case in expected}
for (content, name), told in seen.items():
    print(f"seen: content {content!r}, id {name}: {told}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
