#!/bin/sh
# Guess: a tool with an optional argument is sent as such, whichever SDK wraps the Python function.
# Is: openai-agents makes the argument required and the tool strict; pydantic-ai leaves it optional and then sends no
# `strict`, which it does send for tools without defaults. vLLM puts a grammar on strict tools alone.
# Seen in pydantic-ai 2.31 to 2.68 and openai-agents 0.20 to 0.24, against a local server.
# Here: docs/decisions.md, strict tools; docs/frameworks.md.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'pydantic-ai-slim[openai]==2.68.0' 'openai-agents==0.24.0'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import sys
import threading


def answer(_):
    message = {"role": "assistant", "content": "four", "reasoning": "two and two", "reasoning_content": "two and two"}
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    return 200, "application/json", json.dumps(reply).encode()


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
url = f"http://127.0.0.1:{server.server_port}"

address = {"base_url": url + "/v1", "api_key": "none"}


def look(town: str, day: str = "today") -> str:
    """Look at the weather."""
    return "sunny"


def see(town: str) -> str:
    """See the town."""
    return "old"


def with_openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(**address))
    Runner.run_sync(Agent(name="a", model=model, tools=[function_tool(look), function_tool(see)]), "hi")


def with_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    Agent(OpenAIChatModel("m", provider=OpenAIProvider(**address)), tools=[look, see]).run_sync("hi")


names = ("openai-agents", "pydantic-ai-slim")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: a default makes an argument required in openai-agents, and a tool not strict in pydantic-ai.")
seen = []
for name, talk in zip(names, (with_openai_agents, with_pydantic_ai)):
    talk()
    for tool in (t["function"] for t in asked[-1]["tools"]):
        seen.append((tool["name"], tool["parameters"]["required"], tool.get("strict")))
        print(f"seen: {name}: {tool['name']}: required {seen[-1][1]}, strict {seen[-1][2]}")
same = seen == [
    ("look", ["town", "day"], True),
    ("see", ["town"], True),
    ("look", ["town"], None),
    ("see", ["town"], True),
]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
