"""Two engine cores behind two API servers: an adapter that one of these was given is in every core, and gone from every one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import vllm
from tests.support.adapters import make_adapter

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(900)]
CALLS = 32
ASKED: dict[str, Any] = {"prompt": "when is the visa for dana", "max_tokens": 6, "temperature": 0}


@pytest.fixture(scope="module", params=["spawn", "fork"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """How vLLM starts its processes: anew, or as on a GPU."""
    log = tmp_path_factory.mktemp("replicas") / "engine.log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", request.param)
        with vllm(log, "--data-parallel-size", "2", api_servers=2) as found:
            yield found
    assert "metrics cleanup" not in log.read_text(), "a process removed, or tried to, what another one holds"


def post(url: str, path: str, body: dict[str, Any]) -> httpx.Response:
    """On a connection of its own: any of the API servers may take it."""
    return httpx.post(f"{url}{path}", json=body, timeout=300, trust_env=False)


def answers(url: str, model: str) -> Counter[tuple[int, str]]:
    """Status and text of many calls at once."""
    with ThreadPoolExecutor(CALLS) as pool:
        replies = list(pool.map(lambda _: post(url, "/v1/completions", {"model": model, **ASKED}), range(CALLS)))
    return Counter((r.status_code, r.json()["choices"][0]["text"] if r.is_success else "") for r in replies)


def served(url: str) -> dict[str, float]:
    """Engine core → requests that it has ended."""
    text = httpx.get(f"{url}/metrics", timeout=60, trust_env=False).text
    found: Counter[str] = Counter()
    for core, count in re.findall(r'^vllm:request_success_total\{engine="(\d)".*\} ([0-9.e+]+)$', text, re.MULTILINE):
        found[core] += float(count)  # type: ignore[assignment]
    return dict(found)


def test_an_adapter_reaches_every_replica(url: str, tmp_path: Path) -> None:
    adapter = make_adapter(tmp_path / "inbox@1", 3)  # with seed 1 the text is the base model's
    base = answers(url, "inbox")
    before = served(url)
    loaded = post(url, "/v1/load_lora_adapter", {"lora_name": "inbox@1", "lora_path": str(adapter)})
    assert loaded.status_code == 200, loaded.text
    found = answers(url, "inbox@1")
    assert len(found) == 1 and found.keys() != base.keys()
    assert all(status == 200 for status, _ in found)
    more = {core: count - before.get(core, 0) for core, count in served(url).items()}
    assert len(more) == 2 and min(more.values()) > 0, "one of the engine cores had no call"
    assert answers(url, "inbox").keys() == base.keys()
    assert post(url, "/v1/unload_lora_adapter", {"lora_name": "inbox@1"}).status_code == 200
    assert {status for status, _ in answers(url, "inbox@1")} == {404}
