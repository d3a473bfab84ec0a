"""The lines to paste are in the language of the framework, and hold address, model and tags."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

from slipstream.operate.setup.frameworks import BY_NAME, FRAMEWORK_GUIDES, detect, lines_for, named

OTHER_LANGUAGES = ("vercel-ai", "mastra", "langchain-js", "openai-node", "llm", "other")
PAGE = (Path(__file__).parents[3] / "docs" / "frameworks.md").read_text()


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
    for package, name in {
        "@mastra/core": "mastra",
        "@langchain/openai": "langchain-js",
        "openai": "openai-node",
    }.items():
        (tmp_path / "package.json").write_text(json.dumps({"devDependencies": {"zod": "4", package: "1"}}))
        assert detect(tmp_path) == name
    (tmp_path / "package.json").unlink()
    assert named(tmp_path) is None
    (tmp_path / "requirements-dev.txt").write_text("# my agent\n  Agno[all]>=2\nopenai==2.1\n")
    assert (named(tmp_path), detect(tmp_path)) == ("agno", "agno")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["openai-agents >= 0.2", "httpx"]\n')
    assert detect(tmp_path) == "openai-agents"
    (tmp_path / "pyproject.toml").write_text("my notes on langgraph and crewai")
    assert detect(tmp_path) == "agno"
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["strands-agents[openai]", "openai"]\n')
    assert detect(tmp_path) == "strands"
    assert len(BY_NAME) == len(FRAMEWORK_GUIDES)


def test_a_package_around_it_may_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> None:
        if "." in name:
            raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert detect(tmp_path) == "other"


SAID_TWICE = {
    "vercel-ai": ("Vercel AI SDK", "createOpenAICompatible({ name: ", "generateText({ model: slipstream(", "headers"),
    "mastra": ("Mastra", "id: ", "slipstream/my-model", "generate(", "modelSettings: { headers"),
    "langchain-js": (
        "LangChain.js",
        "new ChatOpenAI({",
        "configuration: { baseURL: ",
        "withConfig({ options: { headers",
    ),
    "openai-node": ("openai for Node", "new OpenAI({ baseURL: ", "{ headers"),
    "strands": ("Strands", "OpenAIModel(", "client_args=", 'params={"extra_headers": '),
    "crewai": ("CrewAI", "LLM(model=", "default_headers="),
    "agno": ("Agno", "OpenAILike(id=", "default_headers="),
    "smolagents": ("smolagents", "OpenAIServerModel(", '"default_headers": '),
    "pydantic-ai": ("pydantic-ai", "OpenAIChatModel(", 'model_settings={"extra_headers": '),
    "llama-index": ("LlamaIndex", "OpenAILike(", "is_chat_model=True", "temperature=1.0", "default_headers="),
    "google-adk": ("Google ADK", 'LiteLlm(model="openai/my-model"', "RunConfig(http_options=HttpOptions(headers="),
    "agent-framework": (
        "Microsoft Agent Framework",
        'OpenAIChatCompletionClient(model="my-model"',
        'options={"extra_headers": ',
    ),
}
"""Framework → its section, and what its lines there and in ``init`` both have."""


@pytest.mark.parametrize("name", SAID_TWICE)
def test_init_and_the_page_say_one_thing(name: str) -> None:
    """The page's lines were run."""
    section, *words = SAID_TWICE[name]
    snippet = PAGE.split(f"\n## {section}\n")[1].split("```")[1]
    there, here = (
        re.sub(r"\s", "", text) for text in (snippet, "\n".join(lines_for(name, "my-model", "http://127.0.0.1:8100")))
    )
    for text in words:
        assert (found := re.sub(r"\s", "", text)) in here and found in there, text
