from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import tomllib
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
import yaml
from tests.support.rendering import DEPLOY, OWN_ENV, flags, is_setting, kustomize, pods

from slipstream.config import load_config
from slipstream.engines.vllm.command import engine_command
from slipstream_proxy.data.routes import health

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ["cpu", "production"]
SECRETS = {"keys.json", "trainer", "judge", "engine-key", "store-url", "judge-key"}
OLDEST, NEWEST = "1.31", "1.37"


@pytest.fixture(params=OVERLAYS)
def overlay(request):
    return request.param, kustomize(FOLDER / "overlays" / request.param)


def of(objects, kind):
    return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}


def config_of(objects, env=None):
    text = of(objects, "ConfigMap")["slipstream"]["data"]["slipstream.toml"]
    return load_config(None, env=env or {}, base=tomllib.loads(text))


def containers(template):
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def environment(container):
    return {e["name"]: e.get("value") for e in container.get("env", [])}


def test_objects_follow_the_published_schemas(overlay):
    validator = pytest.importorskip("kubernetes_validate")
    for o in overlay[1]:
        validator.validate(o, OLDEST, strict=True)
        validator.validate(o, NEWEST, strict=True)


def test_that_check_can_fail():
    validator = pytest.importorskip("kubernetes_validate")
    wrong = of(kustomize(FOLDER / "overlays" / "cpu"), "StatefulSet")["proxy"]
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, NEWEST, strict=True)


def test_names_are_unique_and_namespaced(overlay):
    ids = [(o["kind"], o["metadata"]["name"]) for o in overlay[1]]
    assert len(ids) == len(set(ids))
    assert {o["metadata"].get("namespace") for o in overlay[1] if o["kind"] != "Namespace"} == {"slipstream"}


def test_selectors_match_labels(overlay):
    _, objects = overlay
    labels = {name: template["metadata"]["labels"] for name, _, template in pods(objects)}
    for name, workload, template in pods(objects):
        assert workload["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), name
    selectors = [(f"Service {n}", o["spec"]["selector"]) for n, o in of(objects, "Service").items()]
    selectors += [
        (f"PDB {n}", o["spec"]["selector"]["matchLabels"]) for n, o in of(objects, "PodDisruptionBudget").items()
    ]
    for what, selector in selectors:
        assert sum(selector.items() <= have.items() for have in labels.values()) == 1, what
    known = {have["app.kubernetes.io/name"] for have in labels.values()} | {"judge"}
    for name, policy in of(objects, "NetworkPolicy").items():
        selector = policy["spec"]["podSelector"]
        wanted = {v for v in selector.get("matchLabels", {}).values()} | {
            v for e in selector.get("matchExpressions", []) for v in e["values"]
        }
        assert wanted <= known, name


def test_services_lead_to_ports_that_are_open(overlay):
    _, objects = overlay
    by_label = {template["metadata"]["labels"]["app.kubernetes.io/name"]: template for _, _, template in pods(objects)}
    for name, service in of(objects, "Service").items():
        ports = {
            p["name"]: p["containerPort"]
            for c in containers(by_label[service["spec"]["selector"]["app.kubernetes.io/name"]])
            for p in c["ports"]
        }
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"], name
    for name, policy in of(objects, "NetworkPolicy").items():
        for rule in policy["spec"].get("ingress", []):
            for port in rule["ports"]:
                label = policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name")
                where = [label] if label else [x for x in ("judge", "trainer") if x in by_label]
                assert all(
                    port["port"] in {p["name"] for c in containers(by_label[w]) for p in c["ports"]} for w in where
                ), name


def test_every_pod_is_covered_by_a_policy_that_denies(overlay):
    deny = of(overlay[1], "NetworkPolicy")["deny-ingress"]["spec"]
    assert deny == {"podSelector": {}, "policyTypes": ["Ingress"]}
    engine = of(overlay[1], "NetworkPolicy")["to-engine"]["spec"]["ingress"]
    sources = [
        f.get("podSelector", {}).get("matchLabels", {}).get("app.kubernetes.io/name")
        for rule in engine
        for f in rule["from"]
    ]
    assert [s for s in sources if s] == ["proxy"], "agents reach the engine through the proxy only"


def _selects(selector: dict[str, Any], part: str) -> bool:
    wanted = selector.get("matchLabels", {}).get("app.kubernetes.io/name", part)
    return wanted == part and all(part in e["values"] for e in selector.get("matchExpressions", []))


def _reaches(objects: list[dict[str, Any]], part: str, address: str, port: int) -> bool:
    """Whether the policies let a part reach an address outside of the cluster's pods."""
    for policy in of(objects, "NetworkPolicy").values():
        rules = policy["spec"].get("egress", []) if _selects(policy["spec"]["podSelector"], part) else []
        for rule in rules:
            blocks = [to["ipBlock"] for to in rule.get("to", []) if "ipBlock" in to]
            within = [
                ip_address(address) in ip_network(block["cidr"])
                and not any(ip_address(address) in ip_network(net) for net in block.get("except", []))
                for block in blocks
            ]
            if port in {p["port"] for p in rule["ports"]} and (not rule.get("to") or any(within)):
                return True
    return False


def test_each_part_reaches_what_its_settings_may_name_and_no_private_address():
    """Judges' providers, webhooks and buckets are asked by the proxy, too."""
    objects = kustomize(FOLDER / "overlays" / "production")
    for part in ("proxy", "engine", "judge", "trainer"):
        assert _reaches(objects, part, "93.184.216.34", 443), part
        assert not any(_reaches(objects, part, private, 443) for private in ("10.0.0.7", "169.254.169.254")), part
        assert not _reaches(objects, part, "93.184.216.34", 80), part
    assert _reaches(objects, "proxy", "10.0.0.7", 5432)


def test_volumes_resolve(overlay):
    _, objects = overlay
    claims, maps, secrets = of(objects, "PersistentVolumeClaim"), of(objects, "ConfigMap"), of(objects, "Secret")
    for name, workload, template in pods(objects):
        volumes = {v["name"]: v for v in template["spec"].get("volumes", [])}
        templates = {v["metadata"]["name"] for v in workload["spec"].get("volumeClaimTemplates", [])}
        mounted = {m["name"] for c in containers(template) for m in c["volumeMounts"]}
        assert mounted == set(volumes) | templates, name
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "secret" in volume:
                held = secrets[volume["secret"]["secretName"]]["stringData"]
                assert {i["key"] for i in volume["secret"]["items"]} <= set(held)
        for mount in (m for c in containers(template) for m in c["volumeMounts"]):
            assert mount["mountPath"].startswith("/")


def test_secrets_that_are_asked_for_are_made(overlay):
    _, objects = overlay
    held = {n: set(o["stringData"]) for n, o in of(objects, "Secret").items()}
    assert held["slipstream"] <= SECRETS
    for name, _, template in pods(objects):
        for c in containers(template):
            for e in c.get("env", []):
                if ref := e.get("valueFrom", {}).get("secretKeyRef"):
                    assert ref["key"] in held[ref["name"]] or ref.get("optional"), f"{name}: {e['name']}"
                else:
                    assert "KEY" not in e["name"] and "TOKEN" not in e["name"], (
                        f"{name}: {e['name']} stands in the manifest"
                    )


def test_probes_ask_routes_and_ports_that_exist(overlay):
    known = {"vllm": {"/health"}, "proxy": {"/healthz", "/readyz"}, "trainer": {"/metrics"}, "judge": {"/metrics"}}
    source = inspect.getsource(health.HealthRoutes.answer)
    assert all(f'"{route}"' in source for route in known["proxy"])
    for name, _, template in pods(overlay[1]):
        for c in containers(template):
            probes = {k: v for k, v in c.items() if k.endswith("Probe")}
            assert {"startupProbe", "livenessProbe"} <= set(probes), name
            for probe in probes.values():
                assert probe["httpGet"]["path"] in known[c["name"]]
                assert probe["httpGet"]["port"] in {p["name"] for p in c["ports"]}
    proxy = of(overlay[1], "StatefulSet")["proxy"]["spec"]["template"]["spec"]["containers"][0]
    assert proxy["livenessProbe"]["httpGet"]["path"] == "/healthz", "a proxy without an engine must not be restarted"
    assert proxy["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_environment_names_are_settings(overlay):
    for name, _, template in pods(overlay[1]):
        assert template["spec"]["enableServiceLinks"] is False, "Kubernetes' own SLIPSTREAM_… variables must stay out"
        for c in containers(template):
            for variable in environment(c):
                if variable.startswith("SLIPSTREAM_") and variable not in OWN_ENV:
                    assert is_setting(variable), f"{name}: {variable}"


def test_containers_run_without_rights(overlay):
    for name, _, template in pods(overlay[1]):
        assert template["spec"]["automountServiceAccountToken"] is False
        for c in containers(template):
            assert c["securityContext"]["allowPrivilegeEscalation"] is False and c["securityContext"][
                "capabilities"
            ] == {"drop": ["ALL"]}, name
            assert c["resources"]["limits"]["memory"] and c["resources"]["requests"]["cpu"]
            assert ":" in c["image"] and not c["image"].endswith("latest")
            assert c["securityContext"]["readOnlyRootFilesystem"], name
        assert template["spec"]["securityContext"]["runAsNonRoot"], name
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
    (space,) = of(overlay[1], "Namespace").values()
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_configuration_is_one_and_fits_the_objects(overlay):
    name, objects = overlay
    config = config_of(objects)
    (service,) = [s for s in of(objects, "Service").values() if s["metadata"]["name"] == "engine"]
    assert service["spec"]["clusterIP"] == "None", "its name stands for each pod"
    assert config.engine.urls == [f"dns+http://engine:{service['spec']['ports'][0]['port']}"]
    ports = {w: c["ports"][0]["containerPort"] for w, _, t in pods(objects) for c in containers(t)}
    assert ports["proxy"] == config.proxy.port and ports["trainer"] == config.trainer.metrics_port
    assert config.proxy.host == config.trainer.metrics_host == "0.0.0.0"
    mounts = {w: {m["mountPath"] for c in containers(t) for m in c["volumeMounts"]} for w, _, t in pods(objects)}
    assert {str(config.adapters_dir), str(config.root)} <= mounts["proxy"] & mounts["trainer"] and str(
        config.keys_file
    ) in mounts["proxy"]
    assert str(config.adapters_dir) in mounts["engine"]
    if name == "production":
        assert ports["judge"] == config.judge.metrics_port and config.judge.metrics_host == "0.0.0.0"
        judge = containers(dict((w, t) for w, _, t in pods(objects))["judge"])[0]
        assert config.judge.api_key_env in environment(judge) and config.reward.weights == {config.judge.name: 1.0}
    for workload, _, template in pods(objects):
        if workload != "engine":
            args = template["spec"]["containers"][0]["args"]
            assert args[0] == workload and args[1:3] == ["--config", "/etc/slipstream/slipstream.toml"]
            if workload != "proxy":
                assert args[3:] == ["--url", f"http://proxy:{config.proxy.port}"]


def test_proxies_are_replicated_where_they_share_a_store(overlay):
    name, objects = overlay
    proxy = of(objects, "StatefulSet")["proxy"]["spec"]
    shared = "SLIPSTREAM_STORE__URL" in environment(containers(proxy["template"])[0])
    assert proxy["replicas"] == (2 if name == "production" else 1) and shared == (name == "production")
    assert [t["metadata"]["name"] for t in proxy["volumeClaimTemplates"]] == ["data"], "a spool of its own each"
    assert of(objects, "Service")["proxy"]["spec"]["sessionAffinity"] == "ClientIP"
    claim = of(objects, "PersistentVolumeClaim")["adapters"]["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"] or name == "cpu"
    assert of(objects, "PodDisruptionBudget")["proxy"]["spec"]["maxUnavailable"] == 1


def test_vllm_gets_what_up_gives_it(overlay):
    name, objects = overlay
    command = engine_command(config_of(objects), gpu=name != "cpu")
    container = containers(of(objects, "StatefulSet")["engine"]["spec"]["template"])[0]
    reached = {"--host": "0.0.0.0"}  # noqa: S104 - by the other pods
    assert flags(container["args"]) == {**flags(command.argv[3:]), **reached}
    assert container["command"][1:] == command.argv[1:3]
    wanted = {k: v for k, v in command.env.items() if k != "LD_PRELOAD"}
    assert {k: environment(container).get(k) for k in wanted} == wanted
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (name != "cpu")


@pytest.mark.deploy
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not here")
@pytest.mark.parametrize("name", OVERLAYS)
def test_kustomize_makes_the_same(name, tmp_path):
    """What these tests look at is what kubectl would apply."""
    tree = tmp_path / "kubernetes"
    shutil.copytree(FOLDER, tree, ignore=shutil.ignore_patterns("secrets"))
    secrets = tree / "overlays" / name / "secrets"
    secrets.mkdir()
    for file in SECRETS:
        (secrets / file).write_text("x")
    run = subprocess.run(
        ["kubectl", "kustomize", str(tree / "overlays" / name)], check=False, capture_output=True, text=True, timeout=60
    )
    if run.returncode and "unknown command" in run.stderr:
        pytest.skip("this kubectl has no kustomize")
    assert run.returncode == 0, run.stderr
    theirs = {(o["kind"], o["metadata"]["name"]): o for o in yaml.safe_load_all(run.stdout)}
    ours = {(o["kind"], o["metadata"]["name"]): o for o in kustomize(tree / "overlays" / name)}
    assert set(theirs) == set(ours)
    for key, o in ours.items():
        if key[0] == "Secret":
            assert set(theirs[key]["data"]) == set(o["stringData"])
        else:
            assert json.dumps(theirs[key], sort_keys=True) == json.dumps(o, sort_keys=True), key
