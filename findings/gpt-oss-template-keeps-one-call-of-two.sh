#!/bin/sh
# Guess: a turn with two tool calls is written with both, or refused; and each result under the name of its own tool.
# Is: gpt-oss' template writes the first call alone, and both results, each as said by the first tool. Nothing tells of
# it. Llama 3.2's refuses two calls; Gemma 4's and Qwen3's write both, and Gemma 4's each result under its name.
# Seen in the models' own templates, as trl 1.16.0 ships them, with transformers 5.24.0 (October and November 2026).
# Here: docs/decisions.md: the next prompt need not hold what the model had sampled, so ids are kept of both.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'transformers==5.24.0' 'jinja2==3.1.6'
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --no-deps --target "$folder/lib" \
  'trl==1.16.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import importlib.util
import pathlib
import re
import sys

import transformers
from jinja2 import TemplateError
from tokenizers import Tokenizer, models

folder = pathlib.Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"
words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


def call(name, place):
    return {"id": f"abcdefgh{place}", "type": "function", "function": {"name": name, "arguments": {"n": place}}}


def result(place):
    return {"role": "tool", "tool_call_id": f"abcdefgh{place}", "content": f"result {place}"}


def written(family):
    calls = [call("look", 1), call("hear", 2)]
    turn = {"role": "assistant", "content": "", "tool_calls": calls}
    messages = [{"role": "user", "content": "hi"}, turn, result(1), result(2)]
    template = (folder / f"{family}.jinja").read_text()
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
    except TemplateError as error:
        return str(error)
    return [word for word in re.findall(r"look|hear|result \d", text)]


print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers")))
print("behaviour: of two tool calls gpt-oss' template writes the first, and both results as said by the first tool.")
seen = {}
for family in ("gptoss", "llama3_2", "gemma4_v5", "qwen3"):
    seen[family] = written(family)
    print(f"seen: {family}: {seen[family]}")
same = (
    seen["gptoss"] == ["look", "look", "result 1", "look", "result 2"]
    and "single" in seen["llama3_2"]
    and seen["gemma4_v5"] == ["look", "hear", "look", "result 1", "hear", "result 2"]
    and seen["qwen3"] == ["look", "hear", "result 1", "result 2"]
)

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
