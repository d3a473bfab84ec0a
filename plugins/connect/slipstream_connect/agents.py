"""Coding agents: what each needs to work through the proxy, for one run or in its own configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class ConfigFile(NamedTuple):
    """A configuration file of an agent's own."""

    path: str
    """Below the home."""
    text: str
    """``{root}``, ``{url}`` (with /v1), ``{host}``, ``{path}`` (of ``{url}``), ``{model}`` and ``{key}`` are filled in.
    JSON is merged into what is there.
    """


class CodingAgent(NamedTuple):
    name: str
    title: str
    command: str
    env: Mapping[str, str] = MappingProxyType({})
    """For one run, and to export where there is no ``file``."""
    args: tuple[str, ...] = ()
    """What goes behind the command in one run. ``{dir}`` is a folder of the run's own."""
    file: ConfigFile | None = None
    run_file: str | None = None
    """Where the file's text goes in ``{dir}`` for one run."""
    then: str = ""
    """What is left to do by hand."""


_OPENAI = {"OPENAI_BASE_URL": "{url}", "OPENAI_API_KEY": "{key}"}
_API_BASE = {"OPENAI_API_BASE": "{url}", "OPENAI_API_KEY": "{key}"}
_CLAUDE = {
    "ANTHROPIC_BASE_URL": "{root}",
    "ANTHROPIC_AUTH_TOKEN": "{key}",
    "ANTHROPIC_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_OPUS_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_SONNET_MODEL": "{model}",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": "{model}",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}
_PROVIDER = '{{ name = "Slipstream", base_url = "{url}", wire_api = "responses" }}'
_CODEX = """model = "{model}"
model_provider = "slipstream"

[model_providers.slipstream]
name = "Slipstream"
base_url = "{url}"
wire_api = "responses"
"""
_OPENCODE = {
    "provider": {
        "slipstream": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Slipstream",
            "options": {"baseURL": "{url}", "apiKey": "{key}"},
            "models": {"{model}": {"name": "{model}"}},
        }
    },
    "model": "slipstream/{model}",
    "small_model": "slipstream/{model}",
}
_PI = {
    "providers": {
        "slipstream": {
            "baseUrl": "{url}",
            "api": "openai-completions",
            "apiKey": "{key}",
            "models": [{"id": "{model}"}],
        }
    }
}
_CLINE = {
    "version": 1,
    "lastUsedProvider": "openai-compatible",
    "providers": {
        "openai-compatible": {
            "settings": {"provider": "openai-compatible", "apiKey": "{key}", "model": "{model}", "baseUrl": "{url}"},
            "updatedAt": "2026-01-01T00:00:00.000Z",
            "tokenSource": "manual",
        }
    },
}
_HERMES = """model:
  default: {model}
  provider: custom
  base_url: {url}
  api_key: {key}
"""
_OPENCLAW = {
    "models": {
        "providers": {
            "slipstream": {
                "baseUrl": "{url}",
                "apiKey": "{key}",
                "api": "openai-completions",
                "models": [{"id": "{model}", "name": "{model}"}],
            }
        }
    },
    "agents": {"defaults": {"model": {"primary": "slipstream/{model}"}}},
}
_GEMINI = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "model": {"name": "{model}"}}
_CONTINUE = """name: Slipstream
version: 0.0.1
schema: v1
models:
  - name: {model}
    provider: openai
    model: {model}
    apiBase: {url}
    apiKey: {key}
    roles: [chat, edit, apply]
"""


def _json(value: dict[str, Any]) -> str:
    """With the braces of its objects doubled, as ``str.format`` wants them."""
    text = json.dumps(value, indent=2).replace("{", "{{").replace("}", "}}")
    for name in ("root", "url", "model", "key"):
        text = text.replace(f"{{{{{name}}}}}", f"{{{name}}}")
    return text + "\n"


AGENT_PROGRAMS = {
    agent.name: agent
    for agent in (
        CodingAgent(
            "claude-code",
            "Claude Code",
            "claude",
            env=_CLAUDE,
            file=ConfigFile(".claude/settings.json", _json({"env": _CLAUDE})),
        ),
        CodingAgent(
            "codex",
            "Codex",
            "codex",
            args=(
                *("-c", 'model="{model}"', "-c", 'model_provider="slipstream"'),
                *("-c", f"model_providers.slipstream={_PROVIDER}"),
            ),
            file=ConfigFile(".codex/config.toml", _CODEX),
        ),
        CodingAgent(
            "opencode",
            "OpenCode",
            "opencode",
            env={"OPENCODE_CONFIG_CONTENT": _json(_OPENCODE)},
            file=ConfigFile(".config/opencode/opencode.json", _json(_OPENCODE)),
        ),
        CodingAgent(
            "qwen-code",
            "Qwen Code",
            "qwen",
            env={**_OPENAI, "OPENAI_MODEL": "{model}"},
            args=("--auth-type", "openai"),
            then="start it with --auth-type openai",
        ),
        CodingAgent(
            "pi",
            "pi",
            "pi",
            env={"PI_CODING_AGENT_DIR": "{dir}"},
            args=("--provider", "slipstream", "--model", "{model}"),
            file=ConfigFile(".pi/agent/models.json", _json(_PI)),
            run_file="models.json",
            then="start it with --provider slipstream --model {model}",
        ),
        CodingAgent(
            "copilot",
            "GitHub Copilot CLI",
            "copilot",
            env={
                "COPILOT_PROVIDER_BASE_URL": "{url}",
                "COPILOT_PROVIDER_TYPE": "openai",
                "COPILOT_PROVIDER_API_KEY": "{key}",
                "COPILOT_MODEL": "{model}",
                "COPILOT_OFFLINE": "true",
            },
        ),
        CodingAgent(
            "cline",
            "Cline CLI",
            "cline",
            args=("--config", "{dir}"),
            file=ConfigFile(".cline/data/settings/providers.json", _json(_CLINE)),
            run_file="data/settings/providers.json",
        ),
        CodingAgent(
            "continue",
            "Continue CLI",
            "cn",
            env={"CONTINUE_TELEMETRY_ENABLED": "0"},
            args=("--config", "{dir}/config.yaml"),
            file=ConfigFile(".continue/config.yaml", _CONTINUE),
            run_file="config.yaml",
        ),
        CodingAgent(
            "aider",
            "Aider",
            "aider",
            env=_API_BASE,
            args=("--model", "openai/{model}"),
            then="start it with --model openai/{model}",
        ),
        CodingAgent(
            "mini-swe-agent",
            "mini-swe-agent",
            "mini",
            env={**_API_BASE, "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors"},
            args=("-m", "openai/{model}"),
            then="start it with -m openai/{model}",
        ),
        CodingAgent(
            "gptme",
            "gptme",
            "gptme",
            env=_OPENAI,
            args=("-m", "local/{model}"),
            then="start it with -m local/{model}",
        ),
        CodingAgent(
            "openhands",
            "OpenHands CLI",
            "openhands",
            env={"LLM_BASE_URL": "{url}", "LLM_API_KEY": "{key}", "LLM_MODEL": "openai/{model}"},
            args=("--override-with-envs",),
            then="start it with --override-with-envs",
        ),
        CodingAgent(
            "hermes",
            "Hermes Agent",
            "hermes",
            env={"HERMES_HOME": "{dir}"},
            file=ConfigFile(".hermes/config.yaml", _HERMES),
            run_file="config.yaml",
        ),
        CodingAgent(
            "openclaw",
            "OpenClaw",
            "openclaw",
            env={"OPENCLAW_STATE_DIR": "{dir}"},
            file=ConfigFile(".openclaw/openclaw.json", _json(_OPENCLAW)),
            run_file="openclaw.json",
        ),
        CodingAgent(
            "goose",
            "Goose",
            "goose",
            env={
                "GOOSE_PROVIDER": "openai",
                "GOOSE_MODEL": "{model}",
                "OPENAI_HOST": "{host}",
                "OPENAI_BASE_PATH": "{path}/chat/completions",
                "OPENAI_API_KEY": "{key}",
            },
        ),
        CodingAgent(
            "gemini-cli",
            "Gemini CLI",
            "gemini",
            env={
                "GOOGLE_GEMINI_BASE_URL": "{root}",
                "GEMINI_API_KEY": "{key}",
                "GEMINI_CLI_HOME": "{dir}",
            },
            file=ConfigFile(".gemini/settings.json", _json(_GEMINI)),
            run_file=".gemini/settings.json",
            then="start it with GOOGLE_GEMINI_BASE_URL={root} GEMINI_API_KEY={key}",
        ),
    )
}
