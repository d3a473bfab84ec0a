"""What coding agents need to work through the proxy, and how it is taken back."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml
from aiohttp import web
from tests.support.served import Served

from slipstream.errors import ConfigError
from slipstream_connect.agents import AGENT_PROGRAMS
from slipstream_connect.connecting import (
    STATE_FILE,
    AgentAddress,
    connect,
    lines_of,
    run_of,
    served_there,
    trouble_of,
    undo,
)

PLACE = AgentAddress("http://127.0.0.1:8100", "my-model")
RUN = PLACE._replace(episode="run1", task="fix")
CONNECTED = list(AGENT_PROGRAMS.values())
ROOT_URLS = ("claude-code", "gemini-cli")
"""Agents that want the address without ``/v1``."""


@pytest.mark.parametrize("agent", CONNECTED, ids=lambda a: a.name)
def test_the_lines_hold_address_and_model(agent, tmp_path):
    text = "\n".join(lines_of(agent, PLACE))
    assert "http://127.0.0.1:8100" in text and "my-model" in text and "{" not in text.replace("{\n", "").replace("{ ", "").replace("{}", "").replace('{"', "").replace('{ name', "")  # fmt: skip
    words, env = run_of(agent, RUN, [agent.command, "go"], tmp_path)
    files = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    told = " ".join(words) + " ".join(env.values()) + files
    assert "t/fix/e/run1/v1" in told or (agent.name in ROOT_URLS and told.count("/t/fix/e/run1") == 1)
    assert (words[0], words[-1]) == (agent.command, "go")


@pytest.mark.parametrize("agent", [a for a in CONNECTED if a.file], ids=lambda a: a.name)
def test_a_file_is_written_and_taken_back(agent, tmp_path):
    path = connect(agent, PLACE, tmp_path)
    assert path is not None
    read = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load}[path.suffix](path.read_text())
    assert "my-model" in json.dumps(read)
    assert connect(agent, PLACE._replace(model="other"), tmp_path) == path  # again, with another model
    assert undo(agent, tmp_path) == path and not path.exists() and undo(agent, tmp_path) is None


def test_what_is_there_is_kept(tmp_path):
    agent, mine = AGENT_PROGRAMS["claude-code"], '{"theme": "dark", "env": {"A": "1"}}'
    path = tmp_path / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(mine)
    connect(agent, PLACE, tmp_path)
    read = json.loads(path.read_text())
    assert read["theme"] == "dark" and read["env"]["A"] == "1" and read["env"]["ANTHROPIC_MODEL"] == "my-model"
    written = path.read_text()
    path.write_text("{broken")
    with pytest.raises(ConfigError, match="changed since"):
        undo(agent, tmp_path)
    path.write_text(written)
    assert undo(agent, tmp_path) == path and path.read_text() == mine
    path.write_text("// mine\n{}")
    with pytest.raises(ConfigError, match="--print"):
        connect(agent, PLACE, tmp_path)
    codex = tmp_path / ".codex/config.toml"
    codex.parent.mkdir()
    codex.write_text('model = "x"\n')
    with pytest.raises(ConfigError, match="--print"):
        connect(AGENT_PROGRAMS["codex"], PLACE, tmp_path)
    assert codex.read_text() == 'model = "x"\n'


def test_what_was_written_since_stays_when_it_is_taken_back(tmp_path):
    agent = AGENT_PROGRAMS["claude-code"]
    path = tmp_path / agent.file.path
    path.parent.mkdir()
    path.write_text('{"env": {"A": "1", "ANTHROPIC_MODEL": "mine"}}')
    connect(agent, PLACE, tmp_path)
    changed = json.loads(path.read_text())
    changed["permissions"], changed["env"]["ANTHROPIC_AUTH_TOKEN"] = {"allow": ["Bash"]}, "my key"
    path.write_text(json.dumps(changed))
    connect(agent, PLACE._replace(root="http://127.0.0.1:8200"), tmp_path)  # again: what it takes back is the first one
    assert json.loads(path.read_text())["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8200"
    assert undo(agent, tmp_path) == path
    env = {"A": "1", "ANTHROPIC_MODEL": "mine", "ANTHROPIC_AUTH_TOKEN": "my key"}
    assert json.loads(path.read_text()) == {"env": env, "permissions": {"allow": ["Bash"]}}


@pytest.mark.parametrize(("name", "more"), [("opencode", '{"$schema": "x"}'), ("codex", '[projects."/w"]\n')])
def test_a_file_that_the_agent_adds_to(name, more, tmp_path):
    agent = AGENT_PROGRAMS[name]
    path = connect(agent, PLACE, tmp_path)
    wrote = path.read_text()
    path.write_text(json.dumps({**json.loads(more), **json.loads(wrote)}) if name == "opencode" else wrote + more)
    assert undo(agent, tmp_path) == path and "".join(path.read_text().split()) == "".join(more.split())
    assert undo(agent, tmp_path) is None
    path.unlink()
    connect(agent, PLACE, tmp_path).unlink()
    assert undo(agent, tmp_path) == path and not path.exists()


def test_it_asks_the_proxy_as_the_agent_would_and_says_what_is_wrong():
    answers: list[web.Response] = []
    heard: list[tuple[str, str | None]] = []

    async def models(request: web.Request) -> web.Response:
        heard.append((request.path, request.headers.get("authorization")))
        return answers.pop()

    app = web.Application()
    app.router.add_get("/{path:.*}", models)
    listed = {"object": "list", "data": [{"id": "my-model"}, {"id": "other"}]}
    cases = [
        (web.json_response(listed), "my-model", None),
        (web.json_response(listed), "m", "lists no model m, but my-model, other"),
        (web.json_response({}, status=401), "m", "scope inference"),
        (web.json_response({}, status=503), "m", "no engine that is up"),
        (web.json_response({}, status=404), "m", "is no Slipstream proxy (GET /t/fix/e/run1/v1/models: 404)"),
        (web.Response(text="<html>"), "m", "is no Slipstream proxy"),
    ]
    with Served(app) as url:
        for answer, model, wanted in cases:
            answers.append(answer)
            found = trouble_of(RUN._replace(root=url, model=model, key="sk-1"))
            assert (found is None) if wanted is None else wanted in (found or ""), found
        answers.append(web.json_response(listed))
        assert served_there(RUN._replace(root=url, model="default", key="sk-1")).model == "my-model"
    assert served_there(PLACE._replace(root="http://127.0.0.1:9")) == PLACE._replace(root="http://127.0.0.1:9")
    assert set(heard) == {("/t/fix/e/run1/v1/models", "Bearer sk-1")}
    assert "start `slipstream up`" in (trouble_of(PLACE._replace(root="http://127.0.0.1:9")) or "")


def test_a_link_stays_a_link_and_no_key_is_shown_to_others(tmp_path):
    agent, kept = AGENT_PROGRAMS["claude-code"], tmp_path / "dotfiles.json"
    kept.write_text("{}")
    path = tmp_path / agent.file.path
    path.parent.mkdir()
    path.symlink_to(kept)
    connect(agent, PLACE, tmp_path)
    assert path.is_symlink() and "my-model" in kept.read_text()
    undo(agent, tmp_path)
    assert path.is_symlink() and kept.read_text() == "{}"
    made = connect(AGENT_PROGRAMS["opencode"], PLACE, tmp_path)
    assert {p.stat().st_mode & 0o777 for p in (made, tmp_path / STATE_FILE)} == {0o600}
