from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

from slipstream.cli.common import add_config, add_url, proxy_url, read_config
from slipstream.contract import name_of
from slipstream.errors import ConfigError, StartError
from slipstream.operate.setup.frameworks import BY_NAME, lines_for
from slipstream_connect.agents import AGENT_PROGRAMS, CodingAgent
from slipstream_connect.connecting import AgentAddress, connect, lines_of, run_of, served_there, trouble_of, undo


def add(parser: argparse.ArgumentParser) -> None:
    known = f"a coding agent: {', '.join(sorted(AGENT_PROGRAMS))}; or a framework: {', '.join(sorted(BY_NAME))}"
    parser.add_argument("name", metavar="NAME", choices=sorted({*AGENT_PROGRAMS, *BY_NAME}), help=known)
    parser.add_argument("--print", action="store_true", help="print what the agent needs, and write nothing")
    parser.add_argument("--undo", action="store_true", help="put the agent's own file back as it was")
    parser.add_argument("--task", help="what the run was asked: runs of one task are compared with each other")
    parser.add_argument("--episode", help="the run's id; default: a new one for each --run")
    parser.add_argument("--model", help="the model's name; default: the configuration's, else the proxy's")
    parser.add_argument(
        "--run",
        nargs=argparse.REMAINDER,
        metavar="CMD",
        help="start this command with the agent connected, for this run only: --run -- claude -p 'Fix the test'",
    )
    add_config(parser)
    add_url(parser)


def _place(args: argparse.Namespace) -> AgentAddress:
    url = proxy_url(args) or os.environ.get("SLIPSTREAM_URL") or "http://127.0.0.1:8100"
    key = args.key or os.environ.get("SLIPSTREAM_API_KEY") or "none"
    config = read_config(args)
    model = args.model or config.model_name
    episode = args.episode or (uuid.uuid4().hex if args.run is not None else None)
    task = name_of(args.task) if args.task else None
    place = AgentAddress(url.rstrip("/").removesuffix("/v1"), model, key, name_of(episode) if episode else None, task)
    return place if args.model or config.engine.name or config.engine.model else served_there(place)


def _run(agent: CodingAgent, place: AgentAddress, command: list[str]) -> int:
    """The command's own exit code."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as folder:
        words, env = run_of(agent, place, command or [agent.command], Path(folder))
        try:
            return subprocess.run(words, env={**os.environ, **env}, check=False).returncode
        except OSError as e:
            raise StartError(f"{words[0]}: {e.strerror or e}") from e


def _framework(args: argparse.Namespace) -> int:
    """Lines to paste: a framework has no file of its own, and its program is the user's."""
    if args.undo or args.run is not None or args.task or args.episode:
        raise ConfigError(
            f"{args.name} is a framework: its lines go into your code, which names run and task "
            "(--run, --undo, --task and --episode are for coding agents)"
        )
    place = _place(args)
    print("\n".join(lines_for(args.name, place.model, place.root)))
    return 0


def run(args: argparse.Namespace) -> int:
    if args.name not in AGENT_PROGRAMS:
        return _framework(args)
    agent, home = AGENT_PROGRAMS[args.name], Path.home()
    if args.undo:
        path = undo(agent, home)
        print(f"{path} is as it was before." if path else f"Nothing was written for {agent.title}.")
        return 0
    place = _place(args)
    trouble = None if args.print else trouble_of(place)
    if trouble and args.run is None and not args.model:
        raise StartError(f"nothing is written: {trouble}; or name the model with --model to write it all the same")
    if trouble:
        print(f"warning: {trouble}", file=sys.stderr)
    if args.run is not None:
        return _run(agent, place, args.run)
    path = None if args.print else connect(agent, place, home)
    if path is None:
        print("\n".join(lines_of(agent, place)))
        return 0
    print(f"{path} is written: {agent.title} asks {place.root}. --undo takes it back.")
    if agent.then:
        print(place.filled(agent.then))
    return 0
