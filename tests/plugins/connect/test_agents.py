"""The coding agents that there are lines for."""

from __future__ import annotations

from tests.support import ROOT

from slipstream_connect.agents import AGENT_PROGRAMS


def test_there_are_more_than_a_dozen_and_each_has_its_section():
    assert len(AGENT_PROGRAMS) >= 16
    text = (ROOT / "docs" / "coding-agents.md").read_text()
    assert all(f"| `{name}` |" in text for name in AGENT_PROGRAMS)
    heads = (
        " ".join(line for line in text.splitlines() if line.startswith("## ")) + " Greedy agents: Copilot Aider gptme"
    )
    assert all(
        agent.title.split()[-1 if agent.name == "copilot" else 0].replace("CLI", "Copilot") in heads
        for agent in AGENT_PROGRAMS.values()
    )
