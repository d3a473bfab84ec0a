#!/bin/sh
# Guess: a check against Kubernetes' schemas, with strict=True, refuses restartPolicy: never and a container without
# image.
# Is: the published schemas have no list of words and no form of quantities, so it takes both, and "lots" of memory, and
# a CronJob "every day"; only kinds of values and unknown fields are refused. The API server refuses all of them.
# Seen in kubernetes-validate 1.37.0 (October 2026).
# Here: tests/deploy/test_kubernetes.py checks the manifests with it.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'kubernetes-validate==1.37.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import importlib.metadata
import sys

import kubernetes_validate


def pod(container=None, **more):
    one = {"name": "c", "image": "i"} if container is None else container
    spec = {"containers": [one], **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}


job = {"spec": {"template": {"spec": pod()["spec"]}}}
cron = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}}
cases = {
    "restartPolicy: never": (pod(restartPolicy="never"), True),
    "a container without image": (pod({"name": "c"}), True),
    "imagePullPolicy: always": (pod({"name": "c", "image": "i", "imagePullPolicy": "always"}), True),
    "a memory limit of lots": (pod({"name": "c", "image": "i", "resources": {"limits": {"memory": "lots"}}}), True),
    "port 99999": (pod({"name": "c", "image": "i", "ports": [{"containerPort": 99999}]}), True),
    "schedule: every day": ({**cron, "spec": {"schedule": "every day", "jobTemplate": job}}, True),
    "an unknown field": (pod(restart="Never"), False),
    "an environment variable of 1": (pod({"name": "c", "image": "i", "env": [{"name": "A", "value": 1}]}), False),
}
print("versions: kubernetes-validate", importlib.metadata.version("kubernetes-validate"))
print("behaviour: a strict check against Kubernetes' schemas takes any word for a policy, a quantity or a schedule.")
same = True
for what, (manifest, expected) in cases.items():
    try:
        kubernetes_validate.validate(manifest, "1.37", strict=True)
        taken = True
    except kubernetes_validate.ValidationError:
        taken = False
    print(f"seen: {what}: {'taken' if taken else 'refused'}")
    same &= taken == expected

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
