"""Requests that are sent straight to vLLM and through the proxy, to compare the replies."""

from __future__ import annotations

from typing import Any

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "find mails",
        "parameters": {"type": "object", "properties": {"keywords": {"type": "string"}}, "required": ["keywords"]},
    },
}
USER = {"role": "user", "content": "When is the meeting? ünï ✓ \U0001f600"}
CHAT: dict[str, Any] = {"messages": [USER], "temperature": 0, "max_tokens": 24, "seed": 1}
