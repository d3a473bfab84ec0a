"""Engines without token ids: relayed as they are, recorded as text, judged, exported, and never trained on."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from tests.support import wait_for
from tests.support.running import recorded, run_proxy
from tests.support.served import Served
from tests.support.text_engines import LlamaCpp, Ollama, TextEngine

from slipstream.client import Client
from slipstream.engines.engine import NO_IDS

API = "/slipstream/v1"
SAYS = {"role": "user", "content": "hi ✓"}
TITLES = {"Ollama": "Ollama 0.9.6", "LlamaCpp": "llama.cpp"}


def engine_line(http: httpx.Client) -> dict:
    found = http.get(f"{API}/status").json()
    assert found["engines"][0]["kind"] == "openai"
    return next(line for line in found["funnel"]["lines"] if line["stage"] == "engine")


@pytest.mark.parametrize("server", [Ollama(), LlamaCpp()], ids=lambda s: type(s).__name__)
def test_relayed_recorded_judged_exported_never_trained(tmp_path: Path, server: TextEngine) -> None:
    groups = {"size": 2}
    with (
        Served(server.app()) as url,
        run_proxy(tmp_path, f"{url}/v1", groups=groups) as proxy,
        httpx.Client(base_url=proxy.url, trust_env=False, timeout=60) as http,
    ):
        server.bodies.clear()
        line = engine_line(http)
        assert (
            line["cause"] == "no_token_ids"
            and line["severity"] == "blocks"
            and "never trained on" in line["text"]
            and "vLLM" in line["fix"]
        )
        assert http.get(f"{API}/status").json()["engines"][0]["title"] == TITLES[type(server).__name__]

        for run in ("a", "b"):
            tags = {"x-slipstream-episode": run, "x-slipstream-task": "t"}
            asked = {"model": "inbox", "messages": [SAYS], "temperature": 0.7}
            direct = httpx.post(f"{url}/v1/chat/completions", json=asked, trust_env=False)
            reply = http.post("/v1/chat/completions", json=asked, headers=tags)
            assert reply.content == direct.content and server.bodies[-1] == server.bodies[-2]  # both ways as it is
            assert reply.headers["x-slipstream-trainable"] == f"no; {NO_IDS}"
            with http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}, headers=tags) as stream:
                assert stream.read().endswith(b"data: [DONE]\n\n")
            # a format that some have a route for, and others not
            body = {
                "model": "inbox",
                "max_tokens": 9,
                "system": "s",
                "messages": [SAYS],
                "thinking": {"type": "disabled"},
            }
            reply = http.post("/v1/messages", json=body, headers=tags)
            own = "/v1/messages" in server.formats
            assert reply.json()["content"][-1]["text"] == ("by its own route" if own else "you said hi ✓"), reply.text
            assert server.bodies[-1][0] == ("/v1/messages" if own else "/v1/chat/completions")
            assert not {"return_token_ids", "logprobs", "slipstream_capture"} & json.loads(server.bodies[-1][1]).keys()
            reply = http.post(
                "/v1/messages", json={**body, "messages": "none"}, headers={**tags, "x-slipstream-split": "off"}
            )
            assert own or (reply.status_code == 400 and reply.json()["type"] == "error"), reply.text

        episodes = [recorded(proxy.url, run, 3) for run in ("a", "b")]
        for found in episodes:
            assert found.call_list[0].messages and found.call_list[0].reply[0]["content"] == "you said hi ✓"
            assert (found.call_list[0].prompt_tokens, found.call_list[0].completion_tokens) == (9, 3), "as it counts"
            assert all(not call.trainable and call.untrainable_reason == NO_IDS for call in found.call_list)
        with Client(proxy.url) as client:
            for run in ("a", "b"):
                http.post(f"{API}/episodes/{run}/done", json={})
            wanted = {"worker": "w", "names": ["quality"]}
            lease = wait_for(
                lambda: http.post(f"{API}/groups/lease", json=wanted).json(), 30, 0.1, "a group to be judged"
            )
            scores = [
                {"episode": e["episode"]["id"], "name": "quality", "value": n}
                for n, e in enumerate(lease["groups"][0]["episodes"])
            ]
            posted = http.post(
                f"{API}/groups/{lease['groups'][0]['id']}/scores", json={"lease": lease["lease"], "scores": scores}
            )
            assert posted.is_success, posted.text
            rewards = wait_for(lambda: [r for run in "ab" for r in client.episode(run).rewards], 30, 0.1, "the scores")
            assert {r.name for r in rewards} == {"quality"}
            rows = [json.loads(line) for line in b"".join(client.export("sft")).splitlines()]
            said = [m["content"] for row in rows for m in row["messages"]]
            assert said and all(isinstance(text, str) and text for text in said), "a chat, whatever format was spoken"
            # a trainer that asks gets nothing, and is told why
            assert not http.post(f"{API}/batches/lease", json={"worker": "t"}).content.strip(b"null")
            status = http.get(f"{API}/status").json()
            assert status["untrainable"] == {NO_IDS: 6}
            stages = {line["stage"] for line in status["funnel"]["lines"]}
            assert "engine" in stages <= {"engine", "calls", "judge"}, "nothing that training waits for"
