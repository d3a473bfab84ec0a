#!/bin/sh
# Guess: a tool call whose JSON max_tokens cut (half of it, finish_reason length) is refused, or its tool is not run.
# Is: LlamaIndex runs the tool with None for the argument that was cut, also where it is required and a str; smolagents
# runs it with the whole half JSON as the text of the first argument. Neither looks at finish_reason, and the tool may
# write.
# Seen in llama-index-core 0.14.25 and smolagents 1.26.0, against a local server.
# Here: docs/frameworks.md; proxy/slipstream_proxy/dialects/messages.py leaves out a call that was cut.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${PYTHON:-python3} -m pip install -qq --disable-pip-version-check --no-warn-conflicts --no-compile --target "$folder/lib" \
  'llama-index-core==0.14.25' 'llama-index-llms-openai-like==0.8.1' 'smolagents[openai]==1.26.0'
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

import asyncio


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


def stream(*choices):
    chunks = ({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [c]} for c in choices)
    lines = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return 200, "text/event-stream", (lines + "data: [DONE]\n\n").encode()


def call(arguments, name="look", id="call_abc12"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(request):
    message, finish = replies.pop(0) if replies else ({"content": "done"}, "stop")
    if not request.get("stream"):
        return chat(message, finish)
    calls = [{"index": i, **one} for i, one in enumerate(message.get("tool_calls", []))]
    delta = {"role": "assistant", "content": message["content"], **({"tool_calls": calls} if calls else {})}
    said = {"index": 0, "delta": delta, "finish_reason": None}
    return stream(said, {"index": 0, "delta": {}, "finish_reason": finish})


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


def write(path: str, mode: str = "new") -> str:
    """Write a file.

    Args:
        path: where to
        mode: how
    """
    ran.append((path, mode))
    return "written"


def with_llama_index():
    from llama_index.core.agent.workflow import FunctionAgent
    from llama_index.llms.openai_like import OpenAILike

    kind = {"is_chat_model": True, "is_function_calling_model": True}
    agent = FunctionAgent(tools=[write], llm=OpenAILike(model="m", api_base=url + "/v1", api_key="none", **kind))

    async def run():
        await agent.run("hi")

    asyncio.run(run())


def with_smolagents():
    from smolagents import OpenAIServerModel, Tool, ToolCallingAgent

    class Write(Tool):
        name, description, output_type = "write", "Write a file.", "string"
        inputs = {
            "path": {"type": "string", "description": "where to"},
            "mode": {"type": "string", "description": "how", "nullable": True},
        }

        def forward(self, path: str, mode: str = "new") -> str:
            return write(path, mode)

    model = OpenAIServerModel("m", api_base=url + "/v1", api_key="none")
    ToolCallingAgent(tools=[Write()], model=model, verbosity_level=0, max_steps=1).run("hi")


cut = '{"path":"notes/a'
runs = {"llama-index-core": with_llama_index, "smolagents": with_smolagents}
print("versions:", *(f"{name} {importlib.metadata.version(name)}" for name in runs))
print("behaviour: LlamaIndex and smolagents run the tool of a call that max_tokens cut, with None or with the half JSON.")
seen = []
for name, talk in runs.items():
    ran = []
    replies = [({"content": None, "tool_calls": [call(cut, "write")]}, "length")]
    talk()
    seen.append(ran)
    print(f"seen: {name}: the call {cut} ran the tool with (path, mode) = {ran}")
same = seen == [[(None, "new")], [(cut, "new")]]

if not same:
    sys.exit("CHANGED: this is no longer so")
PY
