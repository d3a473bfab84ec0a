#!/bin/sh
# Guess: a tool call that max_tokens cut (finish_reason length, half of its JSON) raises in an agents' SDK.
# Is: none raises. LangGraph ends the run as if it were done, with "". pydantic-ai asks again, and puts other arguments
# into the history ({"INVALID_JSON": ...}). openai-agents asks again with "An error occurred", and the half call stays.
# Seen in openai-agents 0.24, pydantic-ai 2.68, langgraph 1.2.24, against a local server.
# Here: docs/frameworks.md; proxy/slipstream_proxy/dialects/messages.py leaves out a call that was cut.
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
print("behaviour: a tool call cut by max_tokens ends LangGraph's run with no error, and the other two ask again.")
half = '{"town":"Ro'
seen = []
for name, talk in zip(names, (with_openai_agents, with_pydantic_ai, with_langgraph)):
    asked.clear()
    replies = [{"content": None, "tool_calls": [call("look", half)], "cut": True}]
    output = talk()
    again = [m["tool_calls"][0]["function"]["arguments"] for m in asked[-1]["messages"] if m.get("tool_calls")]
    seen.append((len(asked), output, again))
    print(f"seen: {name}: {len(asked)} requests, ends with {output!r}, the history has {again}")
same = seen == [(2, "done", [half]), (2, "done", [json.dumps({"INVALID_JSON": half}, separators=(",", ":"))]), (1, "", [])]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
