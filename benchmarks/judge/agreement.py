"""How far does a judge agree with rewards? Runs of three example tasks, by players from careless to perfect, judged blindly.

    python benchmarks/judge/agreement.py --set judge.model=hosted_vllm/NAME --set judge.api_base=http://…/v1
    python benchmarks/judge/agreement.py --url http://127.0.0.1:8100 --set judge.model=self
    python benchmarks/judge/agreement.py --rules          # the tasks' own rules as a simulated judge: what can be had

Any judge: ``--set`` takes every setting of ``slipstream judge eval``, which does the measuring. A group is some runs of
one item whose rewards differ. ``--out`` keeps what other judges got there. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("examples", "sdk", "judge"))]

from common.task import load_task
from tests.support.ruled_judge import RuledJudge, each
from tests.support.served import Served

from slipstream.client import Client
from slipstream.config import load_config
from slipstream_judge.model.server import OwnProxy
from slipstream_judge.trust.evaluation import evaluate

RESULTS = ROOT / "benchmarks" / "results" / "judge_agreement.json"
Run = tuple[dict[str, Any], float]
"""What of a line of ``judge eval`` says what happened, and the reward."""
KEPT = ("spearman", "auc", "order_bias", "retest_spread", "groups", "failed", "seconds_per_group", "tokens_per_group")


def inbox_runs(rng: random.Random) -> Iterator[Iterator[Run]]:
    from inbox.inbox import TOOLS, reward
    from inbox.pretrain import transcript
    from inbox.task import TASK

    for task in TASK.items("train", rng.randrange(1000)):

        def runs(task: Any = task) -> Iterator[Run]:
            while True:
                messages, _ = transcript(task, rng)
                said = json.loads(messages[-1]["tool_calls"][0]["function"]["arguments"])["text"]
                yield {"messages": messages, "tools": TOOLS}, reward(task, said)

        yield runs()


def retail_runs(rng: random.Random) -> Iterator[Iterator[Run]]:
    from retail.desk import cases
    from retail.domains import tools_of
    from retail.players import EXPERT, PLAYERS, play

    for case in cases("train", rng.randrange(1000)):

        def runs(case: Any = case) -> Iterator[Run]:
            while True:
                desk, messages = play(case, rng.choice([*PLAYERS, EXPERT]), rng)
                yield {"messages": messages, "tools": tools_of(case.domain)}, desk.reward

        yield runs()


def clue_runs(rng: random.Random) -> Iterator[Iterator[Run]]:
    from clue.detectives import DETECTIVES, EXPERT, play
    from clue.mystery import cases, score

    for case in cases("train", rng.randrange(1000)):

        def runs(case: Any = case) -> Iterator[Run]:
            while True:
                asked = list(play(case, rng.choice([*DETECTIVES, EXPERT]), rng))
                answers = [word for _, reply in asked[1:] for word in reply.visible.split()]
                last, said = asked[-1]
                yield {"messages": [*last, {"role": "assistant", "content": said.visible}]}, score(case, answers)

        yield runs()


TASKS: dict[str, Callable[[random.Random], Iterator[Iterator[Run]]]] = {
    "inbox": inbox_runs,
    "retail": retail_runs,
    "clue": clue_runs,
}
TRIES = 40


def groups_of(task: str, groups: int, size: int) -> Iterator[dict[str, Any]]:
    """Lines of ``judge eval``. Runs of a group are distinct, and not all of one reward."""
    rng, made = random.Random(f"{task} 1"), 0
    for runs in TASKS[task](rng):
        if made == groups:
            return
        found: dict[str, Run] = {}
        for _, (what, reward) in zip(range(TRIES), runs, strict=False):
            found.setdefault(json.dumps(what["messages"], sort_keys=True), (what, reward))
        chosen = list(found.values())
        rng.shuffle(chosen)
        chosen.sort(key=lambda run: run[1])
        spread = [chosen[i * (len(chosen) - 1) // (size - 1)] for i in range(size)] if len(chosen) >= size else []
        if len({reward for _, reward in spread}) < 2:
            continue
        rng.shuffle(spread)
        for n, (what, reward) in enumerate(spread):
            yield {"group": f"{task}-{made}", "episode": f"{task}-{made}-{n}", "task": task, "truth": reward, **what}
        made += 1


def measure(args: argparse.Namespace, task: str, folder: Path) -> dict[str, Any]:
    file = folder / f"{task}.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in groups_of(task, args.groups, args.size)))
    known = load_task(task)
    with ExitStack() as stack:
        flags = [f"judge.rubric={json.dumps(known.rubric)}", *args.set] if args.rubric else list(args.set)
        if args.rules:
            url = stack.enter_context(Served(RuledJudge(rule=each(known.rule)).app()))
            flags += ["judge.model=openai/rules", f"judge.api_base={url}/v1"]
        config = load_config(None, env={}, flags=flags)
        client = stack.enter_context(Client(args.url))
        proxy = OwnProxy.of(config, client.url, client.http.headers.get("authorization"))
        found = asyncio.run(evaluate(config, file, repeats=args.repeats, proxy=proxy))
    return {name: round(v, 4) if isinstance(v := found.get(name), float) else v for name in KEPT} | {
        name: found[name] for name in ("error", "model") if name in found
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--url", help="a proxy, for judge.model=self")
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--rubric", action="store_true", help="give each task's own rubric in place of the default one")
    parser.add_argument("--task", action="append", choices=sorted(TASKS))
    parser.add_argument("--groups", type=int, default=24)
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--name", help="of this judge in --out; default: its model")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {task: measure(args, task, Path(folder)) for task in args.task or TASKS}
    for task, figures in found.items():
        print(task, figures)
    kept = json.loads(args.out.read_text()) if args.out.is_file() else {}
    name = args.name or next(iter(found.values())).get("model") or "?"
    kept[name] = {task: {k: v for k, v in figures.items() if k != "model"} for task, figures in found.items()}
    args.out.write_text(json.dumps(kept, indent=2) + "\n")
    print(json.dumps({name: kept[name]}))
    return 1 if any("error" in figures for figures in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
