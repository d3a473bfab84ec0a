"""What Compose and kustomize make of our files: as much of each as the files use."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonpatch
import yaml
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
OWN_ENV = {
    "SLIPSTREAM_LOG_FORMAT",
    "SLIPSTREAM_LOG_LEVEL",
    "SLIPSTREAM_API_KEY",
    "SLIPSTREAM_API_KEY_FILE",
    "SLIPSTREAM_URL",
}
"""Read by the programs themselves, not settings."""
REQUIRED = {"POSTGRES_PASSWORD": "pw-of-a-test", "GRAFANA_PASSWORD": "pw-of-a-test"}


def interpolate(text: str, env: dict[str, str]) -> str:
    """Compose's ``${NAME:-default}`` and ``${NAME:?why}``; any other use of ``$`` is an error here."""

    def value(match: re.Match[str]) -> str:
        name, op, rest = match.groups()
        if env.get(name):
            return env[name]
        assert op == ":-", f"{name} is required: {rest}"
        return rest

    done = re.sub(r"\$\{(\w+)(:-|:\?)([^}]*)\}", value, text)
    lines = [line for line in done.splitlines() if "$" in line and not line.lstrip().startswith("#")]
    assert not lines, lines
    return done


def compose(env: dict[str, str] | None = None) -> dict[str, Any]:
    return yaml.safe_load(interpolate((DEPLOY / "compose.yaml").read_text(), REQUIRED if env is None else env))


def flags(argv: list[str]) -> dict[str, str]:
    """``--name=value``, ``--name value`` and ``--name`` as one dict; a bare flag's value is empty."""
    found: dict[str, str] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            assert name not in found, f"{name} twice"
            found[name] = value
        else:
            assert name and not found[name], f"stray {word}"
            found[name] = word
    return found


def load_script(path: Path) -> Any:
    """A program's module, without its package."""
    spec = importlib.util.spec_from_file_location("deploy_" + path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


CLUSTER_WIDE = {"Namespace"}


def _documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def _generated(kind: str, folder: Path, spec: dict[str, Any]) -> dict[str, Any]:
    data = {}
    for name in spec["files"]:
        path = folder / name
        data[path.name] = path.read_text() if path.is_file() else f"<{path.name}>"
        assert path.is_file() or "secrets/" in name, f"{path} is not there"
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {"name": spec["name"]},
        "stringData" if kind == "Secret" else "data": data,
    }


def _patched(objects: list[dict[str, Any]], folder: Path, spec: dict[str, Any]) -> list[dict[str, Any]]:
    for patch in spec.get("patches", []):
        target = patch["target"]
        hit = [o for o in objects if o["kind"] == target["kind"] and o["metadata"]["name"] == target["name"]]
        assert len(hit) == 1, patch
        changed = jsonpatch.apply_patch(hit[0], yaml.safe_load((folder / patch["path"]).read_text()))
        objects[objects.index(hit[0])] = changed
    return objects


def with_component(objects: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """The objects, changed by a kustomize component."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert spec["kind"] == "Component" and set(spec) <= {"apiVersion", "kind", "resources", "patches"}, set(spec)
    more = [o for name in spec.get("resources", []) for o in _documents(folder / name)]
    return _patched([*copy.deepcopy(objects), *more], folder, spec)


def kustomize(folder: Path) -> list[dict[str, Any]]:
    """The objects of a kustomization. Unknown fields of it are an error, so that nothing is silently ignored."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {
        "apiVersion", "kind", "namespace", "resources", "configMapGenerator", "secretGenerator", "generatorOptions", "images", "patches", "replicas",
        "components",
    }  # fmt: skip
    assert set(spec) <= known, set(spec) - known
    assert spec.get("generatorOptions") == {"disableNameSuffixHash": True}
    objects: list[dict[str, Any]] = []
    for resource in spec["resources"]:
        path = folder / resource
        objects += kustomize(path.resolve()) if path.is_dir() else _documents(path)
    objects = copy.deepcopy(objects)
    for kind, field in (("ConfigMap", "configMapGenerator"), ("Secret", "secretGenerator")):
        for one in spec.get(field, []):
            before = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == one["name"]]
            assert bool(before) == (one.get("behavior") == "replace"), f"{kind} {one['name']}: {one.get('behavior')}"
            objects = [o for o in objects if o not in before] + [_generated(kind, folder, one)]
    for component in spec.get("components", []):
        objects = with_component(objects, (folder / component).resolve())
    objects = _patched(objects, folder, spec)
    for replica in spec.get("replicas", []):
        hit = [o for o in objects if o["metadata"]["name"] == replica["name"] and "replicas" in o.get("spec", {})]
        assert hit, replica
        for o in hit:
            o["spec"]["replicas"] = replica["count"]
    for o in objects:
        if o["kind"] not in CLUSTER_WIDE:
            o["metadata"]["namespace"] = spec["namespace"]
    return objects


def helm(folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a chart with these values. Whatever its templates use beyond this is an error here."""

    def at(path: str) -> Any:
        found: Any = {"Values": values}
        for part in path.removeprefix(".").split("."):
            found = found[part]
        return found

    def said(action: str) -> str:
        if action.startswith("toJson "):
            return json.dumps(at(action.removeprefix("toJson ")))
        if action.startswith("sha256sum "):
            return hashlib.sha256(at(action.removeprefix("sha256sum ")).encode()).hexdigest()
        return str(at(action))

    objects: list[dict[str, Any]] = []
    for path in sorted((folder / "templates").glob("*.yaml")):
        lines, shown = [], [True]
        for line in path.read_text().splitlines():
            if found := re.fullmatch(r"\{\{- if (not )?(\S+) \}\}", line):
                shown.append(shown[-1] and bool(at(found[2])) is not bool(found[1]))
            elif line == "{{- end }}":
                shown.pop()
            elif shown[-1]:
                lines.append(re.sub(r"\{\{ (.+?) \}\}", lambda m: said(m[1]), line))
        assert shown == [True], path
        assert not any("{{" in line for line in lines), path
        objects += [d for d in yaml.safe_load_all("\n".join(lines)) if d]
    return objects


def pods(objects: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(name, workload, pod template) of every workload."""
    return [
        (o["metadata"]["name"], o, o["spec"]["template"])
        for o in objects
        if o["kind"] in {"Deployment", "StatefulSet", "Job"}
    ]


def is_setting(name: str) -> bool:
    """Whether SLIPSTREAM_… is a field of the configuration."""
    from slipstream.config import Config

    section: Any = Config
    for part in name.removeprefix("SLIPSTREAM_").lower().split("__"):
        fields = getattr(section, "model_fields", {})
        if part not in fields:
            return False
        section = fields[part].annotation
    return True
