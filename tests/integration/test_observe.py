"""A real Prometheus scrapes a real proxy: what the dashboards and the alerts ask has an answer."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.integration.adapters import make_adapter
from tests.integration.load import body
from tests.support import ROOT, free_port, process, wait_for

from slipstream.client import Client
from slipstream.contract import AdapterIn, Event, RewardIn

PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not here (Debian: apt install prometheus)"),
]
DEPLOY = ROOT / "deploy"
EPISODES = 8
ADAPTER = "inbox@901"
"""A name of its own: the engine is shared with other tests."""
STEP = {"loss": 0.1, "kl": 0.01, "entropy": 1.0, "clipped": 0.0, "staleness": 0, "logprob_gap": 0.01, "reward": 0.5, "tokens_per_second": 9.0, "grad_norm": 1.0}  # fmt: skip


def panels() -> list[tuple[str, str]]:
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [
                (f"{path.stem}: {panel['title']}", t["expr"].replace("$__rate_interval", "30s"))
                for t in panel.get("targets", [])
            ]
    return found


def alerts() -> list[tuple[str, str]]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return [(r.get("alert") or r["record"], r["expr"]) for g in groups for r in g["rules"]]


def of_the_proxy(expr: str) -> bool:
    """Judge and trainer are not part of this test; recorded series need half an hour."""
    names = re.findall(r"\b(slipstream[\w:]*|up)\b", expr)
    return bool(names) and not any(
        n.startswith(("slipstream_judge_", "slipstream_trainer_", "slipstream:")) for n in names
    )


def use(url: str, folder: Path) -> None:
    """Episodes of two adapters and both splits, rewards, a step: what a morning leaves behind."""

    def call(client: httpx.Client, episode: str, split: str, **more: Any) -> None:
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": "t", "x-slipstream-split": split}
        client.post("/v1/chat/completions", json=body(stream=False, **more), headers=headers).raise_for_status()

    with httpx.Client(base_url=url, timeout=60, trust_env=False) as http, Client(url) as client:
        client.add_adapter(AdapterIn(path=make_adapter(folder / ADAPTER, 1).name, step=1))
        wait_for(lambda: ADAPTER in client.adapters().live.values(), 60, 0.1, "the adapter is live")
        for n in range(EPISODES):
            split = "eval" if n % 4 == 3 else "train"
            call(http, f"e{n}", split)
            client.add_reward(f"e{n}", RewardIn(value=n % 2))
            if n:  # the first stays open
                client.done(f"e{n}")
        call(http, "greedy", "train", temperature=0.0)
        http.post("/v1/chat/completions", content=b"{").close()
        client.post_event(Event(kind="step", data=STEP))


class Prom:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Raises with Prometheus's own words for a query that does not parse."""
        reply = self.http.post("/api/v1/query", data={"query": expr})
        read = reply.json()
        assert read["status"] == "success", f"{expr}: {read.get('error')}"
        return read["data"]["result"]


def configure(folder: Path, target: str) -> None:
    """One that scrapes a proxy each second, with our rules."""
    folder.mkdir()
    shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder / "alerts.yml")
    tree = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": "slipstream-proxy", "static_configs": [{"targets": [target]}]}],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(yaml.safe_dump(tree))


def until(what: Callable[[], Any], seconds: float) -> Any:
    """The first empty answer of ``what()``, or its last one."""
    end = time.monotonic() + seconds
    while (left := what()) and time.monotonic() < end:
        time.sleep(0.5)
    return left


def check_documented(prom: Prom) -> None:
    """Each series of the proxy stands in docs/metrics.md, with these labels."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs" / "metrics.md").read_text(), re.M)
    known = {
        name + end: set(re.findall(r"`(\w+)`", labels))
        for name, _, labels in rows
        for end in ("", "_bucket", "_sum", "_count")
    }
    for series in prom.query('{job="slipstream-proxy", __name__=~"slipstream_.*"}'):
        labels = dict(series["metric"])
        name = labels.pop("__name__")
        if name.endswith("_created"):
            continue
        assert set(labels) - {"instance", "job", "le"} <= known[name], f"{name}: {sorted(labels)}"


def test_every_panel_and_alert_is_answered(engine, start_proxy, tmp_path: Path) -> None:
    proxy = start_proxy(engine.url, gate={"holdout": 0.3})
    use(proxy.url, proxy.data_dir / "adapters")
    folder = tmp_path / "prometheus"
    configure(folder, proxy.url.removeprefix("http://"))
    port = free_port()
    argv = [
        str(PROMETHEUS), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    log = tmp_path / "prometheus.log"
    with process(argv, log, grace=5.0) as p:
        prom = Prom(f"http://127.0.0.1:{port}")

        def scraped() -> bool:
            assert p.poll() is None, log.read_text()[-2000:]
            return bool(prom.query('count_over_time(up{job="slipstream-proxy"}[1m]) >= 3'))

        wait_for(scraped, 60, 0.5, "Prometheus has scraped the proxy")
        assert prom.query("up")[0]["value"][1] == "1", prom.http.get("/api/v1/targets").text[:2000]

        check_documented(prom)
        for _, expr in [*panels(), *alerts()]:
            prom.query(expr)  # it parses, whatever it finds

        def empty_panels() -> list[str]:
            return [f"{where}: {expr}" for where, expr in panels() if of_the_proxy(expr) and not prom.query(expr)]

        assert until(empty_panels, 60) == []
        names = {n for _, expr in alerts() if of_the_proxy(expr) for n in re.findall(r"\bslipstream_\w+", expr)}
        missing = [n for n in sorted(names) if n != "slipstream_groups" and not prom.query(f"count({n})")]
        assert missing == []

        def unwell() -> list[str]:
            rules = [r for g in prom.http.get("/api/v1/rules").json()["data"]["groups"] for r in g["rules"]]
            return (
                [f"{r['name']}: {r['health']} {r.get('lastError', '')}" for r in rules if r["health"] != "ok"]
                if rules
                else ["no rules"]
            )

        assert until(unwell, 30) == []
        firing = {r["labels"]["alertname"] for r in prom.query('ALERTS{alertstate="firing"}')}
        assert not firing & {
            "SlipstreamCaptureLost",
            "SlipstreamEngineDown",
            "SlipstreamProxyDown",
            "SlipstreamStoreDown",
        }


def series(url: str) -> set[str]:
    text = httpx.get(f"{url}/metrics", timeout=30, trust_env=False).raise_for_status().text
    return {line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}


def test_strange_names_add_no_series(engine, start_proxy) -> None:
    """Episodes, tasks, tags, models, paths and methods that a stranger makes up are no labels."""
    proxy = start_proxy(engine.url)

    def flood(name: str, count: int) -> None:
        with httpx.Client(base_url=proxy.url, timeout=60, trust_env=False) as http, Client(proxy.url) as client:
            for n in range(count):
                who = f"{name}{n}"
                headers = {
                    "x-slipstream-episode": who,
                    "x-slipstream-task": who,
                    f"x-slipstream-tag-{who}": who,
                    "user-agent": who,
                }
                http.post("/v1/chat/completions", json=body(stream=False, max_tokens=1), headers=headers)
                http.post(
                    "/v1/chat/completions", json={**body(stream=False, max_tokens=1), "model": who}, headers=headers
                )
                http.get(f"/v1/{who}")
                http.get(f"/slipstream/v1/episodes/{who}")
                http.get(f"/slipstream/v1/{who}")
                http.request(f"ODD{n}", f"/slipstream/v1/{who}")
                client.add_reward(who, RewardIn(value=1.0, name=who, source=who))
                client.done(who)

    def settled() -> set[str]:
        first = series(proxy.url)
        time.sleep(2.5)  # counts of the store are good for two seconds
        return first if first == series(proxy.url) else set()

    flood("a", 3)
    before = wait_for(settled, 60, 0.1, "the metrics are at rest")
    flood("b", 40)
    wait_for(lambda: "slipstream_stored_calls" in "".join(series(proxy.url)), 30)
    after = wait_for(settled, 60, 0.1, "the metrics are at rest")
    new = {s for s in after - before if not s.startswith("slipstream_rewards{")}
    assert not {s for s in new if re.search(r'"(a|b)\d+"|ODD', s)}, new
    assert len(new) <= 10, new  # a state or a status that did not occur before
    assert sum(s.startswith("slipstream_rewards{") for s in after) <= 30
