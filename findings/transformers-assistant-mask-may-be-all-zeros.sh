#!/bin/sh
# Guess: apply_chat_template(return_assistant_tokens_mask=True) raises for a template that does not mark the assistant.
# Is: it logs one warning and gives a mask of zeros, so that a loss over it trains on nothing. Most models' own
# templates have no {% generation %}.
# Seen in 5.19.
# Here: trainer/slipstream_trainer/batch/dataset.py finds what was sampled by rendering twice, without that mask.
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
print("behaviour: without {% generation %} in the template the assistant's mask is all zeros, and nothing is raised.")
template = "{% for m in messages %}{{ m.content }} {% endfor %}"
marked = "{% for m in messages %}{% generation %}{{ m.content }} {% endgeneration %}{% endfor %}"
from tokenizers import pre_tokenizers

tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
seen = []
for name, text in (("without", template), ("with", marked)):
    mask = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "one two three"}],
        chat_template=text,
        return_dict=True,
        return_assistant_tokens_mask=True,
    )["assistant_masks"]
    seen.append(mask)
    print(f"seen: {name} the mark: {mask}")
same = seen == [[0, 0, 0], [1, 1, 1]]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
