"""An engine that is started again without its routes for adapters: no call fails, the adapter stays, and the proxy goes on
by itself once the routes are there again.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.support import free_port, vllm, wait_for
from tests.support.adapters import make_adapter, write_adapter
from tests.support.fake_engine import LoraEngine, beside
from tests.support.load import Load, streams
from tests.support.running import Running, recorded, run_proxy

from slipstream.cli import main
from slipstream.client import Client
from slipstream.contract import AdapterIn

DEFAULT_GATE = {"holdout": 0.1}


def said(proxy: Running) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["status", "--url", proxy.url]) == 0
    return out.getvalue()


def state(proxy: Running, name: str = "inbox@1") -> tuple[str, bool]:
    """Its state, and whether the engines have it."""
    with Client(proxy.url) as client:
        return next((a.state, a.loaded) for a in client.adapters().adapters if a.name == name)


def ask(proxy: Running, episode: str) -> str:
    """A call. → The adapter that answered it."""
    body = {"model": "inbox", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    headers = {"x-slipstream-episode": episode}
    url = f"{proxy.url}/v1/chat/completions"
    reply = httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-slipstream-adapter"]


def publish(proxy: Running, make: Callable[[Path], object]) -> None:
    folder = proxy.data_dir / "adapters"
    folder.mkdir(parents=True, exist_ok=True)
    make(folder / "inbox@1")
    with Client(proxy.url) as client:
        client.add_adapter(AdapterIn(path="inbox@1"))
    wait_for(lambda: state(proxy) == ("candidate", True), 120, 0.1, "the gate tries it")


def serves(proxy: Running, adapter: str) -> None:
    """New episodes get it, the gate's control aside, which is the base model."""
    count = iter(range(10**6))

    def answered() -> bool:
        return adapter in {ask(proxy, f"{adapter}-{next(count)}") for _ in range(10)}

    wait_for(answered, 60, 0.2, f"{adapter} answers")


@pytest.mark.parametrize("way", ["no routes", pytest.param("no LoRA", marks=pytest.mark.slow)])
def test_agents_go_on_while_an_engine_takes_no_adapters(tmp_path: Path, way: str) -> None:
    """At the defaults, with agents that go on all the time."""
    engine = LoraEngine()
    engine.models = {"inbox"}
    load = Load()

    async def under_load(proxy: Running) -> None:
        stop = asyncio.Event()
        await asyncio.to_thread(begins, proxy)
        running = asyncio.create_task(streams(load, proxy.url, 4, stop, pause=0.02))
        await asyncio.to_thread(lasts_and_ends, proxy)
        stop.set()
        await running

    def begins(proxy: Running) -> None:
        publish(proxy, write_adapter)
        serves(proxy, "inbox@1")
        engine.restart(takes_none=way)
        wait_for(lambda: "takes no adapters: " in said(proxy), 30, 0.2, "status says it")

    def lasts_and_ends(proxy: Running) -> None:
        assert {ask(proxy, f"during-{n}") for n in range(20)} == {"inbox"}
        assert state(proxy) == ("candidate", False)
        engine.restart()
        wait_for(lambda: state(proxy) == ("candidate", True), 10, 0.2, "it is loaded again")
        serves(proxy, "inbox@1")
        assert "takes no adapters" not in said(proxy)

    with beside(engine), run_proxy(tmp_path, engine.url, gate=DEFAULT_GATE) as proxy:
        asyncio.run(under_load(proxy))
        assert load.errors == []
        assert set().union(*load.adapters.values()) == {"inbox", "inbox@1"}
        during = recorded(proxy.url, "during-3")
        assert (during.adapter, during.arm) == ("inbox", "live")


@pytest.mark.engine
@pytest.mark.chaos  # vLLM starts three times: two minutes
@pytest.mark.timeout(900)
def test_vllm_is_started_again_without_the_variable_and_then_with_it(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "engine.log"
    with contextlib.ExitStack() as stack:
        with vllm(log, port=port) as url:
            proxy = stack.enter_context(run_proxy(tmp_path / "proxy", url, gate=DEFAULT_GATE))
            publish(proxy, lambda folder: make_adapter(folder, 1))
            serves(proxy, "inbox@1")
        with vllm(log, port=port, plugin=False, routes=False):
            wait_for(lambda: "takes no adapters: it has no route" in said(proxy), 60, 0.5, "status says it")
            assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in said(proxy)
            assert {ask(proxy, f"during-{n}") for n in range(20)} == {"inbox"}
            assert state(proxy) == ("candidate", False)
        with vllm(log, port=port, plugin=False):
            wait_for(lambda: state(proxy) == ("candidate", True), 30, 0.5, "it is loaded again")
            serves(proxy, "inbox@1")
            assert "takes no adapters" not in said(proxy)
