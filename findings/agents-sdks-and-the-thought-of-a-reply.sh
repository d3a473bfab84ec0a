#!/bin/sh
# Guess: an agents' SDK sends a reply's thought (reasoning, reasoning_content) again, or says that it does not.
# Is: pydantic-ai sends it under the name that it came with; openai-agents has it in the result and does not send it
# again; langchain-openai does not even show it. So the same server sees other prompts from each.
# Seen in pydantic-ai 2.31 to 2.68, openai-agents 0.20 to 0.24, langchain-openai 1.7, against a local server.
# Here: docs/frameworks.md; a call whose history lacks a thought is a sequence of its own for the trainer.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'pydantic-ai-slim[openai]==2.68.0' 'openai-agents==0.24.0' 'langchain-openai==1.7.4'
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


def with_pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(**address)))
    agent.run_sync("and three?", message_history=agent.run_sync("two and two?").all_messages())


def with_openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    agent = Agent(name="a", model=OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI(**address)))
    so_far = Runner.run_sync(agent, "two and two?").to_input_list()
    Runner.run_sync(agent, [*so_far, {"role": "user", "content": "and three?"}])


def with_langchain():
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="m", **address)
    model.invoke([("user", "two and two?"), model.invoke("two and two?"), ("user", "and three?")])


names = ("pydantic-ai-slim", "openai-agents", "langchain-openai")
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in names))
print("behaviour: of three agents' SDKs only pydantic-ai sends the thought of a reply with the next turn.")
seen = []
for name, talk in zip(names, (with_pydantic_ai, with_openai_agents, with_langchain)):
    talk()
    said = next(m for m in asked[-1]["messages"] if m["role"] == "assistant")
    seen.append("two and two" in json.dumps(said))
    print(f"seen: {name} sends {said}")
same = seen == [True, False, False]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
