#!/bin/sh
# Guess: reasoning-gym's score_answer gives 1 for the right answer, 0 for a wrong one, and something for one in words.
# Is: without a scorer of its own (a third of the tasks: gcd, lcm, basic_arithmetic, ...) a task pays the share of the
# answer's characters that the right one takes: for 13, a wrong 113 gets 0.67, "the answer is 13" 0.13.
# Seen in 0.1.25.
# Here: benchmarks/peers/tasks.py takes tasks from it and has a reward of its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'reasoning-gym==0.1.25'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys
import warnings

warnings.simplefilter("ignore")
import reasoning_gym

task = reasoning_gym.create_dataset("simple_equations", size=3, seed=1)
entry = {**task[0], "answer": "13"}
print("versions: reasoning-gym", importlib.metadata.version("reasoning-gym"))
print("behaviour: a wrong number that holds the right one's digits gets more than the right number in a sentence.")
expected = {"13": 1.0, "113": 0.667, "135": 0.667, "31": 0.0, "the answer is 13": 0.125, "13 or 31": 0.25}
seen = {said: round(task.score_answer(said, entry), 3) for said in expected}
for said, score in seen.items():
    print(f"seen: {said!r} for '13': {score}")
same = seen == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
