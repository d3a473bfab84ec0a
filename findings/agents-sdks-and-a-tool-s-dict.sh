#!/bin/sh
# Guess: a tool that returns a dict reaches the model as JSON, as OpenAI's own examples have it.
# Is: openai-agents sends Python's repr ({'wet': False, 'wind': None}), pydantic-ai compact JSON, LangGraph JSON with
# spaces. So one tool gives three prompts, and one of them is no JSON.
# Seen in openai-agents 0.24, pydantic-ai 2.68, langgraph 1.2.24, against a local server.
# Here: docs/frameworks.md; runs of one task by different SDKs share no prompt after the first tool.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai-agents==0.24.0' 'pydantic-ai-slim[openai]==2.68.0' 'langchain-openai==1.7.4' 'langgraph==1.2.24'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import sys
import threading
import warnings

warnings.simplefilter("ignore")


def answer(_):
    message = {"role": "assistant", **(replies.pop(0) if replies else {"content": "done"})}
    finish = "length" if message.pop("cut", False) else "tool_calls" if message.get("tool_calls") else "stop"
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    return 200, "application/json", json.dumps(reply).encode()


def call(name, arguments):
    return {"id": "call_abc12", "type": "function", "function": {"name": name, "arguments": arguments}}


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


def look(town: str, day: int) -> dict:
    """Look at the weather."""
    return {"sky": "clear", "wet": False, "wind": None}


def with_openai_agents(**settings):
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(**address))
    agent = Agent(name="a", model=model, tools=[function_tool(look)], model_settings=ModelSettings(**settings))
    return Runner.run_sync(agent, "hi").final_output


def with_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel("m", provider=OpenAIProvider(**address)), tools=[look]).run_sync("hi").output


def with_langgraph():
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model="m", **address), [look])
    return agent.invoke({"messages": [("user", "hi")]})["messages"][-1].content

names = ("openai-agents", "pydantic-ai-slim", "langgraph")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: openai-agents sends a tool's dict as Python's repr, pydantic-ai as compact JSON, LangGraph as spaced JSON.")
seen = []
for name, talk in zip(names, (with_openai_agents, with_pydantic_ai, with_langgraph)):
    replies = [{"content": None, "tool_calls": [call("look", '{"town": "Rome", "day": 1}')]}]
    talk()
    seen.append(asked[-1]["messages"][-1]["content"])
    print(f"seen: {name}: {seen[-1]}")
same = seen == [
    "{'sky': 'clear', 'wet': False, 'wind': None}",
    '{"sky":"clear","wet":false,"wind":null}',
    '{"sky": "clear", "wet": false, "wind": null}',
]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
