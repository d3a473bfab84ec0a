#!/bin/sh
# Guess: an agent whose model never stops calling a tool is ended after 25 steps by LangGraph, as its documentation had
# it.
# Is: LangGraph goes on for ten thousand steps (its limit is 10007 by default); openai-agents ends after 10 calls of the
# model and pydantic-ai after 50. A loop of a small model is thousands of calls.
# Seen in openai-agents 0.24, pydantic-ai 2.68, langgraph 1.2.24, against a local server that says no more after 200.
# Here: docs/frameworks.md; such a run is one episode, of thousands of calls.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai-agents==0.24.0' 'pydantic-ai-slim[openai]==2.68.0' 'langchain-openai==1.7.4' 'langgraph==1.2.24'
PYTHONPATH="$folder/lib" ${PYTHON:-python3} -S - "$folder" <<'PY'
import http.server
import importlib.metadata
import json
import logging
import sys
import threading
import warnings

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def chat(message, finish="stop"):
    reply = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
    return 200, "application/json", json.dumps(reply).encode()


def call(arguments, name="look", id="call_abc12"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(_):
    return replies.pop(0) if replies else chat({"content": "done"})


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


def look(town: str) -> str:
    """Look at the weather."""
    return "sunny"


def with_openai_agents(*tools):
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(**address))
    return Runner.run_sync(Agent(name="a", model=model, tools=[function_tool(tool) for tool in tools]), "hi").final_output


def with_pydantic_ai(*tools):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return Agent(OpenAIChatModel("m", provider=OpenAIProvider(**address)), tools=tools).run_sync("hi").output


def with_langgraph(*tools):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    agent = create_react_agent(ChatOpenAI(model="m", **address), tools)
    return agent.invoke({"messages": [("user", "hi")]})["messages"][-1].content


runs = {
    "openai-agents": with_openai_agents,
    "pydantic-ai-slim": with_pydantic_ai,
    "langgraph": with_langgraph,
}

print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in runs))
print("behaviour: a model that calls a tool for ever is asked 10 times by openai-agents, 50 by pydantic-ai, over 200 by LangGraph.")
seen = []
for name, talk in runs.items():
    asked.clear()
    replies = [chat({"content": None, "tool_calls": [call('{"town": "Rome"}', id=f"c{i}")]}, "tool_calls") for i in range(200)]
    try:
        ends = talk(look)
    except Exception as error:
        ends = type(error).__name__
    seen.append((len(asked), ends))
    print(f"seen: {name}: {len(asked)} requests, ends with {ends}")
same = seen == [(10, "MaxTurnsExceeded"), (50, "UsageLimitExceeded"), (201, "done")]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
