#!/bin/sh
# Guess: a tool call that LFM2.5's template wrote is read back whole by the response template that TRL has for it.
# Is: the call ends at the first closing parenthesis, also inside of a text: code='print(1)' is read as 'print(1, with
# the quote before it, and the rest of the call is the reply's content. No error; TRL's GRPO would run the tool with it.
# Seen in trl 1.16.0 with transformers 5.24.0 (October and November 2026). vLLM 0.32's parser lfm2 reads the call whole.
# Here: sdk/slipstream/engines/vllm/parsers.py: the engine's parser reads calls, and no trainer does.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'transformers==5.24.0' 'datasets==5.2.0' 'jinja2==3.1.6'
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --no-deps --target "$folder/lib" \
  'trl==1.16.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import pathlib
import sys
import warnings

warnings.simplefilter("ignore")
import transformers
from tokenizers import Tokenizer, models

transformers.logging.set_verbosity_error()
import trl.chat_template_utils

folder = pathlib.Path(trl.chat_template_utils.__file__).parent / "chat_templates"
words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))


def tokenizer_of(family):
    """A tokenizer with the family's own template, and TRL's response template for it."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = (folder / f"{family}.jinja").read_text()
    return trl.chat_template_utils.add_response_schema(tokenizer)


def read_back(family, code):
    """The argument of a call that the family's template writes and its response template reads."""
    tokenizer = tokenizer_of(family)
    schema = {"type": "object", "properties": {"code": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "run", "description": "Run it.", "parameters": schema}}]
    call = {"type": "function", "function": {"name": "run", "arguments": {"code": code}}}
    hi = {"role": "user", "content": "hi"}
    asked = {"tools": tools, "tokenize": False}
    prompt = tokenizer.apply_chat_template([hi], add_generation_prompt=True, **asked)
    whole = tokenizer.apply_chat_template([hi, {"role": "assistant", "content": "", "tool_calls": [call]}], **asked)
    begin = len(prompt) if whole.startswith(prompt) else whole.rindex("<tool_call")
    reply = tokenizer.parse_response(whole[begin:], prefix=whole[:begin], tools=tools)
    return reply["tool_calls"][0]["function"]["arguments"].get("code"), reply.get("content") or ""

print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers")))
print("behaviour: LFM2.5's tool call is read up to the first closing parenthesis, also within a text argument.")
cases = ("1 + 1", "print(1)", "f(1); g(2)")
seen = [read_back("lfm2_2_5_v2", code) for code in cases]
for code, (argument, content) in zip(cases, seen, strict=True):
    print(f"seen: {code!r} is read as {argument!r}, content {content!r}")
same = seen[0] == ("1 + 1", "") and seen[1][0] == "'print(1" and seen[1][1].startswith("'") and seen[2][0] == "'f(1"

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
