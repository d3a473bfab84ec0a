#!/bin/sh
# Guess: a tool call goes back into the history with the arguments' text as the model wrote it.
# Is: langchain-openai parses it and writes it anew, with spaces; openai-agents and pydantic-ai keep the text. Where a
# template writes the text as it is, the next prompt has other tokens than were sampled, and does not extend the last.
# Seen in langchain-openai 1.7.4, openai-agents 0.24, pydantic-ai 2.68, against a local server.
# Here: docs/frameworks.md; such a turn is a sequence of its own for the trainer.
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

names = ("openai-agents", "pydantic-ai-slim", "langchain-openai")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: langchain-openai writes a call's arguments anew, openai-agents and pydantic-ai send them as they came.")
sampled = '{"day":1,"town":"Rome"}'
seen = []
for name, talk in zip(names, (with_openai_agents, with_pydantic_ai, with_langgraph)):
    replies = [{"content": None, "tool_calls": [call("look", sampled)]}]
    talk()
    seen.append(next(m for m in asked[-1]["messages"] if m.get("tool_calls"))["tool_calls"][0]["function"]["arguments"])
    print(f"seen: {name}: {sampled} → {seen[-1]}")
same = seen == [sampled, sampled, '{"day": 1, "town": "Rome"}']

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
