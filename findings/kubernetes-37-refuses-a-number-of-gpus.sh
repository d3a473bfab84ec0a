#!/bin/sh
# Guess: the Python client takes what the API server takes: limits of nvidia.com/gpu: 1 and cpu: 0.5.
# Is: since 37 its models are pydantic's, and refuse a number as a quantity, and a typed-wrong name; but what is read
# from an object that it does not know is dropped without a word, so reading and writing back loses it.
# Seen in kubernetes 37.0.1 (November 2026).
# Here: tests/deploy/test_kubernetes.py reads manifests itself; deploy/kubernetes/base/trainer.yaml has GPUs as text.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'kubernetes==37.0.1'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys

from kubernetes import client

api = client.ApiClient()


def made(make):
    try:
        return api.sanitize_for_serialization(make())
    except ValueError as error:
        return f"{type(error).__name__}: {error.errors()[0]['type']}"


pod = {"containers": [{"name": "a", "newField": 1, "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
made_of = {
    "a text": lambda: client.V1ResourceRequirements(limits={"nvidia.com/gpu": "1"}),
    "a number of GPUs": lambda: client.V1ResourceRequirements(limits={"nvidia.com/gpu": 1}),
    "half a CPU": lambda: client.V1ResourceRequirements(limits={"cpu": 0.5}),
    "an unknown field, given": lambda: client.V1Container(name="a", newField=1),
    "an unknown field, read": lambda: client.V1PodSpec.from_dict(pod),
}
print("versions: kubernetes", importlib.metadata.version("kubernetes"))
print("behaviour: the client refuses a number as a quantity, and drops unknown fields of what it reads.")
seen = {name: made(make) for name, make in made_of.items()}
for name, told in seen.items():
    print(f"seen: {name}: {told}")
limits = {"limits": {"nvidia.com/gpu": "1"}}
expected = [limits, "ValidationError: string_type", "ValidationError: string_type", "ValidationError: extra_forbidden"]
same = list(seen.values()) == [*expected, {"containers": [{"name": "a", "resources": limits}]}]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
