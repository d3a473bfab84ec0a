"""Many steps of one task on a GPU: does what was learned stay? python benchmarks/curves/real_long.py --task retail --seed 0 --steps 256 --into FOLDER

The task's committed small model learns through `slipstream up` at the default settings. The agents are plain HTTP clients that hold
the same conversations as the task's own agent (`worlds.py`): at 98 % success most groups have equal rewards, so a step needs
some two hundred episodes, more than one process of a framework's client makes. The run is kept as `curves.py --steps 256`
keeps its own (FOLDER/curves/TASK-long-SEED.json), and printed as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import worlds
from benchmarks.curves.summary import LONG_RUN, Run
from real_agents import Agents, Tally
from real_stack import NAME, SHUTDOWN, Stack, start

from slipstream.operate.demo.curve import read_curve
from slipstream.operate.demo.driver import RewardSample

HELD_OUT = 256
EXPERTS = {"retail": worlds.retail_players.expert_reward}
"""Task → what a scripted expert reaches on items."""


def sample(tally: Tally, task: str) -> tuple[float, float, int]:
    """Mean, standard error and count of a task's rewards."""
    found = RewardSample(tally.rewards[task])
    return found.mean, found.error, len(found.rewards)


def steps_of(stack: Stack) -> int:
    """Steps that the trainer has told of."""
    return sum(event["kind"] == "step" for event in stack.events())


def work(stack: Stack, agents: Agents, steps: int, end: float) -> tuple[Tally, float]:
    """Let the agents work until there are so many steps, or the time is over. → What they saw, and the seconds."""
    began = time.monotonic()
    agents.begin(stack.url)
    while time.monotonic() < end and stack.process.poll() is None and (count := steps_of(stack)) < steps:
        print(f"{count} steps after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        time.sleep(5.0)
    return agents.end(), time.monotonic() - began


def long_run(args: argparse.Namespace, agents: Agents, folder: Path, end: float) -> Run:
    """One run, from the start of the stack to its end. Raises ``SystemExit`` where it did not become ready."""
    settings = [f"trainer.seed={args.seed}", *args.set]
    stack = start(args.model, "resident", folder, args.into / f"{args.task}-long-{args.seed}.log", settings)
    try:
        if not stack.ready(end):
            raise SystemExit(f"`slipstream up` was not ready in time\n{stack.text[-3000:]}")
        before = agents.held_out(stack.url, HELD_OUT)
        if not stack.until("waiting for batches", end):
            raise SystemExit(f"the trainer was not ready in time\n{stack.text[-3000:]}")
        training, seconds = work(stack, agents, args.steps, end - SHUTDOWN)
        after = agents.held_out(stack.url, HELD_OUT)
        base, last = sample(before, args.task), sample(after, args.task)
        curve = asyncio.run(read_curve(stack.url, args.task))
        items = list(itertools.islice(worlds.WORLDS[args.task].items("eval", 0), HELD_OUT))
        curve.held_out, curve.expert = [base, last], EXPERTS[args.task](items)
        counted = training.figures()
        return Run(
            task=args.task, seed=args.seed, success_base=base[0], success_last=last[0], error_base=base[1], error_last=last[1],
            expert=curve.expert, steps=steps_of(stack), episodes=counted["episodes"], calls=counted["calls"], train_seconds=seconds,
            failed_calls=before.failed + training.failed + after.failed, curve=curve.as_json(),
        )  # fmt: skip
    finally:
        stack.stop()


def main() -> int:
    """Returns the exit code: 1 where a call failed or there were fewer steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=sorted(EXPERTS), default="retail")
    parser.add_argument("--model", type=Path, help="default: the task's committed one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--agents", type=int, default=64)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds after which all has ended")
    parser.add_argument("--into", type=Path, default=Path("long"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    args = parser.parse_args()
    end = time.monotonic() + args.limit
    args.model = args.model or ROOT / "examples" / args.task / "model"
    args.into.mkdir(parents=True, exist_ok=True)
    agents = Agents((args.task,), NAME, agents=args.agents, processes=args.processes, seed=1000 * (args.seed + 1))
    try:
        agents.wait_ready()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            run = long_run(args, agents, Path(folder), end)
    finally:
        agents.close()
    kept = args.into / "curves" / f"{args.task}-{LONG_RUN}-{args.seed}.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(run.rounded().model_dump_json(exclude_none=True) + "\n")
    print(f"{run.told()}, slide {run.slide}", file=sys.stderr, flush=True)
    print(json.dumps({"slide": run.slide, **run.model_dump(exclude={"curve"})}))
    return 1 if run.failed_calls or run.steps < args.steps else 0


if __name__ == "__main__":
    sys.exit(main())
