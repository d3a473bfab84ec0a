from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config import Config
from slipstream_proxy.control.shared.token_text import TokenTexter, pieces, tokenizer_file

TEXTS = {1: "Hel", 2: "lo", 3: " world"}


class Bytes:
    """A decoder whose tokens are bytes, as the worst of real ones."""

    def decode(self, ids, skip_special_tokens=True) -> str:
        return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=40))
def test_pieces_join_to_the_text(text):
    ids = list(text.encode("utf-8", "replace"))
    found = pieces(Bytes(), ids)
    assert len(found) == len(ids)
    assert "".join(found) == text.encode("utf-8", "replace").decode()


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_tokens_have_a_text_each(ids):
    found = pieces(Bytes(), ids)
    assert len(found) == len(ids)
    assert "".join(found).replace("\ufffd", "") == bytes(ids).decode("utf-8", "replace").replace("\ufffd", "")


def config_of(tmp_path, model: str | None = None) -> Config:
    return Config.model_validate(
        {"data_dir": str(tmp_path), "engine": {"urls": ["http://e"], "name": "m", "model": model}}
    )


@pytest.fixture
async def engine():
    asked: list[int] = []

    async def detokenize(request: web.Request) -> web.Response:
        body = await request.json()
        asked.extend(body["tokens"])
        return web.json_response({"prompt": "".join(TEXTS[i] for i in body["tokens"])})

    app = web.Application()
    app.router.add_post("/detokenize", detokenize)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/"), asked
    await server.close()


async def test_the_engine_is_asked_for_each_token_once(tmp_path, engine):
    url, asked = engine
    texter = TokenTexter(config_of(tmp_path))
    found = await texter.texts("m", [[1, 2], [3, 2]], [url])
    assert (found.texts, found.source) == ([["Hel", "lo"], [" world", "lo"]], url)
    await texter.texts("m", [[2, 1]], [url])
    assert sorted(asked) == [1, 2, 3]


async def test_why_there_is_no_text(tmp_path, engine):
    url, _ = engine
    texter = TokenTexter(config_of(tmp_path))
    assert "no engine answers" in ((await texter.texts("m", [[1]], [])).why or "")
    assert "does not tell" in ((await texter.texts("m", [[99]], [url])).why or "")
    assert "does not tell" in ((await texter.texts("m", [[9]], ["http://127.0.0.1:9"])).why or "")
    assert "fewer" in ((await texter.texts("m", [list(range(5000))], [url])).why or "")


def test_a_tokenizer_is_found_in_a_folder_and_in_the_hubs_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    assert tokenizer_file("org/name") == folder / "tokenizer.json"
    assert tokenizer_file(str(folder)) == folder / "tokenizer.json"
    assert tokenizer_file("org/other") is None
    assert tokenizer_file(None) is None


async def test_a_real_tokenizer(tmp_path):
    model = Path("examples/inbox/model")
    tokenizers = pytest.importorskip("tokenizers")
    ids = list(range(2, 12))
    found = await TokenTexter(config_of(tmp_path, str(model))).texts("m", [ids], [])
    whole = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    assert found.texts is not None and found.texts[0] is not None
    assert "".join(found.texts[0]) == whole
    assert json.dumps(found.texts)
