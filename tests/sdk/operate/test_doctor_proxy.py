"""Each finding with its fix, against a proxy that says what it says."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest
from tests.support import free_port
from tests.support.doctored import levels
from tests.support.server import Server

from slipstream.operate.doctor.proxy import check_proxy

EPISODE = {"id": "e", "key": "-", "task": None, "split": "train", "model": "m", "adapter": "m", "state": "done", "started": 1.0, "ended": 2.0, "calls": 3}  # fmt: skip

LINE = {"stage": "ready", "cause": "too_few", "count": 2, "text": "2 of 8 scored groups", "fix": "wait"}


def proxy(server: Server, date: str | None = None, episodes: list | None = None, **changed: object) -> None:
    server.on("GET", "/healthz", {}, **({"date": date} if date else {}))  # type: ignore[arg-type]
    server.on("GET", "/episodes", {"episodes": [EPISODE | e for e in episodes or []]})
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, **changed})


def test_a_good_proxy(server: Server) -> None:
    proxy(server, calls=3, funnel={"lines": [LINE]}, episodes=[{}], engines=[{"url": "http://e", "ok": True}])
    found = list(check_proxy(server.url, "k"))
    assert [f.what for f in found] == [
        f"the proxy at {server.url} answers; 3 calls recorded",
        "this machine's clock and the proxy's agree",
        "1 remark on the next step: `slipstream status --all`",
    ]
    assert levels(found) == ["ok"] * 3


@pytest.mark.parametrize(
    ("told", "level", "what", "fix"),
    [
        ({"funnel": {"lines": [LINE | {"stage": "calls", "cause": "lost", "text": "2 calls were answered and not recorded", "fix": "free space", "severity": "slows"}]}}, "fail", "2 calls were answered and not recorded", "free space"),
        ({"store": "duckdb", "episodes": {"done": 1_000_000, "open": 1}}, "warn", "1,000,001 episodes are in one DuckDB file", "PostgreSQL"),
        ({"funnel": {"lines": [LINE | {"stage": "judge", "cause": "failing", "text": "the judge fails: no scores", "fix": "correct judge.model", "severity": "slows"}]}}, "fail", "the judge fails: no scores", "judge.model"),
        ({"funnel": {"lines": [LINE | {"stage": "judge", "cause": "chance", "text": "the judge scores by chance", "fix": "choose a larger judge.model", "severity": "slows"}]}}, "fail", "scores by chance", "judge.model"),
        ({"funnel": {"lines": [LINE | {"stage": "store", "cause": "behind", "text": "the store is 2 min behind", "fix": None, "severity": "slows"}]}}, "warn", "2 min behind", "slipstream status"),
        ({"engines": [{"url": "http://e", "ok": False, "error": "refused"}]}, "fail", "http://e is down: refused", "see its log (`up.log` in data_dir"),
        ({"funnel": {"lines": [LINE | {"stage": "untrainable", "text": "9 calls can't be trained on: temperature 0", "fix": "ask 1.0", "severity": "blocks"}]}}, "warn", "temperature 0", "ask 1.0"),
        ({"funnel": {"lines": [LINE | {"stage": "engine", "cause": "no_adapter_routes", "text": "the engine http://e (for 12 min) takes no adapters", "fix": "start vLLM again", "severity": "slows"}]}}, "warn", "http://e (for 12 min) takes no adapters", "start vLLM again"),
        ({"calls": 201, "episodes": {"open": 1}}, "warn", "all 201 calls are one episode", "x-slipstream-episode"),
        ({"calls": 500, "episodes": {"done": 9}, "episodes_": [{"id": "a", "calls": 400}, {}]}, "warn", "400 of 500 calls are one episode (a)", "x-slipstream-episode"),
        ({"calls": 30, "episodes": {"done": 6}, "episodes_": [{"id": f"run~{n}"} for n in range(2, 8)]}, "warn", "6 of the latest 6 episodes are called run", "x-slipstream-episode"),
        ({"funnel": {"lines": [LINE | {"stage": "episodes", "cause": "lone", "text": "9 of them go on with what was said", "fix": "send x-slipstream-episode", "severity": "slows"}]}}, "warn", "9 of them go on", "x-slipstream-episode"),
        ({"funnel": {"lines": [LINE | {"stage": "step", "cause": "engine_gap", "text": "0.3 nats a token away", "fix": "compute in one number format", "severity": "slows"}]}}, "warn", "0.3 nats", "number format"),
        ({"funnel": {"lines": [LINE | {"stage": "groups", "cause": "forming", "text": "no task has come twice", "fix": "run each task again", "severity": "blocks"}]}}, "warn", "no task has come twice", "run each task"),
        ({"funnel": {"lines": [LINE | {"stage": "calls", "cause": "failing", "text": "64 of 64 calls fail", "fix": "leave tools out", "severity": "blocks"}]}}, "fail", "64 of 64 calls fail", "leave tools out"),
        ({"funnel": {"lines": [LINE | {"stage": "trainer", "cause": "restarting", "text": "the trainer ended", "fix": None, "severity": "blocks"}]}}, "warn", "the trainer ended", "`up.log`"),
    ],
)  # fmt: skip
def test_a_proxy_in_trouble(server: Server, told: dict, level: str, what: str, fix: str) -> None:
    latest = told.pop("episodes_", None)
    server.on("GET", "/healthz", {})
    server.on("GET", "/episodes", {"episodes": [EPISODE | e for e in latest or []]})
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, **told})
    bad = [f for f in check_proxy(server.url, None) if f.level != "ok"]
    assert levels(bad) == [level]
    assert what in bad[0].what
    assert fix in bad[0].fix


def test_a_healthy_agent_of_one_call_a_run(server: Server) -> None:
    """What is only on its way to the next step, and what teaches nothing beside enough that does, is no warning."""
    states = [("episodes", "open"), ("groups", "forming"), ("gate", "undecided"), ("untrainable", "a title call"), ("reward", "equal"), ("step", "slots")]  # fmt: skip
    lines = [LINE | {"stage": stage, "cause": cause, "severity": "remark"} for stage, cause in states]
    lost = LINE | {"stage": "lost", "cause": "dropped_rolled_back", "fix": "nothing to do: it was bad"}
    latest = [{"id": f"x{n}", "calls": 1} for n in range(9)]
    proxy(server, episodes=latest)
    told = {"calls": 300, "episodes": {"done": 300}, "funnel": {"lines": [*lines, lost]}}
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {}, **told})
    assert set(levels(list(check_proxy(server.url, None)))) == {"ok"}


def test_a_proxy_that_shows_little_or_nothing(server: Server) -> None:
    proxy(server)
    server.on("GET", "/episodes", {"error": {"type": "forbidden", "message": "no scope"}}, 403)
    (found,) = [f for f in check_proxy(server.url, "k") if f.level != "ok"]
    assert found.what.startswith("the proxy does not list episodes: ") and "slipstream keys add" in found.fix
    (found,) = check_proxy(f"http://127.0.0.1:{free_port()}", None, "the engine loads")
    assert (found.level, found.what) == ("warn", "the proxy is not there yet")
    server.on("GET", "/status", {"error": {"type": "unauthorized", "message": "no API key"}}, 401)
    (found,) = check_proxy(server.url, None)
    assert "wants another key" in found.what and "--key" in found.fix, "it is there, and needs no start"


def test_clocks_that_differ(server: Server) -> None:
    proxy(server, formatdate(time.time() - 3600, usegmt=True))
    (bad,) = [f for f in check_proxy(server.url, None) if f.level != "ok"]
    assert (bad.level, "clock differs" in bad.what) == ("warn", True)
    assert "NTP" in bad.fix


def test_no_proxy() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (found,) = check_proxy(url, None)
    assert found.level == "warn"
    assert found.what.startswith(f"no proxy at {url}: ")
    assert "slipstream up" in found.fix


def test_a_big_store_on_postgresql_is_fine(server: Server) -> None:
    proxy(server, store="postgresql", episodes=[{}])
    server.on(
        "GET",
        "/status",
        {"version": "0", "started": 1.0, "models": {}, "store": "postgresql", "episodes": {"done": 9_000_000}},
    )
    assert not [f for f in check_proxy(server.url, None) if "DuckDB" in f.what]
