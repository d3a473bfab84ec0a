#!/bin/sh
# Guess: a chat template without a system prompt writes none, or one sentence about who the model is.
# Is: Qwen3.8's begins each prompt with a system message about effort ("Reasoning effort is set to xhigh. ..."), before
# a client's own one in the same message. With reasoning_effort medium or enable_thinking=false it writes none; "high"
# raises.
# Seen with the model's own template, as TRL 1.16 ships it, and transformers 5.19 (October 2026).
# Here: sdk/slipstream/shared/chat_template.py; calls that differ in it share no prompt.
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



print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "jinja2")))
print("behaviour: Qwen3.8's template begins with a system message about effort; 'high', which OpenAI knows, raises.")


def begins(messages, **more):
    try:
        text = rendered("qwen3_8", messages, add_generation_prompt=True, **more)
    except Exception as error:
        return f"raises: {error}"
    return text.partition("<|im_start|>user")[0]


user, system = {"role": "user", "content": "hi"}, {"role": "system", "content": "Be brief."}
seen = {
    "nothing": begins([user]),
    "a system prompt": begins([system, user]),
    "reasoning_effort='medium'": begins([user], reasoning_effort="medium"),
    "reasoning_effort='high'": begins([user], reasoning_effort="high"),
    "enable_thinking=False": begins([user], enable_thinking=False),
}
for what, text in seen.items():
    print(f"seen: {what}: {text!r}")
plain, own, medium, high, off = seen.values()
begin = "<|im_start|>system\nReasoning effort is set to "
same = plain.startswith(begin + "xhigh.") and own.startswith(begin + "xhigh.") and "Be brief." in own
same = same and medium == "" and high.startswith("raises:") and off == ""

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
