"""Trainers that reach the proxy over HTTP alone, each with a folder of its own: killed, cut off, and two at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w
from tests.support import slipstream, wait_for
from tests.support.fake_engine import LoraEngine
from tests.support.tiny import make_config, make_trainer

from slipstream.client import Client
from slipstream.errors import ApiError
from slipstream_trainer.run.worker import Worker
from slipstream_trainer.versions import learner

GROUP_RUNS = 4


class Killed(BaseException):
    """The trainer is killed with -9: nothing of it goes on."""


class Wire(httpx.HTTPTransport):
    """A trainer's network. ``at`` is called before and after each message of its own accord with its number."""

    def __init__(self, at: Callable[[int, str, str], None] | None = None) -> None:
        super().__init__()
        self.at, self.count, self.dead, self.seen = at, 0, False, list[str]()
        self.open = threading.Event()
        self.open.set()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        renewal = threading.current_thread().name == "learner"
        self.open.wait()
        if self.dead:
            raise Killed
        if renewal or self.at is None:
            return super().handle_request(request)
        number, self.count = self.count, self.count + 1
        self.seen.append(f"{request.method} {request.url.path}")
        self.at(number, "before", request.url.path)
        self.open.wait()
        response = super().handle_request(request)
        response.read()
        self.at(number, "after", request.url.path)
        return response


class World:
    """A real proxy as processes of its own, on a port that stays, with an engine that is none."""

    def __init__(self, folder: Path, engine_url: str, model: Path) -> None:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url, self.model, self.folder = f"http://127.0.0.1:{self.port}", model, folder
        folder.mkdir(parents=True, exist_ok=True)
        tree = {
            "data_dir": str(folder / "data"), "proxy": {"port": self.port}, "engine": {"urls": [engine_url], "name": "tiny", "model": str(model)},
            "gate": {"holdout": 0.0}, "groups": {"size": GROUP_RUNS}, "trainer": {"max_staleness": 100},
        }  # fmt: skip
        (folder / "slipstream.toml").write_text(tomli_w.dumps(tree))
        self.process: subprocess.Popen[bytes] | None = None
        self.fed = 0

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            argv = slipstream("proxy", "--config", str(self.folder / "slipstream.toml"))
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip

    def ready(self) -> bool:
        assert self.process and self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5, trust_env=False).is_success
        return False

    def kill(self) -> None:
        assert self.process
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def feed(self) -> None:
        """A group of runs, of which some are good."""
        task, self.fed = f"task-{self.fed}", self.fed + 1
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as http:
            for n in range(GROUP_RUNS):
                run = f"{task}-{n}"
                body = {"model": "tiny", "messages": [{"role": "user", "content": run}], "temperature": 1.0}
                tags = {"x-slipstream-episode": run, "x-slipstream-task": task}
                http.post("/v1/chat/completions", json=body, headers=tags).raise_for_status()
                http.post(f"/slipstream/v1/episodes/{run}/rewards", json={"value": float(n % 2)}).raise_for_status()

    def trainer(self, folder: Path, wire: Wire) -> Worker:
        config = make_config(self.model, folder, min_groups=1, max_groups=1, max_wait=3600.0, max_staleness=100)
        client = Client(self.url)
        client.http = httpx.Client(base_url=self.url, transport=wire, timeout=30)
        return Worker(config, client, make_trainer(config, warm=False))

    def settle(self) -> list[dict[str, Any]]:
        """Once no version is loading any more. → All versions."""

        def look() -> list[dict[str, Any]]:
            found = httpx.get(f"{self.url}/slipstream/v1/adapters", timeout=30, trust_env=False).json()["adapters"]
            return found if all(a["state"] != "loading" for a in found) else []

        return wait_for(look, 60, 0.1, "every version has a state")

    def check(self) -> None:
        """Each group was trained on once, in one line of versions that the newest one ends."""
        versions = {a["name"]: a for a in self.settle()}
        with Client(self.url) as client:
            wait_for(lambda: client.status().groups.get("trained") == self.fed, 60, 0.2, "every group is trained on")
        line, name = list[str](), max(versions, key=lambda n: versions[n]["version"])
        while name in versions:
            line.append(name)
            name = versions[name]["parent"]
        batches = Counter(b for n in line for b in versions[n]["batches"])
        assert set(batches.values()) == {1} and len(batches) == self.fed, f"{batches} for {self.fed} groups"
        assert not [n for n, a in versions.items() if n not in line], "a version is in no line of the served one"
        assert all(a["state"] in ("live", "retired") for a in versions.values()), versions
        with Client(self.url) as client:
            groups = Counter(e.group for b in batches for e in client.batch(b).episodes)
            told = Counter(e.data["batch"] for e in client.events() if e.kind == "step")
        assert set(groups.values()) == {GROUP_RUNS} and len(groups) == self.fed, "a group was trained on twice"
        assert set(batches) <= set(told)


@pytest.fixture
def world(tiny, tmp_path) -> Iterator[World]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    engine = asyncio.run_coroutine_threadsafe(LoraEngine().start(), loop).result(30)
    made = World(tmp_path / "proxy", engine.url, tiny)
    made.start()
    wait_for(made.ready, 90, 0.1, "the proxy is ready")
    yield made
    made.kill()
    asyncio.run_coroutine_threadsafe(engine.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)


def work(worker: Worker, versions: int = 1) -> None:
    """Until so many more batches are trained on and told."""
    until, done = time.monotonic() + 60, 0
    while done < versions:
        assert time.monotonic() < until, "there is no batch"
        done += worker.once()
        worker.publisher.finish()


def leave(worker: Worker, wire: Wire) -> None:
    wire.dead = True
    wire.open.set()
    worker.learner._ended.set()


def test_three_versions_over_http_alone(world: World, tmp_path: Path) -> None:
    wire = Wire(lambda *_: None)
    worker = world.trainer(tmp_path / "far", wire)
    worker.begin()
    for _ in range(3):
        world.feed()
        work(worker)
        world.settle()
    world.check()
    assert worker.publisher.shipping.shared is False
    assert not list((tmp_path / "far" / "adapters").glob("*")), "nothing is written that nobody reads"
    assert [p.name for p in sorted((world.folder / "data" / "adapters").iterdir())] == ["tiny@1", "tiny@2", "tiny@3"]
    leave(worker, wire)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("victim", ["trainer", "proxy"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_between_each_pair_of_messages(world: World, tmp_path: Path, victim: str, when: str) -> None:
    """The trainer (killed: nothing of it goes on, its folder stays) or the proxy, with -9."""
    at = 0
    while True:
        fired = list[str]()

        def fault(number: int, phase: str, path: str, at: int = at, fired: list[str] = fired) -> None:
            if number != at or phase != when or fired:
                return
            fired.append(path)
            if victim == "trainer":
                wire.dead = True
                raise Killed
            world.kill()
            world.start()

        wire = Wire(fault)
        worker = world.trainer(tmp_path / "far", wire)
        world.feed()
        with contextlib.suppress(Killed):
            worker.begin()
            work(worker)
        leave(worker, wire)
        wait_for(world.ready, 90, 0.1, "the proxy is ready")
        if fired and victim == "trainer":  # the next one goes on where it was
            wire = Wire()
            worker = world.trainer(tmp_path / "far", wire)
            worker.begin()
            with Client(world.url) as client:
                if client.status().groups.get("trained", 0) < world.fed:
                    work(worker)
            worker.publisher.finish()
            leave(worker, wire)
        world.check()
        if not fired:
            break
        at += 1
    assert at >= 9, wire.seen


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("when", ["before", "after"])
def test_two_trainers_serve_one_policy_whenever_the_first_is_cut_off(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The first one stands still at each of its messages, longer than its lease lasts. The second takes over, and the
    first comes back in the middle of what it was about to say.
    """
    monkeypatch.setattr(learner, "LEARNER_TTL_S", 1.0)
    monkeypatch.setattr(learner, "RENEW_INTERVAL_S", 0.2)
    monkeypatch.setattr(learner.LearnerLease._ask, "__defaults__", (1.0,))
    folders, at = [tmp_path / "a", tmp_path / "b"], 0
    while True:
        stands = threading.Event()

        def pause(number: int, phase: str, path: str, at: int = at, stands: threading.Event = stands) -> None:
            if number == at and phase == when and not stands.is_set():
                wires[0].open.clear()
                stands.set()
                wires[0].open.wait()

        wires = [Wire(pause), Wire()]
        first, second = (world.trainer(f, w) for f, w in zip(folders, wires, strict=True))
        world.feed()
        ended = threading.Event()

        def run(worker: Worker = first, ended: threading.Event = ended) -> None:
            with contextlib.suppress(Killed, learner.Stop, learner.Fenced, ApiError):
                worker.begin()
                work(worker)
            ended.set()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        wait_for(lambda e=ended, s=stands: e.is_set() or s.is_set(), 90, 0.02, "the first stands still, or is done")  # type: ignore[misc]
        if stood := stands.is_set():
            second.begin()
            world.feed()
            until = time.monotonic() + 60
            while time.monotonic() < until:
                second.once()
                second.publisher.finish()
                with Client(world.url) as client:
                    if client.status().groups.get("trained") == world.fed:
                        break
            wires[0].open.set()
            waits = first.metrics.waiting._value.get
            wait_for(lambda e=ended, w=waits: e.is_set() or w(), 60, 0.02, "the first is refused, or waits")  # type: ignore[misc]
            first.stop.set()
            thread.join(60)
            assert not thread.is_alive()
        for worker, wire in zip((first, second), wires, strict=True):
            leave(worker, wire)
        world.check()
        if not stood:
            break
        at += 1
        time.sleep(1.1)
        folders.reverse()
    assert at >= 9
