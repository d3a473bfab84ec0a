#!/bin/sh
# Guess: a Python tool of an MCP server that raises ValueError("no such town") tells the model so, as with MCP 1.
# Is: MCP 2 sends "Error executing tool look" and no word of the exception; only its own ToolError reaches it with
# its words. An agent that learned to mend its calls by such errors sees the same sentence for all of them.
# Seen in mcp 2.3.0, a client and a server in one process.
# Here: docs/frameworks.md; the text of a tool's error is part of the next prompt that is recorded.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'mcp==2.3.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import asyncio
import importlib.metadata
import logging
import sys

logging.disable(logging.CRITICAL)
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("weather")


@server.tool()
def look(town: str) -> str:
    """Look at the weather."""
    raise ValueError("no such town")


@server.tool()
def see(town: str) -> str:
    """See the town."""
    raise ToolError("no such town")


async def told(name):
    async with Client(server) as client:
        result = await client.call_tool(name, {"town": "Rome"})
    return result.is_error, result.content[0].text


print("versions: mcp", importlib.metadata.version("mcp"))
print("behaviour: what a tool's exception says stays on the server, unless it is MCP's own ToolError.")
seen = [asyncio.run(told(name)) for name in ("look", "see")]
print("seen: ValueError('no such town') →", seen[0])
print("seen: ToolError('no such town') →", seen[1])
same = seen[0] == (True, "Error executing tool look") and "no such town" in seen[1][1]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
