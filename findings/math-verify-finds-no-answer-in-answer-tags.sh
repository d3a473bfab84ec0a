#!/bin/sh
# Guess: math-verify finds the number in <answer>12</answer>, takes the last of two boxes, and knows that A is A.
# Is: it finds nothing in answer tags, so the reply gets 0; two boxes are one set, which equals neither; A against A is
# False. And 50% is right for 0.5 as well as for 50. No warning tells of any of it.
# Seen in math-verify 0.9.0 with its defaults.
# Here: benchmarks/peers/tasks.py has a reward of its own, which looks for the number in any such text.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'math-verify[antlr4_13_2]==0.9.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import logging
import sys

logging.disable(logging.CRITICAL)
from math_verify import parse, verify

expected = {
    ("12", "The answer is 12."): True,
    ("12", "<answer>12</answer>"): False,
    ("12", "<answer> 12 </answer>"): True,
    ("12", r"\boxed{12}"): True,
    ("12", r"\boxed{11} \boxed{12}"): False,
    ("A", "A"): False,
    ("0.5", "50%"): True,
    ("50", "50%"): True,
}
print("versions: math-verify", importlib.metadata.version("math-verify"))
print("behaviour: math-verify finds no number in <answer>12</answer>, takes two boxes for a set, and A for no answer.")
seen = {case: verify(parse(case[0]), parse(case[1])) for case in expected}
for (gold, said), right in seen.items():
    print(f"seen: {said!r} for {gold!r}: {right}, found {parse(said)[:1]}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
