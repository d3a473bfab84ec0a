#!/bin/sh
# Guess: continue_final_message ends the prompt in the assistant's header and the words that the reply is to begin with.
# Is: Qwen3's template writes an empty thought before them, as for each last reply without one. So a reply that is begun
# for the model is a reply without thinking, though thinking is on, and the prompt extends none of that turn.
# Seen with the model's own template, as TRL 1.16 ships it, and transformers 5.19; Qwen2.5's adds nothing.
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



print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in ("trl", "transformers", "jinja2")))
print("behaviour: a reply that is begun for Qwen3 by continue_final_message gets an empty thought before its first word.")
user, begun = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}
seen = {}
for family in ("qwen2_5", "qwen3"):
    text = rendered(family, [user, begun], continue_final_message=True)
    asked = rendered(family, [user], add_generation_prompt=True)
    seen[family] = (text.rpartition("assistant\n")[2], text.startswith(asked) and text == asked + "Once")
    print(f"seen: {family}: after the assistant's header {seen[family][0]!r}; header and words alone: {seen[family][1]}")
same = seen == {"qwen2_5": ("Once", True), "qwen3": ("<think>\n\n</think>\n\nOnce", False)}

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
