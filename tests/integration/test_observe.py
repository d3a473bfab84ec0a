"""A real Prometheus scrapes a running demo (proxy, judge, trainer): each query of a panel or an alert has an answer there, none excepted."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tests.support import ROOT, free_port, process, slipstream, wait_for
from tests.support.adapters import make_adapter
from tests.support.load import body
from tests.support.ruled_judge import RuledJudge
from tests.support.served import Served

from slipstream.client import Client
from slipstream.contract import AdapterIn, RewardIn
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child

PROMETHEUS = shutil.which("prometheus")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(420)]
DEPLOY = ROOT / "deploy"
GIVEN, TRAINED = "inbox@4000", "inbox@4001"
"""Names of its own: the engine is shared with other tests. The trainer goes on counting from the first."""


VARIABLES = ("$model_name", "$model", "$adapter", "$tag", "$value")
"""What a reader of a dashboard chooses from; here everything is chosen."""


def chosen(expr: str) -> str:
    """The query as Grafana asks it."""
    for name in VARIABLES:
        expr = expr.replace(name, ".*")
    return expr.replace("$__rate_interval", "1m")


def panels() -> list[tuple[str, str]]:
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            found += [(f"{path.stem}: {panel['title']}", chosen(t["expr"])) for t in panel.get("targets", [])]
    return found


def hurried(rules: dict[str, Any]) -> dict[str, Any]:
    """The rules with their hours as seconds: a demo of half a minute has no half hour behind it. Nothing else of them is changed."""
    text = yaml.safe_dump(rules, width=10_000)
    for slow, quick in (("1h30m", "60s"), ("[30m]", "[6s]"), ("offset 1h", "offset 3s"), (">= 20", ">= 1")):
        assert slow in text
        text = text.replace(slow, quick)
    return yaml.safe_load(text)


def operands(expr: str) -> list[str]:
    """What a rule compares: its parts without comparisons with numbers and without ``and``, so that a rule that does not fire can be asked."""
    hidden: list[str] = []

    def hide(m: re.Match[str]) -> str:
        hidden.append(m[0])
        return f"@{len(hidden) - 1}@"

    flat = re.sub(r"\{[^}]*\}", hide, " ".join(expr.split()))
    flat = re.sub(r"\s(?:>=|<=|==|>|<)\s[\d.]+", "", flat)
    parts = re.split(r"\s(?:<|>)\s|\s(?:and|unless) on \(\)\s", flat)
    found = []
    for part in parts:
        whole = part.strip()
        while whole.count("(") > whole.count(")") and whole.startswith("("):
            whole = whole[1:].strip()
        while whole.count(")") > whole.count("(") and whole.endswith(")"):
            whole = whole[:-1].strip()
        if whole:
            found.append(re.sub(r"@(\d+)@", lambda m: hidden[int(m[1])], whole))
    return found


def test_operands() -> None:
    assert operands("sum(increase(x_total[10m])) > 0") == ["sum(increase(x_total[10m]))"]
    assert operands('max(a) > 60 and on () sum(delta(b{c="d > 1"}[10m])) > 0') == [
        "max(a)",
        'sum(delta(b{c="d > 1"}[10m]))',
    ]
    assert operands("delta(a[30m]) / (delta(b[30m]) >= 20)") == ["delta(a[30m]) / (delta(b[30m]))"]
    assert operands("(r < (r offset 1h) - 0.25 * scalar(avg(s))) and on () (sum(v) > 0)") == [
        "r", "(r offset 1h) - 0.25 * scalar(avg(s))", "(sum(v))",
    ]  # fmt: skip


class Prom:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=10, trust_env=False)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Raises with Prometheus's own words for a query that does not parse."""
        reply = self.http.post("/api/v1/query", data={"query": expr})
        read = reply.json()
        assert read["status"] == "success", f"{expr}: {read.get('error')}"
        return read["data"]["result"]

    def has_data(self, expr: str) -> bool:
        """A sample that is a number."""
        return any(s["value"][1] != "NaN" for s in self.query(expr))


def configure(folder: Path, targets: dict[str, str]) -> None:
    """One that scrapes each second, with our rules."""
    folder.mkdir()
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    (folder / "alerts.yml").write_text(yaml.safe_dump(hurried(rules)))
    tree = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": ["alerts.yml"],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(yaml.safe_dump(tree))


def until(what: Callable[[], Any], seconds: float) -> Any:
    """The first empty answer of ``what()``, or its last one."""
    end = time.monotonic() + seconds
    while (left := what()) and time.monotonic() < end:
        time.sleep(0.5)
    return left


@contextmanager
def agents(url: str) -> Iterator[None]:
    """Episodes of a few tasks, again and again: rewards that differ, evaluation, streams, tags, other routes, calls that fail or are given up."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def call(http: httpx.Client, episode: str, task: str, split: str, **more: Any) -> None:
        headers = {"x-slipstream-episode": episode, "x-slipstream-task": task, "x-slipstream-split": split, "x-slipstream-tag-team": "billing"}  # fmt: skip
        sent = body(stream=False, max_tokens=6, **more)
        http.post(
            "/v1/chat/completions", json={**sent, "stream": more.get("stream", False)}, headers=headers
        ).raise_for_status()

    def run() -> None:
        n = 0
        try:
            with httpx.Client(base_url=url, timeout=60, trust_env=False) as http, Client(url) as client:
                while not stop.is_set():
                    n += 1
                    split, task = "eval" if n % 5 == 0 else "train", f"t{n // 8 % 3}"
                    call(http, f"e{n}", task, split)
                    with http.stream("POST", "/v1/chat/completions", json=body(stream=True, max_tokens=12), headers={"x-slipstream-episode": f"e{n}"}) as reply:  # fmt: skip
                        for _ in reply.iter_bytes():
                            if n % 6 == 0:
                                break
                    client.add_reward(f"e{n}", RewardIn(value=n % 2))
                    if n % 7:
                        client.done(f"e{n}")
                    if n % 4 == 0:
                        call(http, f"greedy{n}", "greedy", "train", temperature=0.0)
                        http.post("/v1/chat/completions", content=b"{").close()
                        elsewhere = {"origin": "http://elsewhere.example"}  # refused: a page of another site
                        http.post("/v1/chat/completions", json=body(stream=False), headers=elsewhere).close()
                        http.post("/tokenize", json={"model": "inbox", "prompt": "a"}, headers=elsewhere).close()
                        http.post("/tokenize", json={"model": "inbox", "prompt": "a"}).close()
        except BaseException as e:
            errors.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(90)
    assert not errors, errors


def check_documented(prom: Prom) -> None:
    """Each series of ours stands in docs/reference/metrics.md, with these labels."""
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.M
    )
    known = {
        name + end: set(re.findall(r"`(\w+)`", labels))
        for name, _, labels in rows
        for end in ("", "_bucket", "_sum", "_count")
    }
    found = prom.query('{__name__=~"(slipstream|gen_ai)_.*"}')
    assert {"slipstream-proxy", "slipstream-judge"} == {s["metric"]["job"] for s in found}
    for series in found:
        labels = dict(series["metric"])
        name = labels.pop("__name__")
        if name.endswith("_created"):
            continue
        assert set(labels) - {"instance", "job", "le"} <= known[name], f"{name}: {sorted(labels)}"


@contextmanager
def demo(engine: Any, start_proxy: Any, tmp_path: Path) -> Iterator[tuple[str, list[Any], dict[str, str]]]:
    """Proxy, judge and trainer at work → the proxy's URL, the other two processes, and job → address of its metrics."""
    ports = {"judge": free_port()}  # the trainer has no port at the defaults: its panels are the proxy's
    with Served(RuledJudge().app()) as url:
        judge = {
            "model": "openai/ruled", "api_base": url + "/v1", "api_key_env": "OF_A_TEST", "metrics_port": ports["judge"], "votes": 2, "audit_share": 1.0,
            "audit_model": "openai/ruled", "calls_per_minute": 100_000,
        }  # fmt: skip
        trainer = {
            "min_groups": 1,
            "max_wait": 0.5,
            "lora_rank": 8,
            "token_budget": 4096,
            "threads": 1,
        }
        proxy = start_proxy(
            engine.url,
            gate={"holdout": 0.4},
            groups={"size": 4},
            judge=judge,
            reward={"weights": {"reward": 1.0}},
            trainer=trainer,
            proxy={"workers": 2, "metric_tags": ["team"]},
        )
        # what `slipstream up` writes: here judge and trainer are started one by one
        SidecarFile(tmp_path / "proxy0" / "data")([Child(n, [], essential=False) for n in ("judge", "trainer")])
        config = ["--config", str(proxy.config), "--url", proxy.url]
        env = {"OF_A_TEST": "none", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1"}
        with process(slipstream("judge", *config), tmp_path / "judge.log", env) as first:
            with process(slipstream("trainer", *config), tmp_path / "trainer.log", {"OMP_NUM_THREADS": "1"}) as second:
                targets = {f"slipstream-{name}": f"127.0.0.1:{port}" for name, port in ports.items()}
                served = {"slipstream-proxy": proxy.url, "vllm": engine.url}
                yield (
                    proxy.url,
                    [first, second],
                    {**{job: url.removeprefix("http://") for job, url in served.items()}, **targets},
                )


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not here (Debian: apt install prometheus)")
def test_every_panel_and_alert_is_answered(engine, start_proxy, tmp_path: Path) -> None:
    folder, port = tmp_path / "prometheus", free_port()
    with demo(engine, start_proxy, tmp_path) as (url, others, targets):
        configure(folder, targets)
        argv = [
            str(PROMETHEUS),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        log = tmp_path / "prometheus.log"
        with process(argv, log, grace=5.0) as p, Client(url) as client:
            prom = Prom(f"http://127.0.0.1:{port}")

            def scraped() -> bool:
                assert p.poll() is None, log.read_text()[-2000:]
                assert all(o.poll() is None for o in others), [f.read_text()[-500:] for f in tmp_path.glob("*.log")]
                return len(prom.query("up == 1")) == len(targets)

            def trained() -> bool:
                return TRAINED in client.adapters().live.values()

            wait_for(scraped, 120, 0.5, "Prometheus scrapes proxy and judge")
            given = make_adapter(tmp_path / "proxy0" / "data" / "adapters" / GIVEN, 1, rank=8)
            client.add_adapter(AdapterIn(path=given.name, step=1))
            with agents(url):
                wait_for(trained, 180, 0.5, "a trained adapter is live")

                def empty() -> list[str]:
                    asked = [*panels(), *((name, part) for name, expr in alerts() for part in operands(expr))]
                    # The sidecars' series exists under `slipstream up` alone, which this test does not run.
                    # So do those of a function judge, where there is one.
                    elsewhere = ("slipstream_sidecar_up", "slipstream_judge_function_seconds")
                    asked = [(where, expr) for where, expr in asked if not any(e in expr for e in elsewhere)]
                    return [f"{where}: {expr}" for where, expr in asked if not prom.has_data(expr)]

                assert until(empty, 120) == []
                assert until(lambda: unwell(prom), 30) == []
                check_documented(prom)
            firing = {r["metric"]["alertname"] for r in prom.query('ALERTS{alertstate="firing"}')}
            wrong = {
                "SlipstreamCaptureLost",
                "SlipstreamEngineDown",
                "SlipstreamProxyDown",
                "SlipstreamStoreDown",
                "SlipstreamRecordsSkipped",
            }
            assert not firing & wrong


def alerts() -> list[tuple[str, str]]:
    """Alerts and the series that they record, in a hurry."""
    groups = hurried(yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text()))["groups"]
    return [(r.get("alert") or r["record"], r["expr"]) for g in groups for r in g["rules"]]


def unwell(prom: Prom) -> list[str]:
    rules = [r for g in prom.http.get("/api/v1/rules").json()["data"]["groups"] for r in g["rules"]]
    found = [f"{r['name']}: {r['health']} {r.get('lastError', '')}" for r in rules if r["health"] != "ok"]
    return found if rules else ["no rules"]


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
    new = {s for s in after - before if not re.match(r"slipstream_(rewards|source_reward\w*|tagged_calls_total)\{", s)}
    new = {s for s in new if 'route="/internal/healthz"' not in s}  # a worker asks it once the machine is busy
    assert not {s for s in new if re.search(r'"(a|b)\d+"|ODD', s)}, new
    assert len(new) <= 10, new  # a state or a status that did not occur before

    def count(name: str) -> int:
        return sum(s.startswith(name + "{") for s in after)

    assert count("slipstream_rewards") <= 30
    assert count("slipstream_source_reward_mean") <= 10
    tags = [s for s in after if s.startswith("slipstream_tagged_calls_total{")]
    assert tags == []
