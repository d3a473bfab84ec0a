"""What to change when an engine refuses the agent's calls: by the words of its error, else by its status."""

from __future__ import annotations

import re

REFUSAL_FIXES = (
    (
        r"chat.?template|jinja|roles must alternate",
        "start the engine with a --chat-template that fits the model and the agent's messages",
    ),
    (
        r"tools\W+must not be an empty",
        "let the agent leave `tools` out where it has none, or give it a tool: docs/frameworks.md says how",
    ),
    (
        r"response with id|previous_response|input item",
        "the engine keeps no responses: let the agent send all items (`store: false`), or ask for chat completions",
    ),
    (
        r"enable-auto-tool-choice|tool-call-parser",
        (
            "set engine.tool_parser (a vLLM of your own: --enable-auto-tool-choice and --tool-call-parser), or let the "
            "agent send no `tools` where the model's chat template takes none"
        ),
    ),
    (
        r"maximum (?:context|model) length|max_model_len|context length",
        "start the engine with a larger --max-model-len (engine.max_model_len), or let the agent send less",
    ),
    (r"model\W.*does not exist", "let the agent ask for a model that `slipstream status` names"),
)
"""Part of the engine's words → what to do. The first one counts."""


def fix_of(status: int, error: str) -> str:
    """What to do about calls that end with this status and these words."""
    for pattern, fix in REFUSAL_FIXES:
        if re.search(pattern, error, re.IGNORECASE):
            return fix
    if status in (401, 403):
        return "the engine refuses the proxy's key: set engine.api_key to the engine's own"
    if status >= 500:
        return "see the engine's log"
    return "change what the agent sends: `slipstream episodes ID` shows a call as it came"
