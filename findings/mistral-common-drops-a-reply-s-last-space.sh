#!/bin/sh
# Guess: a reply goes back into the prompt as it was sampled, or is trimmed on both sides.
# Is: mistral-common takes spaces from a reply's end, and keeps line breaks there and spaces at its beginning; a user's
# text keeps all. So a reply that ends in a space does not stand in the next prompt with the tokens it was sampled in.
# Seen in 1.13, with the tokenizers of versions 2, 3 and 7 that the package brings.
# Here: sdk/slipstream/engines/vllm/parsers.py; such a turn is a sequence of its own for the trainer.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'mistral-common==1.13.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import pathlib
import sys

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

tokenizer = MistralTokenizer.from_file(str(pathlib.Path(mistral_common.__file__).parent / "data/tekken_240718.json"))


def rendered(asked, reply):
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
    messages.append({"role": "user", "content": "go"})
    return tokenizer.encode_chat_completion(ChatCompletionRequest(messages=messages, model="m")).text


print("versions: mistral-common", mistral_common.__version__)
print("behaviour: spaces at a reply's end are lost in the next prompt; line breaks there and other spaces stay.")
expected = {
    ("hi", "Yes. "): "<s>[INST]hi[/INST]Yes.</s>[INST]go[/INST]",
    ("hi", "Yes.\n"): "<s>[INST]hi[/INST]Yes.\n</s>[INST]go[/INST]",
    ("hi", " Yes."): "<s>[INST]hi[/INST] Yes.</s>[INST]go[/INST]",
    ("hi ", "Yes."): "<s>[INST]hi [/INST]Yes.</s>[INST]go[/INST]",
}
seen = {case: rendered(*case) for case in expected}
for (asked, reply), text in seen.items():
    print(f"seen: {asked!r}, {reply!r} → {text!r}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
