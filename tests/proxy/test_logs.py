"""What stands in the logs, whatever happens: ids and numbers. Keys and texts of messages never."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import tomli_w
from tests.support import process, slipstream, wait_for
from tests.support.fake_engine import FakeEngine

TEXT = "grandmother-is-in-hospital"
"""In every text that an agent, a user or the engine writes."""
ENGINE_KEY, UPSTREAM_KEY, WRONG_KEY = "sk-engine-4711", "sk-upstream-4712", "sk-slip-wrong-4713"
REDACT = f"""
def redact(record):
    if "tear-it-up" in record["request"]:
        raise ValueError("cannot redact {TEXT}: " + record["request"])
    return record
"""


class Talker(FakeEngine):
    """Says the text too, in replies that are whole, broken or refused."""

    def error(self, status: int, message: str) -> Any:
        return super().error(status, f"{message}: {TEXT}")

    async def chat(self, request: Any) -> Any:
        if b'"rubbish"' in await request.read():
            from aiohttp import web

            return web.Response(body=b'{"choices": [' + TEXT.encode(), content_type="application/json")
        return await super().chat(request)


async def flood(url: str, engine: Talker, key: str) -> list[str]:
    """Everything that may go wrong, with the text in it. Returns the ids of answered calls."""
    ids: list[str] = []
    timeout = aiohttp.ClientTimeout(total=60)

    async def send(path: str, body: Any, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "x-slipstream-tag-note": TEXT,
            **headers,
        }
        with contextlib.suppress(aiohttp.ClientError, asyncio.IncompleteReadError):
            async with session.post(url + path, data=data, headers=own) as reply:
                if call := reply.headers.get("x-slipstream-call"):
                    ids.append(call)
                await reply.read()

    def chat(**more: Any) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": "tell", "description": TEXT, "parameters": {}}}]
        messages = [{"role": "system", "content": TEXT}, {"role": "user", "content": [{"type": "text", "text": TEXT}]}]
        return {"model": "tiny", "messages": messages, "tools": tools, "user": TEXT, **more}

    async with aiohttp.ClientSession(timeout=timeout) as session:
        c = "/v1/chat/completions"
        await send(c, chat(), **{"x-slipstream-episode": "e1"})
        await send(c, chat(stream=True), **{"x-slipstream-episode": "e1"})
        await send("/v1/completions", {"model": "tiny", "prompt": TEXT})
        await send("/v1/messages", {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": TEXT}]})
        await send(c, b'{"model": "tiny", "messages": [' + TEXT.encode())
        await send(c, chat(model=TEXT))
        await send(c, chat(model="elsewhere"))
        await send(c, chat(seed="rubbish"))
        await send(c, chat(seed="tear-it-up"))
        await send(c, chat(), authorization=f"Bearer {WRONG_KEY}")
        await send(c, chat(), authorization=f"Bearer {key}:t1:e2")
        await send(c, chat(), **{"x-slipstream-task": TEXT + " with blanks"})
        await send(c, chat(), traceparent=TEXT)
        await send(f"/v1/{TEXT}", chat())
        engine.fail_with = 500
        await send(c, chat())
        engine.fail_with, engine.die_after = None, 2
        await send(c, chat(stream=True))
        engine.die_after = None
        api = "/slipstream/v1"
        await send(f"{api}/episodes/e1/rewards", {"value": 1.0, "reason": TEXT, "metadata": {"said": TEXT}})
        await send(f"{api}/episodes/e1/rewards", {"value": TEXT})
        await send(f"{api}/episodes/e1/done", {})
        await send(f"{api}/training/events", {"kind": "note", "data": {"said": TEXT}})
        await send(f"{api}/sql", {"query": f"select '{TEXT}'::int"})
        await send(f"{api}/import", {"episodes": TEXT})
        await send(f"{api}/{TEXT}", {})
        assert len(ids) >= 8
        status = {"authorization": f"Bearer {key}"}
        for _ in range(300):
            async with session.get(f"{url}{api}/status", headers=status) as reply:
                read = await reply.json()
                if read.get("calls", 0) >= 8:
                    return ids
            await asyncio.sleep(0.1)
    raise AssertionError(f"the calls are not in the store: {read}")


@pytest.fixture
def settings(tmp_path: Path) -> tuple[Path, str]:
    """A configuration with keys everywhere, and an agent's key."""
    data = tmp_path / "data"
    (tmp_path / "redacting.py").write_text(REDACT)
    made = subprocess.run(
        slipstream("keys", "--set", f"data_dir={data}", "add", "agent", "--scopes", "inference,reward,admin"),
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    key = next(word for word in made.stdout.split() if word.startswith("sk-slip-"))
    return data, key


async def test_neither_keys_nor_texts(settings: tuple[Path, str], tmp_path: Path) -> None:
    data, key = settings
    engine = await Talker().start()
    config = tmp_path / "slipstream.toml"
    tree = {
        "data_dir": str(data), "proxy": {"port": 0, "workers": 2, "redact": "redacting:redact"}, "engine": {"urls": [engine.url], "name": "tiny", "api_key": ENGINE_KEY},
        "models": {"elsewhere": {"upstream": engine.url + "/v1", "api_key_env": "UPSTREAM_KEY", "model": "tiny"}},
    }  # fmt: skip
    config.write_text(tomli_w.dumps(tree))
    env = {"SLIPSTREAM_LOG_LEVEL": "debug", "SLIPSTREAM_LOG_FORMAT": "json", "UPSTREAM_KEY": UPSTREAM_KEY, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}  # fmt: skip
    log = tmp_path / "proxy.log"
    try:
        with process(slipstream("proxy", "--config", str(config)), log, env) as p:

            def up() -> str:
                assert p.poll() is None, log.read_text()[-3000:]
                url = json.loads((data / "proxy.json").read_text())["url"]
                return url if httpx.get(url + "/readyz", timeout=10, trust_env=False).is_success else ""

            url = await asyncio.to_thread(wait_for, up, 90, 0.1, "the proxy is up")
            ids = await flood(url, engine, key)
    finally:
        await engine.stop()

    said = log.read_text()
    # "adapter" and such are names that an operator gave; a path or a model's name that a stranger made up is a text
    for secret in (key, key.removeprefix("sk-slip-"), ENGINE_KEY, UPSTREAM_KEY, WRONG_KEY, TEXT):
        found = [line for line in said.splitlines() if secret in line]
        assert not found, found[:3]
    stored = b"".join(p.read_bytes() for p in data.rglob("*") if p.is_file())
    assert TEXT.encode() in stored
    for secret in (key, ENGINE_KEY, UPSTREAM_KEY, WRONG_KEY):
        assert secret.encode() not in stored
    assert all(said.count(call) >= 1 for call in ids), "a line a call, with its id"
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    calls = {x["request_id"]: x for x in lines if x["message"] == "call"}
    assert set(ids) <= set(calls)
    first = calls[ids[0]]
    assert (first["level"], first["episode"], first["outcome"], first["status"], first["format"]) == (
        "debug",
        "e1",
        "ok",
        200,
        "chat",
    )
    assert {x["level"] for x in lines if "worker" in x["message"]} == {"info"}, "state changes are at info"
    assert len([x for x in said.splitlines() if not x.startswith("{")]) <= 2, "every line is JSON, but for the address"
