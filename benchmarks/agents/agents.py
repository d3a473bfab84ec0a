"""Real coding agents do a small scripted job through the proxy: ``make agents``.

The programs are looked for in ``PATH`` and in the folders of ``--bin``. What is not there is left out and said. Each
has a home of its own, and reaches nothing but this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.agents.engine import Engine, rendered
from benchmarks.agents.tee import CHAT, Tee, is_same_request
from tests.support.running import Running, run_proxy
from tests.support.served import Served

from slipstream.client import Client
from slipstream.contract import CallRecord
from slipstream.operate.setup.agents import AGENT_PROGRAMS
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.log.segments import list_segments, read_segment

MODEL = "agent-model"
JOB = "Write hello into the file hello.txt"
RESULTS = ROOT / "benchmarks" / "results" / "agents.json"
COMMANDS: dict[str, tuple[str, ...]] = {
    "claude-code": ("claude", "-p", "--dangerously-skip-permissions", JOB),
    "codex": ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", JOB),
    "opencode": ("opencode", "run", JOB),
    "qwen-code": ("qwen", "--yolo", "-p", JOB),
    "pi": ("pi", "-p", JOB),
    "gemini-cli": ("gemini", "--skip-trust", "--yolo", "-p", JOB),
    "copilot": ("copilot", "--allow-all-tools", "-p", JOB),
    "continue": ("cn", "-p", "--auto", JOB),
    "aider": (
        "aider",
        "--yes-always",
        "--no-check-update",
        "--no-analytics",
        "--edit-format",
        "whole",
        "--message",
        JOB,
    ),
    "mini-swe-agent": ("mini", "-y", "--exit-immediately", "-t", JOB),
    "gptme": ("gptme", "--non-interactive", "--no-confirm", JOB),
    "cline": ("cline", JOB),
    "openhands": ("openhands", "--headless", "--always-approve", "--exit-without-confirmation", "-t", JOB),
    "hermes": ("hermes", "--yolo", "--cli", "-z", JOB),
    "openclaw": ("openclaw", "agent", "--local", "--agent", "main", "--message", JOB),
    "goose": ("goose", "run", "--no-session", "-t", JOB),
}
TIMEOUT = 300.0


class Outcome(NamedTuple):
    finished: bool
    """It wrote the file, or gave back its command's result: OpenClaw writes into a workspace of its own."""
    one_episode: bool
    recorded: bool
    """Every call of the engine is there, with the prompt's ids and the sampled ones as the engine had them."""
    same_request: bool
    """The engine got what the program sent, but for what the proxy asks for beside it (``tee.is_same_request``)."""
    same_reply: bool
    """The program got the bytes of a bare engine, on the chat route; the others' replies are made of chat replies."""
    trainable_share: float
    reasons: dict[str, int]
    calls: int
    kinds: dict[str, int]
    """What the store takes the calls for."""


def calls_of(running: Running) -> list[tuple[CallHead, Any]]:
    found = []
    for segments in list_segments(running.data_dir / "spool").values():
        for _, path in segments:
            for frame in read_segment(path):
                if "dialect" in frame.head:
                    head = CallHead(**frame.head)
                    found.append((head, BY_NAME[head.dialect].parse(frame.request, frame.reply, head)))
    return found


def _stored(url: str, calls: int) -> list[CallRecord]:
    """The run's calls, once the store has them all."""
    until = time.monotonic() + 20
    found: list[CallRecord] = []
    with Client(url) as client:
        while len(found) < calls and time.monotonic() < until:
            time.sleep(0.2)
            found = [call for e in client.episodes().episodes for call in client.episode(e.id).call_list]
    return found


def run_agent(name: str, folder: Path, path: str) -> Outcome:
    engine, work, home = Engine(MODEL), folder / "work", folder / "home"
    work.mkdir(parents=True)
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    env = {"PATH": path, "HOME": str(home), "TERM": "dumb", "NO_PROXY": "127.0.0.1", "IS_SANDBOX": "1"}
    with (
        Served(engine.app()) as url,
        run_proxy(folder / "proxy", url, engine={"name": MODEL}) as running,
        Served((tee := Tee(running.url)).app()) as front,
    ):
        engine.seen.clear()
        connect = [sys.executable, "-m", "slipstream.cli", "connect", name, "--url", front, "--model", MODEL]
        words = [*connect, "--episode", "run", "--run", "--", *COMMANDS[name]]
        try:
            done = subprocess.run(
                words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
            )
            (folder / "output.txt").write_bytes(done.stdout + done.stderr)
        except subprocess.TimeoutExpired as e:
            (folder / "output.txt").write_bytes((e.stdout or b"") + (e.stderr or b""))
        time.sleep(1.0)  # a call that is made at the end, after the program has gone
        calls = calls_of(running)
        stored = _stored(running.url, len(calls))
    seen = [body for body in engine.seen if body.get("max_tokens") != 1]
    exact = sorted(read.prompt_ids for _, read in calls if read.prompt_ids) == sorted(rendered(b) for b in seen)
    sampled = all(len(c.completion_ids) == len(c.logprobs) > 0 for _, read in calls for c in read.choices)
    episodes = {head.episode for head, _ in calls}
    reasons = Counter(call.untrainable_reason or "" for call in stored if not call.trainable)
    asked = [(one, engine.answered[one.id]) for one in tee.seen if one.id in engine.answered]
    return Outcome(
        finished=(work / "hello.txt").exists() or any(m.get("role") == "tool" for b in seen for m in b["messages"]),
        one_episode=len(episodes) == 1,
        recorded=bool(calls) and exact and sampled,
        same_request=len(asked) == len(tee.seen) > 0 and all(is_same_request(one, got.body) for one, got in asked),
        same_reply=all(one.reply == got.plain for one, got in asked if one.route == CHAT),
        trainable_share=1 - reasons.total() / len(stored) if stored else 0.0,
        reasons=dict(reasons),
        calls=len(calls),
        kinds=dict(Counter(call.kind for call in stored)),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", action="append", default=[], help="a folder with programs; repeat it for several")
    parser.add_argument("--only", action="append", default=[], choices=sorted(COMMANDS))
    parser.add_argument("--least", type=int, default=8, help="agents that must be there")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--keep", type=Path, help="a folder for what the programs wrote")
    args = parser.parse_args()
    path = os.pathsep.join([*args.bin, os.environ["PATH"]])
    found: dict[str, Outcome] = {}
    for name in args.only or COMMANDS:
        if shutil.which(AGENT_PROGRAMS[name].command, path=path) is None:
            print(f"{name}: {AGENT_PROGRAMS[name].command} is not there, left out")
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=args.keep))
        found[name] = run_agent(name, folder, path)
        print(f"{name}: {found[name]}", flush=True)
        if args.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    result = {"agents": {name: outcome._asdict() for name, outcome in found.items()}}
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    well = [n for n, o in found.items() if all(o[:5])]
    print(
        f"{len(well)} of {len(found)} finished, each in one episode, with every call recorded and every byte as without a proxy"
    )
    return 0 if len(well) == len(found) >= args.least else 1


if __name__ == "__main__":
    sys.exit(main())
