"""Real coding agents whose context fills up: each run is one episode, its summaries included, with no tag at all.

    python benchmarks/agents/compaction.py --bin FOLDER [--only pi]

The engine has a script: eight commands with long output, and a count of prompt tokens that says that the context is
nearly full. What a program then asks, and in which words, is its own. Nothing names the run but what the program sends.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.agents import engine as scripted
from benchmarks.agents.agents import COMMANDS, MODEL, _stored, calls_of
from tests.support.running import run_proxy
from tests.support.served import Served

from slipstream.operate.setup.agents import AGENT_PROGRAMS

RESULTS = ROOT / "benchmarks" / "results" / "compaction.json"
STEPS = 8
SAID = "I looked at the folder and will now go on with step {} of writing hello into the file hello.txt as asked."
SUMMARY = "The user asked me to write the greeting hello into the file hello.txt, and I have begun with that.\n\nNext: check it."
FILL = "echo hello >> hello.txt; echo {}; yes 'a line of output that fills the context' | head -600"
FULL = {
    "pi": 126_000,
    "cline": 126_000,
    "qwen-code": 126_000,
    "codex": 60_000,
    "opencode": 59_000,
    "claude-code": 60_000,
}
"""Prompt tokens at which the program's context is nearly full."""
MORE = {"codex": ("-c", "model_auto_compact_token_limit=50000")}
AFTER = {
    "pi": ("pi", "-c", "-p", "Now check the file hello.txt"),  # it looks at its context between two prompts
    "claude-code": ("claude", "-c", "-p", "--dangerously-skip-permissions", "/compact"),
}
TIMEOUT = 150.0


class FullEngine(scripted.Engine):
    def __init__(self, model: str, full: int) -> None:
        super().__init__(model)
        self.full = full

    def script(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        tools = {t["function"]["name"]: t for t in body.get("tools") or ()}
        shell = next((tools[name] for name in scripted.SHELLS if name in tools), None)
        if shell is None:
            return {"content": SUMMARY}
        if len(self.seen) <= STEPS:
            call = scripted._call(shell, FILL.format(number), number)
            return {"content": SAID.format(number), "tool_calls": [call]}
        return {"content": scripted.DONE}

    def reply(self, body: dict[str, Any], number: int) -> Iterator[bytes]:
        full = body.get("tools") and STEPS / 2 <= len(self.seen) <= STEPS + 2
        tokens = self.full if full else 3000
        plain, scripted.script = scripted.script, self.script
        try:
            parts = list(super().reply(body, number))
        finally:
            scripted.script = plain
        for part in parts:
            yield re.sub(rb'"(prompt|total)_tokens":\s*\d+', rb'"\1_tokens":%d' % tokens, part)


def run_agent(name: str, folder: Path, path: str) -> dict[str, Any]:
    engine, work, home = FullEngine(MODEL, FULL[name]), folder / "work", folder / "home"
    work.mkdir(parents=True)
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    env = {"PATH": path, "HOME": str(home), "TERM": "dumb", "NO_PROXY": "127.0.0.1", "IS_SANDBOX": "1"}

    def run(words: tuple[str, ...]) -> str:
        try:
            done = subprocess.run(
                words, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
            )
            return done.stdout.decode()
        except subprocess.TimeoutExpired:
            return ""

    with Served(engine.app()) as url, run_proxy(folder / "proxy", url, engine={"name": MODEL}) as running:
        engine.seen.clear()
        connect = (sys.executable, "-m", "slipstream.cli", "connect", name, "--url", running.url, "--model", MODEL)
        for line in run(connect).splitlines():
            if line.startswith("export "):
                key, _, value = line.removeprefix("export ").partition("=")
                env[key] = value
        config = home / ".config/opencode/opencode.json"
        if config.exists():  # the program knows no model of ours, and so no limit
            read = json.loads(config.read_text())
            for provider in read["provider"].values():
                for model in provider["models"].values():
                    model["limit"] = {"context": 60_000, "output": 4_000}
            config.write_text(json.dumps(read))
        command = COMMANDS[name]
        run((*command[:2], *MORE.get(name, ()), *command[2:]))
        if name in AFTER:
            run(AFTER[name])
        time.sleep(1.0)
        calls = calls_of(running)
        stored = _stored(running.url, len(calls))
    kinds = [call.kind for call in stored]
    return {
        "calls": len(calls),
        "episodes": len({head.episode for head, _ in calls}),
        "compactions": kinds.count("compaction"),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", action="append", default=[], help="a folder with programs; repeat it for several")
    parser.add_argument("--only", action="append", default=[], choices=sorted(FULL))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    path = os.pathsep.join([*args.bin, os.environ["PATH"]])
    found: dict[str, dict[str, Any]] = {}
    for name in args.only or FULL:
        if shutil.which(AGENT_PROGRAMS[name].command, path=path) is None:
            print(f"{name}: {AGENT_PROGRAMS[name].command} is not there, left out")
            continue
        with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as folder:
            found[name] = run_agent(name, Path(folder), path)
        print(f"{name}: {found[name]}", flush=True)
    args.out.write_text(json.dumps({"agents": found}, indent=2) + "\n")
    return 0 if found and all(o["episodes"] == 1 and o["compactions"] for o in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
