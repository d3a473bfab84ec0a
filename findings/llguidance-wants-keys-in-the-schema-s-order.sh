#!/bin/sh
# Guess: a grammar made of a JSON schema takes every text that is valid under the schema.
# Is: llguidance takes an object's keys in the order of the schema's `properties` alone, and further ones behind them. A
# reply in another order is valid JSON and cannot be sampled; a model that prefers it is pushed off its distribution.
# Seen in 1.9.1 (and in xgrammar 0.2.8, which needs torch and so has no script).
# Here: docs/decisions.md, strict tools: log-probabilities under the mask.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'llguidance==1.9.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import json
import sys

from llguidance import LLMatcher, LLTokenizer

tokenizer = LLTokenizer("byte")
number = {"type": "integer"}
schema = {"type": "object", "properties": {"score": number, "page": number}, "required": ["score", "page"]}


def taken(text):
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(schema)))
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


print("versions: llguidance", importlib.metadata.version("llguidance"))
print("behaviour: llguidance refuses a valid object whose keys are not in the order of the schema's properties.")
expected = {
    '{"score": 1, "page": 2}': True,
    '{"score": 1, "page": 2, "more": 3}': True,
    '{"page": 2, "score": 1}': False,
    '{"more": 3, "score": 1, "page": 2}': False,
}
seen = {text: taken(text) for text in expected}
for text, fine in seen.items():
    print("seen:", text, "→", "taken" if fine else "refused")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
