"""An adapter that the engine refuses stays out, says why, and harms no call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support import wait_for
from tests.support.adapters import make_adapter
from tests.support.load import Load, streams

from slipstream.client import Client
from slipstream.contract import AdapterIn
from slipstream.errors import ApiError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def wrong_shape(folder: Path) -> None:
    """Weights of another model."""
    from safetensors.torch import load_file, save_file

    make_adapter(folder, 1)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file(
        {k: v[:, :-3].contiguous() if "lora_A" in k else v for k, v in weights.items()},
        folder / "adapter_model.safetensors",
    )


def too_big(folder: Path) -> None:
    make_adapter(folder, 1, rank=64)


def garbage(folder: Path) -> None:
    make_adapter(folder, 1)
    (folder / "adapter_model.safetensors").write_bytes(b"\x00garbage" * 100)


def dora(folder: Path) -> None:
    make_adapter(folder, 1)
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "use_dora": True}))


def unknown_module(folder: Path) -> None:
    """A layer that the model does not have: the engine says so."""
    from safetensors.torch import load_file, save_file

    make_adapter(folder, 1)
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({k.replace("q_proj", "nope_proj"): v for k, v in weights.items()}, folder / "adapter_model.safetensors")


def test_refused_adapters_stay_out_and_traffic_goes_on(engine, start_proxy) -> None:
    proxy = start_proxy(engine.url, adapters={"patience": 5.0})
    folder = proxy.data_dir / "adapters"
    folder.mkdir(parents=True, exist_ok=True)
    load = Load()

    async def offer() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(streams(load, proxy.url, 8, stop))
        with Client(proxy.url) as client:
            for n, spoil in enumerate((too_big, garbage, dora, wrong_shape, unknown_module), 1):
                name = f"inbox@{900 + n}"  # the engine is shared: no other test has these names
                await asyncio.to_thread(spoil, folder / name)
                await asyncio.to_thread(offered, client, name)
        stop.set()
        await running

    def offered(client: Client, name: str) -> None:
        try:
            client.add_adapter(AdapterIn(path=name))
        except ApiError as e:
            assert str(e)
            return
        state = wait_for(
            lambda: next(a for a in client.adapters().adapters if a.name == name and a.state != "loading"),
            90,
            0.2,
            "it is decided",
        )
        assert state.state == "refused", state
        assert state.reason

    asyncio.run(offer())
    assert load.errors == []
    assert set().union(*load.adapters.values()) == {"inbox"}
    with Client(proxy.url) as client:
        assert client.adapters().live["inbox"] == "inbox"
