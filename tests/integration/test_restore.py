"""What docs/operations.md says of backups: a copy of the data folder, made while the proxy is stopped, is the whole of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from tests.support import end_process, wait_for
from tests.support.adapters import make_adapter
from tests.support.load import body

from slipstream.client import Client
from slipstream.contract import AdapterIn, RewardIn

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
ADAPTER = "inbox@902"
"""A name of its own: the engine is shared with other tests."""


def call(url: str, episode: str) -> str:
    """Returns the adapter that answered."""
    headers = {"x-slipstream-episode": episode, "x-slipstream-task": "t"}
    sent = body(stream=False, max_tokens=4)
    reply = httpx.post(f"{url}/v1/chat/completions", json=sent, headers=headers, timeout=60, trust_env=False)
    return reply.raise_for_status().headers["x-slipstream-adapter"]


def test_a_copy_of_the_data_folder_goes_on(engine, start_proxy, tmp_path: Path) -> None:
    old = start_proxy(engine.url)
    with Client(old.url) as client:
        client.add_adapter(AdapterIn(path=make_adapter(old.data_dir / "adapters" / ADAPTER, 2).name, step=1))
        wait_for(lambda: ADAPTER in client.adapters().live.values(), 60, 0.1, "the adapter is live")
        assert call(old.url, "e1") == ADAPTER
        client.add_reward("e1", RewardIn(value=0.75))
        client.done("e1")
        wait_for(
            lambda: (client.episode("e1").reward, client.episode("e1").state) == (0.75, "done"),
            60,
            0.1,
            "all is in the store",
        )
        before = client.episode("e1", tokens=True)
    end_process(old.process)
    shutil.copytree(
        old.data_dir, tmp_path / "proxy1" / "data", ignore=shutil.ignore_patterns("*.sock", "lock", "proxy.json")
    )
    shutil.rmtree(old.data_dir)

    new = start_proxy(engine.url)
    assert new.data_dir == tmp_path / "proxy1" / "data"
    with Client(new.url) as client:
        after = wait_for(lambda: client.episode("e1", tokens=True), 60, 0.1, "the episode is there")
        assert after.model_dump() == before.model_dump()
        wait_for(lambda: ADAPTER in client.adapters().live.values(), 60, 0.1, "the adapter is live again")
        assert call(new.url, "e2") == ADAPTER
        assert wait_for(lambda: client.episode("e2").calls == 1, 60, 0.1, "new calls are stored too")
