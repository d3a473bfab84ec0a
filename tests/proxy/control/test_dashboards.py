"""The dashboards after a demo at the default settings: what their panels ask of the control plane is exported there.

tests/integration/test_observe.py asks a real Prometheus the same of a real engine and trainer.
"""

from __future__ import annotations

import json
import re

import pytest
from tests.support.page_data import PLANE, Runs, make_demo
from tests.support.plane import until
from tests.support.prometheus import samples
from tests.support.rendering import DEPLOY

from slipstream_proxy.data.observe.exposition import METRIC_FAMILIES

DATA_PLANE = tuple(METRIC_FAMILIES)
BOARDS = ("overview", "trainer", "adapters")
SELECTOR = re.compile(r"\b(slipstream_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
OF_A_JUDGE = ("slipstream_judge_",)
NOT_IN_A_DEMO = {"slipstream_sidecar_up"}
FIGURES = {
    "reward_std": 0.2, "truncated": 0.01, "ratio": 1.0, "continuations": 0.9, "padding": 0.1, "saving": 0.4, "memory_mib": 900,
    "untrainable": {"temperature 0": 2},
}  # fmt: skip
"""What a real step tells beside what ``step_event`` does."""


def selectors(board: str) -> list[tuple[str, str, dict[str, str]]]:
    """(Panel, metric, label → pattern): everything that its queries name of the control plane."""
    found = []
    for panel in json.loads((DEPLOY / "grafana" / "dashboards" / f"{board}.json").read_text())["panels"]:
        for target in panel.get("targets", ()):
            expr = target["expr"]
            for word in ("$model", "$adapter", "$tag", "$value"):
                expr = expr.replace(word, ".*")
            for name, inside in SELECTOR.findall(expr):
                if not name.startswith((*DATA_PLANE, *OF_A_JUDGE)) and name not in NOT_IN_A_DEMO:
                    found.append((panel["title"], name, {k: v for k, _, v in MATCHER.findall(inside)}))
    return found


def empty(board: str, series: dict[str, list[tuple[dict[str, str], float]]]) -> list[str]:
    wrong = []
    for title, name, labels in selectors(board):
        fits = [x for x, _ in series.get(name, ()) if all(re.fullmatch(v, x.get(k, "")) for k, v in labels.items())]
        if not fits:
            wrong.append(f"{title}: {name}{labels}")
    return wrong


async def test_no_panel_is_empty_after_a_demo(make_plane):
    plane = await make_plane(**{**PLANE, "gate": {"holdout": 0.3}})
    await make_demo(plane)
    runs = Runs(plane, hours=0.0)
    await runs.talk("check-now", 1, task="inbox-1", split="eval")
    await runs.reward("check-now", 0.5)
    event = {
        "kind": "step",
        "data": {"step": 4, "batch": "b", "adapter": "tiny@4", "tokens": 900, "seconds": 2.0, **FIGURES},
    }
    assert (await plane.ask("POST", "/training/events", event))[0] == 200

    series: dict[str, list[tuple[dict[str, str], float]]] = {}

    async def scraped() -> list[str]:
        reply = await plane.client.get("/internal/metrics", headers=plane.as_())
        assert reply.status == 200
        series.clear()
        series.update(samples(await reply.text()))
        return [line for board in BOARDS for line in empty(board, series)]

    async def none_is_empty() -> bool:
        return not await scraped()

    try:
        await until(none_is_empty)
    except AssertionError:
        assert await scraped() == []
    (mean,) = [value for labels, value in series["slipstream_recent_reward_mean"] if labels["role"] == "held-out"]
    assert mean == pytest.approx(0.5)
    low, high = (series[f"slipstream_recent_reward_{end}"] for end in ("low", "high"))
    assert all(a <= b for (_, a), (_, b) in zip(low, high, strict=True))
    ((labels, verdict),) = series["slipstream_gate_verdict"]
    adapters = (await plane.ask("GET", "/adapters"))[1]["adapters"]
    (gate,) = [a["gate"] for a in adapters if a["name"] == labels["adapter"]]
    assert verdict == {"accept": 1, "undecided": 0, "rollback": -1}[gate["decision"]]
    assert series["slipstream_training_memory_bytes"][0][1] == 900 * 2**20
    assert ({"reason": "temperature 0"}, 2.0) in series["slipstream_training_left_out_total"]


def test_that_check_can_fail():
    assert len(selectors("trainer")) > 20
    assert len(empty("trainer", {})) == len(selectors("trainer"))
    series = {name: [({"model": "m"}, 1.0)] for _, name, _ in selectors("overview")}
    assert any('"control"' in line or "'control'" in line for line in empty("overview", series))
