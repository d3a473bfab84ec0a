"""Real coding agents against a real vLLM on the CPU, through the proxy: ``python benchmarks/agents/real_engine.py``.

The model is the small one of examples/inbox, with room for an agent's prompt. It does no job. What is looked at is that
each call is recorded with the ids that vLLM makes of what the *program* sent, and with what it sampled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.agents.agents import COMMANDS, calls_of
from benchmarks.agents.tee import CHAT, Exchange, Tee
from tests.support import vllm
from tests.support.running import run_proxy
from tests.support.served import Served

from slipstream.operate.setup.agents import AGENT_PROGRAMS
from slipstream_proxy.dialects.gemini import to_chat

ROOM = 65_536
FLAGS = (
    *("--max-model-len", str(ROOM), "--hf-overrides", json.dumps({"max_position_embeddings": ROOM})),
    *("--override-generation-config", json.dumps({"max_new_tokens": 64})),  # the model does not end by itself
)
RESULTS = ROOT / "benchmarks" / "results" / "agents_vllm.json"
PATIENCE = 90.0
"""Seconds for a program: the small model may never let it end."""


def rendered(engine: str, one: Exchange) -> list[int]:
    """The prompt's ids as vLLM itself makes them of the program's request, on the route that the program asked."""
    route, asked = one.route, json.loads(one.body)
    if route.startswith("/v1beta"):  # no engine has Google's routes: of the chat request that stands for it
        route, asked = CHAT, to_chat({**asked, "model": "inbox"})
    body = {**asked, "model": "inbox", "stream": False}
    body.pop("stream_options", None)
    reply = httpx.post(f"{engine}{route}/render", json=body, timeout=60, trust_env=False)
    ids: list[int] = reply.raise_for_status().json()["token_ids"]
    return ids


def run_agent(name: str, folder: Path, path: str, engine: str) -> dict[str, object]:
    work, home = folder / "work", folder / "home"
    work.mkdir(parents=True)
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    env = {"PATH": path, "HOME": str(home), "TERM": "dumb", "NO_PROXY": "127.0.0.1", "IS_SANDBOX": "1"}
    with run_proxy(folder / "proxy", engine) as running, Served((tee := Tee(running.url)).app()) as front:
        connect = [sys.executable, "-m", "slipstream.cli", "connect", name, "--url", front, "--model", "inbox"]
        words = [*connect, "--episode", "run", "--run", "--", *COMMANDS[name]]
        with (
            (folder / "output.txt").open("wb") as out,
            subprocess.Popen(
                words, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            ) as program,
        ):
            until = time.monotonic() + PATIENCE
            while program.poll() is None and time.monotonic() < until:
                time.sleep(0.5)
            if program.poll() is None:
                os.killpg(program.pid, 15)
        time.sleep(1.0)
        calls = {head.id: read for head, read in calls_of(running)}
    told = [one for one in tee.seen if one.id in calls and calls[one.id].prompt_ids]
    whole = [read for read in calls.values() if read.choices and read.untrainable is None]
    return {
        "calls": len(calls),
        "compared": len(told),
        "prompts_as_vllm_renders_them": all(calls[one.id].prompt_ids == rendered(engine, one) for one in told),
        "sampled_with_logprobs": all(len(c.completion_ids) == len(c.logprobs) > 0 for r in whole for c in r.choices),
        "ids_hidden": not any(b'"token_ids":[' in one.reply.replace(b" ", b"") for one in tee.seen),
        "reasons": sorted({read.untrainable for read in calls.values() if read.untrainable}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", action="append", default=[], help="a folder with programs; repeat it for several")
    parser.add_argument("--only", action="append", default=[], choices=sorted(COMMANDS))
    parser.add_argument("--engine", help="a vLLM that is up with FLAGS; default: one is started")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    path = os.pathsep.join([*args.bin, os.environ["PATH"]])
    found: dict[str, dict[str, object]] = {}
    folder = Path(tempfile.mkdtemp(prefix="agents-"))
    own = contextlib.nullcontext(args.engine) if args.engine else vllm(folder / "engine.log", *FLAGS)
    with own as engine:
        for name in args.only or COMMANDS:
            if shutil.which(AGENT_PROGRAMS[name].command, path=path) is not None:
                found[name] = run_agent(name, folder / name, path, engine)
                print(f"{name}: {found[name]}", flush=True)
    args.out.write_text(json.dumps({"agents": found}, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    checks = ("compared", "prompts_as_vllm_renders_them", "sampled_with_logprobs", "ids_hidden")
    return 0 if found and all(one[check] for one in found.values() for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
