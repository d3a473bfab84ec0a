"""Write the Helm chart beside this file from the kustomize production overlay, so that both say the same.

``python deploy/helm/build.py``. What differs from cluster to cluster becomes a value; everything else stays as it is.
The templates use Go's own actions and Helm's ``toJson`` and ``sha256sum`` alone.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))
from tests.support.rendering import DEPLOY, kustomize, with_component  # noqa: E402  # the root is no package's folder

KUBERNETES = DEPLOY / "kubernetes"
OPENING, CLOSING = "⟦", "⟧"
VERSION = "0.1.0"
LEFT_OUT_KINDS = ("Namespace", "Secret")
"""``helm install --create-namespace`` makes the one, ``docs/gpus.md`` the other."""
PARTS = ("engine", "proxy", "trainer", "judge")
NOTES = {
    "image": "Where the images of deploy/docker/Dockerfile are: a registry with its slash, and their tag.",
    "secret": "An existing Secret: keys.json, engine-key, store-url, trainer, judge, judge-key (docs/gpus.md, step 1).",
    "settings": "slipstream.toml. Running proxies take over engine.urls and engine.router; all else starts the pods anew, one by one.",
    "storage": "adapters need ReadWriteMany. class: a StorageClass; empty: the cluster's own.",
    "engine": "args are vLLM's: the model's name and its limits have to be those of the settings.",
    "proxy": "More than one needs PostgreSQL (store-url in the secret).",
    "egress": "Network policies for what each part reaches, beside those for what reaches it.",
}


def value(path: str) -> str:
    """A marker for a value, whatever its type."""
    return f"{OPENING}toJson .Values.{path}{CLOSING}"


def plain(path: str) -> str:
    """A marker for a text within a text."""
    return f"{OPENING}.Values.{path}{CLOSING}"


def by_name(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    return next(o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))


def workload(objects: list[dict[str, Any]], part: str) -> dict[str, Any]:
    kinds = ("StatefulSet", "Deployment")
    return next(o for o in objects if o["kind"] in kinds and o["metadata"]["name"] == part)


def take_out(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Put markers in place of what differs. → The values, as they stood there."""
    values: dict[str, Any] = {"image": {"registry": "", "tag": VERSION}, "secret": "slipstream"}
    config = by_name(objects, "ConfigMap", "slipstream")["data"]
    values["settings"], config["slipstream.toml"] = config["slipstream.toml"], value("settings")
    sizes = {"adapters": ("PersistentVolumeClaim", "adapters"), "trainer": ("PersistentVolumeClaim", "trainer-data")}
    values["storage"] = {"class": ""}
    for name, where in sizes.items():
        _size(by_name(objects, *where)["spec"], values["storage"], name)
    for part in PARTS:
        made = workload(objects, part)
        found = values[part] = {} if part in ("engine", "proxy") else {"enabled": True}
        template, (container,) = made["spec"]["template"], made["spec"]["template"]["spec"]["containers"]
        if part in ("engine", "proxy"):
            found["replicas"], made["spec"]["replicas"] = made["spec"]["replicas"], value(f"{part}.replicas")
            name = {"engine": "models", "proxy": "spool"}[part]
            _size(made["spec"]["volumeClaimTemplates"][0]["spec"], values["storage"], name)
        if part == "engine":
            for field in ("image", "args"):
                found[field], container[field] = container[field], value(f"engine.{field}")
        else:
            name = container["image"].rpartition(":")[0]
            container["image"] = f"{plain('image.registry')}{name}:{plain('image.tag')}"
            template["metadata"]["annotations"]["checksum/settings"] = f"{OPENING}sha256sum .Values.settings{CLOSING}"
        found["resources"], container["resources"] = container["resources"], value(f"{part}.resources")
        _secret(template)
    return values


def _size(spec: dict[str, Any], storage: dict[str, str], name: str) -> None:
    request = spec["resources"]["requests"]
    storage[name], request["storage"] = request["storage"], value(f"storage.{name}")
    spec["storageClassName"] = f"{OPENING}class{CLOSING}"


def _secret(template: dict[str, Any]) -> None:
    """Every mention of the Secret."""

    def walk(node: Any) -> None:
        for one in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(one)
        if isinstance(node, dict) and "secretKeyRef" in node:
            node["secretKeyRef"]["name"] = value("secret")
        if isinstance(node, dict) and "secretName" in node:
            node["secretName"] = value("secret")

    walk(template)


def scale(objects: list[dict[str, Any]], values: dict[str, Any]) -> list[dict[str, Any]]:
    """The autoscalers, with their markers."""
    scalers = [copy.deepcopy(o) for o in objects if o["kind"] == "HorizontalPodAutoscaler"]
    for scaler in scalers:
        part, spec = scaler["metadata"]["name"], scaler["spec"]
        found: dict[str, Any] = {"enabled": False, "min": spec["minReplicas"], "max": spec["maxReplicas"]}
        spec["minReplicas"], spec["maxReplicas"] = value(f"{part}.autoscaling.min"), value(f"{part}.autoscaling.max")
        found["metrics"], spec["metrics"] = spec["metrics"], value(f"{part}.autoscaling.metrics")
        values[part]["autoscaling"] = found
    return scalers


def text_of(made: dict[str, Any]) -> str:
    """An object as a template."""
    made["metadata"].pop("namespace", None)
    text = yaml.safe_dump(made, sort_keys=False, allow_unicode=True, width=10_000)
    text = re.sub(rf"^( *)storageClassName: '?{OPENING}class{CLOSING}'?\n", _storage_class, text, flags=re.MULTILINE)
    text = re.sub(rf"'{OPENING}([^{CLOSING}]*){CLOSING}'", r"{{ \1 }}", text)
    text = re.sub(rf"{OPENING}([^{CLOSING}]*){CLOSING}", r"{{ \1 }}", text)
    text = re.sub(r"(\{\{ sha256sum [^}]*\}\})", r'"\1"', text)
    return re.sub(
        r"^( *)(replicas: \{\{ toJson \.Values\.)(\w+)(\.replicas \}\}\n)", _replicas, text, flags=re.MULTILINE
    )


def _storage_class(match: re.Match[str]) -> str:
    line = f"{match[1]}storageClassName: {{{{ toJson .Values.storage.class }}}}\n"
    return f"{{{{- if .Values.storage.class }}}}\n{line}{{{{- end }}}}\n"


def _replicas(match: re.Match[str]) -> str:
    """Where an autoscaler decides, its number stays."""
    return f"{{{{- if not .Values.{match[3]}.autoscaling.enabled }}}}\n{match[0]}{{{{- end }}}}\n"


def condition(made: dict[str, Any]) -> str | None:
    """The value that an object depends on."""
    name, kind = made["metadata"]["name"], made["kind"]
    if kind == "HorizontalPodAutoscaler":
        return f"{name}.autoscaling.enabled"
    if kind == "NetworkPolicy" and made["spec"]["policyTypes"] == ["Egress"]:
        return "egress.enabled"
    part = name.removesuffix("-data")
    return f"{part}.enabled" if part in ("trainer", "judge") else None


def schema_of(value: Any, *, free: bool = False) -> dict[str, Any]:
    """What Helm checks values with: a name that is not in the chart is refused."""
    if isinstance(value, dict):
        known = {n: schema_of(v, free=n in ("resources", "metrics")) for n, v in value.items()}
        return {"type": "object"} if free else {"type": "object", "properties": known, "additionalProperties": False}
    kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
    return {"type": kinds[type(value)]}


def files() -> dict[str, str]:
    """The chart: path → text."""
    objects = kustomize(KUBERNETES / "overlays" / "production")
    scaled = with_component(objects, KUBERNETES / "components" / "autoscaling")
    objects = [o for o in objects if o["kind"] not in LEFT_OUT_KINDS]
    values = take_out(objects)
    objects += scale(scaled, values)
    values["egress"] = {"enabled": True}
    found: dict[str, list[str]] = {}
    for made in objects:
        name = made["metadata"]["name"]
        part = name if name in PARTS else "network" if made["kind"] == "NetworkPolicy" else "shared"
        text, when = f"---\n{text_of(made)}", condition(made)
        found.setdefault(part, []).append(f"{{{{- if .Values.{when} }}}}\n{text}{{{{- end }}}}\n" if when else text)
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema_of(values)}
    schema["properties"]["global"] = {"type": "object"}
    chart = {"apiVersion": "v2", "name": "slipstream", "type": "application", "version": VERSION, "appVersion": VERSION}
    chart |= {"description": "Agents that get better at their own work.", "kubeVersion": ">=1.27.0-0"}
    head = "# Written by build.py from deploy/kubernetes.\n"
    return {
        ".helmignore": "build.py\n",
        "Chart.yaml": head + yaml.safe_dump(chart, sort_keys=False),
        "values.yaml": head + _values_text(values),
        "values.schema.json": json.dumps(schema, indent=1) + "\n",
        **{f"templates/{part}.yaml": "".join(texts) for part, texts in sorted(found.items())},
    }


class _Block(yaml.SafeDumper):
    """Long texts as they are read."""


_Block.add_representer(
    str, lambda d, s: d.represent_scalar("tag:yaml.org,2002:str", s, style="|" if "\n" in s else None)
)


def _values_text(values: dict[str, Any]) -> str:
    parts = []
    for name, one in values.items():
        note = f"# {NOTES[name]}\n" if name in NOTES else ""
        parts.append(note + yaml.dump({name: one}, Dumper=_Block, sort_keys=False, allow_unicode=True, width=10_000))
    return "\n".join(parts)


def main() -> None:
    for name, text in files().items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(text)


if __name__ == "__main__":
    main()
