#!/bin/sh
# Guess: a tool call's arguments stand in the next prompt in the order in which the model wrote them.
# Is: Gemma 4's template sorts them by name, so a call that the model wrote in another order has other tokens in the
# next prompt: prompt and reply are no prefix of it, and the cache and the trainer see two sequences.
# Seen with the model's own templates (five revisions), as TRL 1.16 ships them, and transformers 5.19.
# Here: docs/decisions.md: a digest covers no sampled ids.
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
print("behaviour: Gemma 4's template sorts a tool call's arguments by name; Qwen3's keeps their order.")
seen = {}
for family in ("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "qwen3"):
    text = rendered(family, turn("", {"town": "Oslo", "day": "today"}))
    seen[family] = text.index("today") < text.index("Oslo")
    print(f"seen: {family}: sorted: {seen[family]}")
same = seen.pop("qwen3") is False and all(seen.values())

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
