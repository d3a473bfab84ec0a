#!/bin/sh
# Guess: an agent with tool_choice "required" calls a tool in each of its turns.
# Is: openai-agents sends tool_choice with the first request alone, and none after a tool was called (its
# reset_tool_choice), so later turns may end in text.
# Seen in openai-agents 0.24, against a local server.
# Here: docs/frameworks.md; of such a run the first call is left out of training (a forced tool), later ones are not.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'openai-agents==0.24.0'
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


print("versions: openai-agents", importlib.metadata.version("openai-agents"))
print("behaviour: openai-agents asks for a forced tool once, and lets the model choose from the second request on.")
replies = [{"content": None, "tool_calls": [call("look", '{"town": "Rome", "day": 1}')]}]
with_openai_agents(tool_choice="required")
seen = [request.get("tool_choice") for request in asked]
print("seen: tool_choice of the two requests:", seen)
same = seen == ["required", None]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
