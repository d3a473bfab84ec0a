#!/bin/sh
# Guess: a parameter of an MCP tool without a type has no type in the schema, and gets what the client sent.
# Is: the schema says string, and a text that is a JSON object or list reaches the function as dict or list; "5" stays a
# text. With an annotation str it is a text each time. So the model's text is parsed where the schema says it is not.
# Seen in mcp 2.3.0, a client and a server in one process.
# Here: docs/frameworks.md; the tool sees other arguments than the recorded call has.
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

server = MCPServer("weather")


@server.tool()
def free(x) -> str:
    """Take anything."""
    return repr(x)


@server.tool()
def text(x: str) -> str:
    """Take a text."""
    return repr(x)


async def told():
    async with Client(server) as client:
        types = {tool.name: tool.input_schema["properties"]["x"]["type"] for tool in (await client.list_tools()).tools}
        got = {}
        for name in types:
            for sent in ('{"a": 1}', "[1]", "5"):
                got[name, sent] = (await client.call_tool(name, {"x": sent})).content[0].text
        return types, got


print("versions: mcp", importlib.metadata.version("mcp"))
print("behaviour: a parameter without a type is a string in MCP 2's schema, and a dict where its text is a JSON object.")
types, got = asyncio.run(told())
print("seen: the schemas say", types)
for (name, sent), value in got.items():
    print(f"seen: {name}: the text {sent} arrives as {value}")
same = types == {"free": "string", "text": "string"}
same = same and list(got.values()) == ["{'a': 1}", "[1]", "'5'", "'{\"a\": 1}'", "'[1]'", "'5'"]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
