from __future__ import annotations

import argparse
import json

from slipstream.cli.common import add_client, connect, table, tell
from slipstream.contract import ReplayShown


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("version")
    add_client(parser, again=True)


def replay_text(shown: ReplayShown) -> str:
    """A version's replay for people: figures of each question, then the steps where it lost most."""
    replay = shown.replay
    if replay is None:
        return f'{shown.adapter} was not replayed: gate.mode = "replay" does that with each new version'
    rows = [
        (q.set, q.question, q.verdict, q.cases, f"{q.candidate:.3f}", f"{q.control:.3f}", f"{q.visible:.2f}")
        for q in replay.questions
    ]
    lines = [f"{shown.adapter}: {replay.outcome} ({replay.reason}); {replay.tokens:,} tokens"]
    lines.append(table(("set", "question", "verdict", "cases", shown.adapter, replay.control, "would be seen"), rows))
    for pair in shown.worst:
        figures = f"{pair.candidate:.2f} against {pair.control:.2f}"
        lines += [
            "",
            f"{pair.episode}, call {pair.call} ({pair.set}, {pair.question}): {figures}",
            f"  prompt ends: {json.dumps(pair.prompt)}",
            f"  {shown.adapter}: {json.dumps(pair.candidate_reply)}",
            f"  {replay.control}: {json.dumps(pair.control_reply)}",
        ]
    return "\n".join([*lines, "", shown.limits])


def run(args: argparse.Namespace) -> int:
    with connect(args) as client:
        shown = client.replay_of(args.version)
    return tell(args, shown, replay_text(shown), indent=2)
