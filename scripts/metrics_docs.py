"""Write ``docs/reference/metrics.md`` from the metrics that the code registers: ``python scripts/metrics_docs.py`` (``--check``: exit 1 when it is not current)."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "metrics.md"
REGISTRIES = (
    ("Proxy: control plane", "slipstream_proxy.control.observe.metrics", "On the proxy's `/metrics` too, while the control plane answers."),
    ("Proxy: the plug-in siblings", "slipstream_siblings.metrics", "Likewise."),
    ("Judge", "slipstream_judge.model.metrics", "On `judge.metrics_host`:`judge.metrics_port`."),
    ("Trainer", "slipstream_trainer.versions.events", "On `trainer.metrics_host`:`trainer.metrics_port`."),
)  # fmt: skip
HEAD = """# Metrics

Written by `scripts/metrics_docs.py` from the code; a test keeps them equal. Names are Prometheus's: base units, `_total` for counters. A histogram
`x` has the series `x_bucket`, `x_sum` and `x_count`. Labels take values from small fixed sets; where
they are names (adapters, sources of rewards, kinds of events) their number is capped. Queries aggregate over `instance`. Dashboards: `deploy/grafana/`, alerts: `deploy/prometheus/alerts.yml`.
"""


@dataclass(frozen=True)
class Family:
    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> set[str]:
        """Names that queries may use."""
        return {self.name + s for s in ("_bucket", "_sum", "_count")} if self.kind == "histogram" else {self.name}


@dataclass(frozen=True)
class Part:
    title: str
    where: str
    families: list[Family]


def data_plane() -> Part:
    """Its families stand in a table of its own; what a running proxy says is compared with it in tests/integration/test_observe.py."""
    from slipstream_proxy.data.observe.exposition import METRIC_FAMILIES

    families = [Family(name, kind, text, labels) for name, (kind, text, labels) in METRIC_FAMILIES.items()]
    return Part("Proxy: data plane", "On the proxy's `/metrics`, summed over its workers.", families)


def registries(module: Any) -> Iterator[Any]:
    """The module's own registry, and those of its classes that make one."""
    from prometheus_client import CollectorRegistry

    for value in vars(module).values():
        if isinstance(value, CollectorRegistry):
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__ and value.__name__.endswith("Metrics"):
            if inspect.signature(value).parameters:  # a part of another, which hands it its registry
                continue
            made = value()
            if isinstance(getattr(made, "registry", None), CollectorRegistry):
                yield made.registry


def collected(module: str) -> list[Family]:
    found: dict[str, Family] = {}
    for registry in registries(importlib.import_module(module)):
        for collector, names in registry._collector_to_names.items():
            labels = tuple(getattr(collector, "_labelnames", ()))
            for family in collector.describe() if hasattr(collector, "describe") else collector.collect():
                name = family.name + "_total" if family.type == "counter" else family.name
                if name.startswith(("slipstream_", "gen_ai_")):
                    found[name] = Family(name, family.type, family.documentation, labels)
            assert names
    return list(found.values())


def parts() -> list[Part]:
    there = [r for r in REGISTRIES if importlib.util.find_spec(r[1]) is not None]
    return [data_plane(), *(Part(title, where, collected(module)) for title, module, where in there)]


def page() -> str:
    lines = [HEAD]
    for part in parts():
        lines += [f"## {part.title}", "", part.where, "", "| metric | type | labels | what |", "|---|---|---|---|"]
        for f in part.families:
            text = f.text.replace("|", "\\|").strip()
            lines.append(f"| `{f.name}` | {f.kind} | {', '.join(f'`{x}`' for x in f.labels)} | {text} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write docs/reference/metrics.md.")
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    if PAGE.is_file() and PAGE.read_text() == page():
        return 0
    if not check:
        PAGE.write_text(page())
    print(f"{'stale' if check else 'written'}: docs/reference/{PAGE.name}")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main())
