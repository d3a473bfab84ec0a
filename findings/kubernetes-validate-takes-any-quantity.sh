#!/bin/sh
# Guess: kubernetes-validate with strict=True refuses what the API server refuses.
# Is: it looks at names and types of fields. "4 GB" of memory, a limit below its request, a selector that no label
# matches, and a port of 99999 pass: these are rules in the server's code and not in the published schemas.
# Seen in 1.37, with the schemas of 1.34.
# Here: tests/deploy/test_kubernetes.py uses it, and so has tests of its own for what it does not see.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'kubernetes-validate==1.37.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys

import kubernetes_validate


def pod(**container):
    spec = {"containers": [{"name": "c", "image": "i", **container}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}


def deployment(selector, label):
    template = {"metadata": {"labels": {"app": label}}, "spec": pod()["spec"]}
    spec = {"selector": {"matchLabels": {"app": selector}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}


def passes(thing):
    try:
        kubernetes_validate.validate(thing, "1.34", strict=True)
    except kubernetes_validate.ValidationError:
        return False
    return True


print("versions: kubernetes-validate", importlib.metadata.version("kubernetes-validate"))
print("behaviour: strict validation takes quantities that are none, limits below requests and selectors of nothing.")
cases = {
    "a misspelled field": (pod(imagee="x"), False),
    "memory of 4 GB": (pod(resources={"limits": {"memory": "4 GB"}}), True),
    "a limit below its request": (pod(resources={"limits": {"memory": "1Gi"}, "requests": {"memory": "2Gi"}}), True),
    "a selector that no label matches": (deployment("one", "two"), True),
    "port 99999": (pod(ports=[{"containerPort": 99999}]), True),
}
seen = {name: passes(thing) for name, (thing, _) in cases.items()}
for name, fine in seen.items():
    print(f"seen: {name}: {'passes' if fine else 'refused'}")
same = all(seen[name] == expected for name, (_, expected) in cases.items())

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
