"""The lines to paste are in the language of the framework, and hold address, model and tags."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from slipstream.operate.setup.frameworks import BY_NAME, FRAMEWORK_GUIDES, detect, lines_for, named

OTHER_LANGUAGES = ("vercel-ai", "llm", "other")


@pytest.mark.parametrize("name", BY_NAME)
def test_lines(name: str) -> None:
    text = "\n".join(lines_for(name, "qwen", "http://127.0.0.1:8100"))
    assert "http://127.0.0.1:8100" in text
    assert "x-slipstream-episode" in text or "/e/RUN_ID/" in text
    assert "x-slipstream-task" in text or "/t/TASK/" in text
    if name != "llm":  # its key stands in its own file
        assert re.search(r"(api_?key|OPENAI_API_KEY)\W+none", text, re.IGNORECASE), (
            "a client without a key ends at once"
        )
    if name not in OTHER_LANGUAGES:
        ast.parse(text.replace(", ...)", ")"))


def test_what_is_installed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name in there else None)
    assert detect(tmp_path) == "other"
    there |= {"openai", "litellm"}
    assert detect(tmp_path) == "litellm"
    there.add("pydantic_ai")
    assert detect(tmp_path) == "pydantic-ai"
    for text in ("{", "[]", '{"dependencies": {"next": "1"}}'):
        (tmp_path / "package.json").write_text(text)
        assert detect(tmp_path) == "pydantic-ai"
    (tmp_path / "package.json").write_text('{"dependencies": {"ai": "5"}}')
    assert detect(tmp_path) == "vercel-ai"
    (tmp_path / "package.json").unlink()
    assert named(tmp_path) is None
    (tmp_path / "requirements-dev.txt").write_text("# my agent\n  Agno[all]>=2\nopenai==2.1\n")
    assert (named(tmp_path), detect(tmp_path)) == ("agno", "agno")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["openai-agents >= 0.2", "httpx"]\n')
    assert detect(tmp_path) == "openai-agents"
    (tmp_path / "pyproject.toml").write_text("my notes on langgraph and crewai")
    assert detect(tmp_path) == "agno"
    assert len(BY_NAME) == len(FRAMEWORK_GUIDES)
