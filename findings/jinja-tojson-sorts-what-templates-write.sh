#!/bin/sh
# Guess: a chat template gives one text, whichever Jinja renders it.
# Is: Jinja's own `tojson` sorts keys (and escapes < > & '); transformers puts one in its place that keeps the order.
# With plain Jinja the tools and calls in Qwen's, Llama's and gpt-oss' prompts are other tokens.
# Seen with jinja2 3.1, transformers 5.19 and the models' own templates, as TRL 1.16 ships them.
# Here: sdk/slipstream/engines/vllm/template.py (_to_json) replaces it, too.
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
from jinja2.sandbox import ImmutableSandboxedEnvironment

print("behaviour: plain Jinja sorts the keys of tools and calls in a prompt; transformers keeps their order.")
parameters = {"type": "object", "properties": {"town": {"type": "string"}, "day": {"type": "string"}}}
tools = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": parameters}}]
messages = turn("", {"town": "Oslo", "day": "today"})
plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
plain.globals["strftime_now"] = lambda _: "today"
same = True
for family in ("qwen2_5", "qwen3", "qwen3_instruct_2507"):
    one = rendered(family, messages, tools=tools, add_generation_prompt=True)
    template = plain.from_string((folder / f"{family}.jinja").read_text())
    other = template.render(messages=messages, tools=tools, add_generation_prompt=True)
    call = ['"town": "Oslo", "day"' in text for text in (one, other)]
    print(f"seen: {family}: equal: {one == other}; order of the call kept: transformers {call[0]}, plain {call[1]}")
    same &= one != other and call == [True, False]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
