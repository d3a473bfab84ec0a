#!/bin/sh
# Guess: content "" and content null of a message with tool calls mean the same to a chat template.
# Is: DeepSeek-R1-Distill's leaves the call out where content is "" (or any text), and keeps it where it is null. The
# tool's result then follows an empty turn, and no error says so.
# Seen with the model's own template, as TRL 1.16 ships it, and transformers 5.19.
# Here: sdk/slipstream/shared/chat_template.py gives templates messages as vLLM does.
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
print("behaviour: DeepSeek-R1-Distill's template writes a tool call only if its message has content null.")
seen = {}
for content in (None, "", "I look."):
    text = rendered("deepseek_r1_distill", turn(content, '{"town": "Oslo"}'))
    seen[content] = "Oslo" in text
    print(f"seen: content {content!r}: call in the prompt: {seen[content]}, result in it: {'sunny' in text}")
same = seen == {None: True, "": False, "I look.": False}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
