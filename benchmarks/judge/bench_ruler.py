"""Does RULER teach as well as the true reward? The inbox demo twice with one seed: the agent posts its reward; it posts none, and a judge scores.

    python -m benchmarks.judge.bench_ruler [--seed 0] [--time-limit 170] [--only ruler]

The judge's model is tests/support/ruled_judge.py with the rule ``inbox``: it sees transcripts and nothing else, through LiteLLM and HTTP like any model.
The last line is JSON: held-out success of the base model and of the last adapter of each run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness import report, slipstream


def demo(folder: Path, args: argparse.Namespace, *more: str) -> dict[str, Any]:
    """One learning run. Returns its summary; raises when it failed."""
    command = slipstream("demo", "--seed", str(args.seed), "--data-dir", str(folder))
    command += ["--time-limit", str(args.time_limit), *(x for s in args.set for x in ("--set", s)), *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        raise SystemExit(f"the demo ended with {ran.returncode}; its logs are in {folder}")
    return dict(json.loads(lines[-1]))


def by_ruler(folder: Path, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    """A run by RULER alone, and how often its model was asked."""
    from tests.support.ruled_judge import RuledJudge, inbox_rule
    from tests.support.served import Served

    judge = RuledJudge(inbox_rule)
    with Served(judge.app()) as url:
        settings = [
            "judge.model=openai/ruled",
            f"judge.api_base={url}/v1",
            "judge.singles=off",
            "reward.weights={ judge = 1.0 }",
        ]
        summary = demo(folder, args, "--no-reward", *(x for s in settings for x in ("--set", s)))
    return summary, len(judge.requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=170.0, help="seconds of training after a run's first step")
    parser.add_argument("--only", choices=("ruler", "reward"))
    parser.add_argument("--data-dir", type=Path, help="where the runs' folders stay; default: a temporary one")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    args = parser.parse_args()
    result: dict[str, Any] = {"seed": args.seed}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data_dir or Path(temporary)
        if args.only != "ruler":
            summary = demo(folder / "reward", args)
            result |= {"success_reward": summary["success_last"], "success_base": summary["success_base"]}
            result["steps_reward"] = summary["steps"]
        if args.only != "reward":
            summary, asked = by_ruler(folder / "ruler", args)
            result |= {"success_ruler": summary["success_last"], "steps_ruler": summary["steps"], "judge_calls": asked}
            result.setdefault("success_base", summary["success_base"])
    report(result)


if __name__ == "__main__":
    main()
