"""Adapters that an engine fetches from the proxy."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.served import Served

from slipstream_vllm.fetch import MAX_KEPT_FOLDERS, AdapterFetcher, NotFetched, fetching

CONFIG = b'{"r": 8}'


class Files:
    """The proxy's route, as far as the engine needs it."""

    def __init__(self) -> None:
        self.weights = {"inbox@1": b"w" * 3_000_000}
        self.broken = False
        self.asked: list[tuple[str, str | None]] = []

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/slipstream/v1/adapters/{name}/files/{file}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.Response:
        name, file = request.match_info["name"], request.match_info["file"]
        self.asked.append((file, request.headers.get("authorization")))
        if name not in self.weights:
            return web.Response(status=404, text="not here")
        body = CONFIG if file == "adapter_config.json" else self.weights[name]
        headers = {"x-slipstream-sha256": hashlib.sha256(body).hexdigest(), "x-slipstream-path": f"/shared/{name}"}
        return web.Response(body=body[:-1] if self.broken else body, headers=headers)


@pytest.fixture
def files():
    return Files()


@pytest.fixture
def fetcher(files: Files, tmp_path: Path):
    with Served(files.app()) as url:
        yield AdapterFetcher(url + "/", "sk-1", tmp_path / "cache")


def test_an_adapter_is_fetched_once(files: Files, fetcher: AdapterFetcher) -> None:
    found = fetcher.folder("inbox@1")
    assert (found / "adapter_model.safetensors").read_bytes() == files.weights["inbox@1"]
    assert (found / "adapter_config.json").read_bytes() == CONFIG and found.name == "inbox@1"
    before = found.stat().st_mtime_ns
    assert fetcher.folder("inbox@1") == found and found.stat().st_mtime_ns == before
    assert {key for _, key in files.asked} == {"Bearer sk-1"}
    assert fetcher.path_of("inbox@1") == "/shared/inbox@1"


def test_a_name_that_stands_for_other_weights_is_fetched_anew(files: Files, fetcher: AdapterFetcher) -> None:
    first = fetcher.folder("inbox@1")
    files.weights["inbox@1"] = b"other"
    assert fetcher.folder("inbox@1") != first


def test_other_bytes_than_the_proxy_said_are_not_kept(files: Files, fetcher: AdapterFetcher) -> None:
    files.broken = True
    with pytest.raises(NotFetched, match="other bytes"):
        fetcher.folder("inbox@1")
    assert [p.name for p in fetcher.cache.iterdir() if p.is_dir()] == []
    files.broken = False
    assert fetcher.folder("inbox@1").is_dir()


def test_old_ones_go(files: Files, fetcher: AdapterFetcher) -> None:
    for n in range(MAX_KEPT_FOLDERS + 4):
        files.weights[f"inbox@{n}"] = str(n).encode()
        fetcher.folder(f"inbox@{n}")
    kept = [p for p in fetcher.cache.iterdir() if p.is_dir()]
    assert len(kept) == MAX_KEPT_FOLDERS and fetcher.folder(f"inbox@{MAX_KEPT_FOLDERS + 3}").parent in kept


def test_a_folder_that_is_here_serves_where_the_proxy_does_not_answer(tmp_path: Path) -> None:
    fetcher = AdapterFetcher("http://127.0.0.1:9", None, tmp_path / "cache")
    asked = fetching(lambda path: path + "!", fetcher)
    assert asked("/shared/inbox@1") == "/shared/inbox@1!"
    with pytest.raises(NotFetched):
        fetcher.path_of("inbox@1")


def test_what_the_proxy_lacks_is_said(files: Files, fetcher: AdapterFetcher) -> None:
    with pytest.raises(NotFetched, match="404: not here"):
        fetcher.folder("inbox@9")
