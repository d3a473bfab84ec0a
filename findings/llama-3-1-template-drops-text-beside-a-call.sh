#!/bin/sh
# Guess: what a model said beside its tool call stands in the next prompt, or the template refuses it.
# Is: Llama 3.1's and 3.2's templates leave the text out, and Phi-3.5's leaves call and result out. So the next prompt
# does not hold what the model had sampled, and nothing says so. Qwen3's holds all.
# Seen with the models' own templates, as TRL 1.16 ships them, and transformers 5.19.
# Here: docs/decisions.md: why sampled ids come twice, once as sampled and once in the next prompt.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'transformers==5.19.0' 'jinja2==3.1.6'
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --no-deps --target "$folder/lib" \
  'trl==1.16.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import importlib.util
import pathlib
import sys

import transformers
from tokenizers import Tokenizer, models

tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=Tokenizer(models.WordLevel({"?": 0}, unk_token="?")), bos_token="<s>", eos_token="</s>"
)
folder = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"


def rendered(family, messages, **more):
    template = (folder / f"{family}.jinja").read_text()
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **more)


def turn(content, arguments):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "look", "content": "sunny"},
    ]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "jinja2")))
print("behaviour: Llama 3.1's template drops the text beside a tool call, Phi-3.5's the call and its result.")
expected = {
    "qwen3": (True, True, True),
    "llama3_1": (False, True, True),
    "llama3_2": (False, True, True),
    "phi3_5": (True, False, False),
}
seen = {}
for family in expected:
    text = rendered(family, turn("I look outside.", {"town": "Oslo"}))
    seen[family] = tuple(part in text for part in ("I look outside.", "Oslo", "sunny"))
    print(f"seen: {family}: text {seen[family][0]}, call {seen[family][1]}, result {seen[family][2]}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
