#!/bin/sh
# Guess: one tool of one MCP server gives the model the same text, whichever agents' SDK calls it.
# Is: openai-agents sends a list of parts (JSON over several lines; a list of two texts is two parts), pydantic-ai one
# line of compact JSON. Many chat templates render parts otherwise than a text, or not at all.
# Seen in openai-agents 0.24 and pydantic-ai 2.68 with mcp 2.3.0, against a local server.
# Here: docs/frameworks.md; runs of one task by both share no prompt after the first tool.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai-agents==0.24.0' 'pydantic-ai-slim[openai]==2.68.0' 'pydantic-ai-slim[mcp]==2.68.0' 'mcp==2.3.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import asyncio
import http.server
import importlib.metadata
import json
import logging
import socket
import sys
import threading
import time
import warnings

warnings.simplefilter("ignore")
import uvicorn
from mcp.server.mcpserver import MCPServer


def answer(_):
    message = {"role": "assistant", **(replies.pop(0) if replies else {"content": "done"})}
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    return 200, "application/json", json.dumps(reply).encode()


def call(name):
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}


class Server(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        status, kind, body = answer(asked[-1])
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


asked = []
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
address = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none"}

weather = MCPServer("weather")


@weather.tool()
def look() -> dict:
    """Look at the weather."""
    return {"sky": "clear", "wet": False}


@weather.tool()
def towns() -> list[str]:
    """Name the towns."""
    return ["Rome", "Oslo"]


taken = socket.create_server(("127.0.0.1", 0))
tools = uvicorn.Server(uvicorn.Config(weather.streamable_http_app(), log_level="critical"))
threading.Thread(target=lambda: asyncio.run(tools.serve(sockets=[taken])), daemon=True).start()
while not tools.started:
    time.sleep(0.1)
where = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"


async def with_openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from agents.mcp import MCPServerStreamableHttp
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(**address))
    async with MCPServerStreamableHttp({"url": where, "timeout": 300}, client_session_timeout_seconds=300) as server:
        await Runner.run(Agent(name="a", model=model, mcp_servers=[server]), "hi")


async def with_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(**address))
    await Agent(model, toolsets=[MCPToolset(where)]).run("hi")


logging.disable(logging.CRITICAL)
names = ("openai-agents", "pydantic-ai-slim", "mcp")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: the same MCP tool's result is a list of parts from openai-agents, and a compact text from pydantic-ai.")
seen = []
for name, talk in zip(names, (with_openai_agents, with_pydantic_ai)):
    replies = [{"content": None, "tool_calls": [call("look"), call("towns")]}]
    asyncio.run(talk())
    seen.append([m["content"] for m in asked[-1]["messages"] if m["role"] == "tool"])
    print(f"seen: {name}: {seen[-1]}")
lines = '{\n  "sky": "clear",\n  "wet": false\n}'
parts = [[{"type": "text", "text": text} for text in texts] for texts in ([lines], ["Rome", "Oslo"])]
same = seen == [parts, ['{"sky":"clear","wet":false}', '["Rome","Oslo"]']]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
