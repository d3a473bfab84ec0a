"""The Helm chart: it says what the kustomize overlay says, and its values change what they name."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.rendering import DEPLOY, helm, kustomize, load_script, with_component

CHART = DEPLOY / "helm"
KUBERNETES = DEPLOY / "kubernetes"
ADDED_ANNOTATION = "checksum/settings"


@pytest.fixture
def values() -> dict[str, Any]:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def named(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {(o["kind"], o["metadata"]["name"]): copy.deepcopy(o) for o in objects}
    assert len(found) == len(objects)
    for o in found.values():
        o["metadata"].pop("namespace", None)
        template = o.get("spec", {}).get("template", {})
        template.get("metadata", {}).get("annotations", {}).pop(ADDED_ANNOTATION, None)
    return found


def test_the_chart_is_what_its_program_writes():
    for name, text in load_script(CHART / "build.py").files().items():
        assert (CHART / name).read_text() == text, f"{name}: python deploy/helm/build.py"


def test_by_default_it_makes_what_the_overlay_makes(values):
    overlay = named(kustomize(KUBERNETES / "overlays" / "production"))
    wanted = {key: o for key, o in overlay.items() if key[0] not in ("Namespace", "Secret")}
    assert named(helm(CHART, values)) == wanted


def test_autoscalers_take_the_place_of_fixed_numbers(values):
    for part in ("engine", "proxy"):
        values[part]["autoscaling"]["enabled"] = True
    overlay = kustomize(KUBERNETES / "overlays" / "production")
    wanted = named(with_component(overlay, KUBERNETES / "components" / "autoscaling"))
    found = named(helm(CHART, values))
    for key in [("HorizontalPodAutoscaler", "engine"), ("HorizontalPodAutoscaler", "proxy"), ("StatefulSet", "engine")]:
        assert found[key] == wanted[key]
    assert "replicas" not in found["StatefulSet", "proxy"]["spec"]


@pytest.mark.parametrize("version", ["1.31", "1.37"])
def test_objects_follow_the_published_schemas_with_every_switch_on(values, version):
    validator = pytest.importorskip("kubernetes_validate")
    for part in ("engine", "proxy"):
        values[part]["autoscaling"]["enabled"] = True
    values["storage"]["class"] = "fast"
    objects = helm(CHART, values)
    for o in objects:
        validator.validate(o, version, strict=True)
    claims = [o["spec"] for o in objects if o["kind"] == "PersistentVolumeClaim"]
    claims += [t["spec"] for o in objects if o["kind"] == "StatefulSet" for t in o["spec"]["volumeClaimTemplates"]]
    assert len(claims) == 4 and {c["storageClassName"] for c in claims} == {"fast"}


def test_what_is_switched_off_is_left_out(values):
    values["judge"]["enabled"] = values["trainer"]["enabled"] = values["egress"]["enabled"] = False
    found = named(helm(CHART, values))
    assert not {("Deployment", "judge"), ("Deployment", "trainer"), ("NetworkPolicy", "deny-egress")} & found.keys()
    assert ("NetworkPolicy", "deny-ingress") in found


def test_other_settings_start_the_pods_anew_and_reach_all(values):
    before = helm(CHART, values)
    values["settings"] += "\n[gate]\nholdout = 0.1\n"
    values["image"] = {"registry": "registry.example/", "tag": "0.2.0"}
    values["secret"] = "other"
    after = helm(CHART, values)

    def sums(objects):
        pods = [o["spec"]["template"] for o in objects if "template" in o.get("spec", {})]
        return {s for p in pods if (s := p["metadata"]["annotations"].get(ADDED_ANNOTATION))}

    assert len(sums(before)) == len(sums(after)) == 1 and sums(before) != sums(after)
    text = json.dumps(after)
    assert text.count("registry.example/slipstream-") == 3 and '"name": "slipstream", "key"' not in text
    assert '"secretName": "other"' in text and "holdout = 0.1" in text


def test_a_value_that_the_chart_does_not_know_is_refused(values):
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.validate(values, schema)
    values["engine"]["replica"] = 3
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(values, schema)


@pytest.mark.deploy
@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not here")
def test_helm_makes_the_same(values):
    run = subprocess.run(["helm", "template", "x", str(CHART)], check=True, capture_output=True, text=True, timeout=60)
    assert named([o for o in yaml.safe_load_all(run.stdout) if o]) == named(helm(CHART, values))
