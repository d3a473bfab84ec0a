#!/bin/sh
# Guess: a text argument that a template writes comes back as it was, once the reply is parsed with the tool's schema.
# Is: Qwen3.5's, Qwen3.8's, Nemotron 3's and GLM 4's lose white space at both ends, so an indented line of code loses
# its indent; Qwen3's (JSON) keeps it. vLLM 0.32's parsers qwen3_coder and glm45 keep it too, so the two differ on one
# reply.
# Seen in trl 1.16.0's response templates with transformers 5.24.0's parse_response (October and November 2026).
# Here: docs/decisions.md: sampled ids are recorded and not made anew from a parsed reply.
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
print("behaviour: a tool's argument that begins with spaces is read without them, but for families that write JSON.")
code = "    return 1\n"
seen = {}
for family in ("qwen3", "gemma4_v5", "qwen3_5_nothink", "qwen3_8", "nemotron_3_nano", "glm4moe"):
    seen[family], _ = read_back(family, code)
    print(f"seen: {family}: {code!r} is read as {seen[family]!r}")
same = list(seen.values()) == [code, code, "return 1", "return 1", "return 1", "return 1"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
