#!/bin/sh
# Guess: as messages are appended, each prompt begins with the one before.
# Is: Qwen3.5's, 3.6's and Nemotron 3's prompts end in an opened <think>, which the next prompt lacks (or has closed) as
# soon as the user says something more. So not even the prompt without its reply is found again. Qwen3.8 keeps it.
# Seen with the models' own templates, as TRL 1.16 ships them, and transformers 5.19.
# Here: docs/decisions.md: a digest ends 16 ids or more before the prompt does.
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
print("behaviour: a prompt that ends in <think> is no prefix of the prompt after the user's next message.")
begin = [{"role": "user", "content": "hi"}]
more = [{"role": "assistant", "reasoning_content": "Hm.", "content": "Yes?"}, {"role": "user", "content": "Nothing."}]
expected = {"qwen3_5_think": False, "qwen3_6": False, "nemotron_3_nano": False, "qwen3": True, "qwen3_8": True}
seen = {}
for family in expected:
    first, second = (rendered(family, m, add_generation_prompt=True) for m in (begin, begin + more))
    seen[family] = second.startswith(first)
    print(f"seen: {family}: ends in {first[-9:]!r}, is the beginning of the next prompt: {seen[family]}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
