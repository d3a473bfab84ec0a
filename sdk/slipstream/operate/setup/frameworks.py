"""Agent frameworks: which one is installed here, and the lines that point it at the proxy and tag its calls."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
from pathlib import Path
from typing import NamedTuple

HEADERS_SNIPPET = '{"x-slipstream-episode": run_id, "x-slipstream-task": task}'


class Framework(NamedTuple):
    name: str
    module: str | None
    """The import that shows that it is installed; None: found by other means."""
    lines: str
    """``{model}``, ``{url}`` (with /v1) and ``{headers}`` are filled in."""
    packages: tuple[str, ...] = ()
    """Packages of PyPI that mean it, beside one of its own name."""
    npm: str | None = None
    """The package of npm that means it."""


FRAMEWORK_GUIDES = (
    Framework(
        "langgraph",
        "langgraph",
        'llm = ChatOpenAI(model="{model}", base_url="{url}", api_key="none", default_headers={headers})',
    ),
    Framework(
        "openai-agents",
        "agents",
        'set_default_openai_client(AsyncOpenAI(base_url="{url}", api_key="none"))\n'
        'set_default_openai_api("chat_completions")\n'
        'Agent(model="{model}", model_settings=ModelSettings(extra_headers={headers}), ...)',
    ),
    Framework(
        "pydantic-ai",
        "pydantic_ai",
        'model = OpenAIChatModel("{model}", provider=OpenAIProvider(base_url="{url}", api_key="none"))\n'
        'agent.run_sync(prompt, model_settings={{"extra_headers": {headers}}})',
    ),
    Framework(
        "strands",
        "strands",
        'model = OpenAIModel(model_id="{model}", client_args={{"base_url": "{url}", "api_key": "none"}}, '
        'params={{"extra_headers": {headers}}})\nAgent(model=model, ...)',
        ("strands-agents",),
    ),
    Framework(
        "llama-index",
        "llama_index",
        'llm = OpenAILike(model="{model}", api_base="{url}", api_key="none", is_chat_model=True, '
        "is_function_calling_model=True, temperature=1.0, default_headers={headers})",
        ("llama-index-core", "llama-index-llms-openai-like"),
    ),
    Framework(
        "google-adk",
        "google.adk",
        'model = LiteLlm(model="openai/{model}", api_base="{url}", api_key="none", num_retries=2)\n'
        "RunConfig(http_options=HttpOptions(headers={headers}))",
    ),
    Framework(
        "agent-framework",
        "agent_framework",
        'client = OpenAIChatCompletionClient(model="{model}", base_url="{url}", api_key="none")\n'
        'agent.run(prompt, options={{"extra_headers": {headers}}})',
        ("agent-framework-core", "agent-framework-openai"),
    ),
    Framework(
        "crewai",
        "crewai",
        'llm = LLM(model="openai/{model}", base_url="{url}", api_key="none", default_headers={headers})',
    ),
    Framework(
        "autogen",
        "autogen_ext",
        'client = OpenAIChatCompletionClient(model="{model}", base_url="{url}", api_key="none", '
        "default_headers={headers}, model_info=...)",
    ),
    Framework(
        "agno", "agno", 'model = OpenAILike(id="{model}", base_url="{url}", api_key="none", default_headers={headers})'
    ),
    Framework(
        "smolagents",
        "smolagents",
        'model = OpenAIServerModel("{model}", api_base="{url}", api_key="none", '
        'client_kwargs={{"default_headers": {headers}}})',
    ),
    Framework(
        "dspy", "dspy", 'lm = dspy.LM("openai/{model}", api_base="{url}", api_key="none", extra_headers={headers})'
    ),
    Framework(
        "instructor",
        "instructor",
        'client = instructor.from_openai(OpenAI(base_url="{url}", api_key="none", default_headers={headers}))',
    ),
    Framework(
        "mastra",
        None,
        'const model = {{ id: "slipstream/{model}", url: "{url}", apiKey: "none" }};\n'
        "await agent.generate(prompt, {{ modelSettings: {{ headers: {headers} }} }});",
        npm="@mastra/core",
    ),
    Framework(
        "vercel-ai",
        None,
        'const slipstream = createOpenAICompatible({{ name: "slipstream", baseURL: "{url}", apiKey: "none" }});\n'
        'await generateText({{ model: slipstream("{model}"), headers: {headers}, prompt }});',
        npm="ai",
    ),
    Framework(
        "langchain-js",
        None,
        'const llm = new ChatOpenAI({{ model: "{model}", apiKey: "none", configuration: {{ baseURL: "{url}" }} }});\n'
        "createAgent({{ model: llm.withConfig({{ options: {{ headers: {headers} }} }}), tools }});",
        npm="@langchain/openai",
    ),
    Framework(
        "openai-node",
        None,
        'const client = new OpenAI({{ baseURL: "{url}", apiKey: "none" }});\n'
        'await client.chat.completions.create({{ model: "{model}", messages }}, {{ headers: {headers} }});',
        npm="openai",
    ),
    Framework("llm", "llm", "# the task and the run stand in the address\nllm -m {model} …   # api_base: {tagged}"),
    Framework(
        "litellm",
        "litellm",
        'litellm.completion(model="openai/{model}", api_base="{url}", api_key="none", '
        "extra_headers={headers}, messages=...)",
    ),
    Framework(
        "anthropic", "anthropic", 'client = Anthropic(base_url="{root}", api_key="none", default_headers={headers})'
    ),
    Framework(
        "openai",
        "openai",
        'client = OpenAI(base_url="{url}", api_key="none")\n'
        'client.chat.completions.create(model="{model}", extra_headers={headers}, messages=...)',
    ),
    Framework(
        "other",
        None,
        (
            "# the task and the run stand in the address, where your agent can set nothing else\nexport "
            "OPENAI_BASE_URL={tagged} OPENAI_API_KEY=none"
        ),
    ),
)
"""The most particular first: several of them bring openai or litellm along."""
BY_NAME = {f.name: f for f in FRAMEWORK_GUIDES}


def detect(folder: Path) -> str:
    """The framework that the folder's files name, else the first that is installed here, else ``other``."""
    found = (f.name for f in FRAMEWORK_GUIDES if f.module and _installed(f.module))
    return named(folder) or next(found, "other")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # a package around it is not there, or has no path
        return False


def named(folder: Path) -> str | None:
    """The first framework that ``package.json``, ``pyproject.toml`` or a file of requirements in ``folder`` names."""
    try:
        package = json.loads((folder / "package.json").read_text())
        wanted = {**package.get("dependencies", {}), **package.get("devDependencies", {})}
        if found := next((f.name for f in FRAMEWORK_GUIDES if f.npm in wanted), None):
            return found
    except (OSError, ValueError, AttributeError, TypeError):
        pass
    texts = []
    for path in (folder / "pyproject.toml", *sorted(folder.glob("requirements*.txt"))):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            texts.append(path.read_text())
    words = re.compile(r"(?m)(?:^|[\"'])\s*([A-Za-z][\w.-]*)").findall("\n".join(texts))
    packages = {word.lower().replace("_", "-") for word in words}
    known = (
        f.name
        for f in FRAMEWORK_GUIDES
        if f.module and packages & {f.name, f"{f.name}-ext", f"{f.name}-agentchat", *f.packages}
    )
    return next(known, None)


def lines_for(name: str, model: str, root: str) -> list[str]:
    """What to paste into an agent of this framework. ``root`` is the proxy's URL without ``/v1``."""
    filled = BY_NAME[name].lines.format(
        model=model, url=f"{root}/v1", root=root, headers=HEADERS_SNIPPET, tagged=f"{root}/t/TASK/e/RUN_ID/v1"
    )
    return filled.split("\n")
