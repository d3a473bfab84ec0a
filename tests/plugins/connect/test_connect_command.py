"""`slipstream connect NAME --run`: one run of an agent."""

from __future__ import annotations

import sys

from slipstream.cli import main
from slipstream.operate.setup.frameworks import BY_NAME
from slipstream_connect.agents import AGENT_PROGRAMS


def test_a_run_has_its_own_episode_and_its_own_exit_code(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    show = "import os, sys; print(os.environ['OPENAI_API_BASE']); sys.exit(3)"
    named = ["connect", "aider", "--url", "http://proxy:1", "--model", "m", "--task", "Fix it"]
    command = ["--run", "--", sys.executable, "-c", show]
    # the agent's own arguments go first: Python takes none of them
    monkeypatch.setitem(AGENT_PROGRAMS, "aider", AGENT_PROGRAMS["aider"]._replace(args=()))
    assert main([*named, *command]) == 3 and main([*named, *command]) == 3
    first, second = capfd.readouterr().out.split()
    assert first != second and first.startswith("http://proxy:1/t/Fix-it-") and first.endswith("/v1") and "/e/" in first
    assert main([*named, "--print"]) == 0
    assert "export OPENAI_API_BASE=http://proxy:1/t/Fix-it-" in capfd.readouterr().out
    assert main(["connect", "aider", "--run", "--", "no-such-program"]) == 2


def test_a_framework_gets_the_lines_for_this_proxy(capsys):
    assert main(["connect", "langgraph", "--url", "http://proxy:1/v1", "--model", "m"]) == 0
    said = capsys.readouterr().out
    assert 'ChatOpenAI(model="m", base_url="http://proxy:1/v1"' in said
    for option in (["--undo"], ["--task", "t"], ["--run", "--", "true"]):
        assert main(["connect", "langgraph", *option]) == 2
        assert "langgraph is a framework" in capsys.readouterr().err


def test_no_framework_is_called_like_a_coding_agent():
    assert not AGENT_PROGRAMS.keys() & BY_NAME.keys()
