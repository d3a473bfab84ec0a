"""How far does each task's agent get on real vLLM at the default settings: by its reward, and by a judge alone?

    python -m benchmarks.curves.curves [--seeds 3] [--minutes 6] [--only NAME ...] [--seed N] [--by reward|ruler] [--axis time]

Each run is `slipstream demo --task NAME`, which ends by the clock, or where the agent is as good as the expert; with
`--steps 256` it goes on, and shows whether what was learned stays (`slide`): such a run is kept beside the others. A judge that takes a second sees
transcripts and nothing else: tests/support/ruled_judge.py with the task's own rule, through LiteLLM and HTTP like any
model.

Runs are kept one by one in benchmarks/results/curves/, so they can be made one by one; what is not run again stays.
benchmarks/results/curves.json sums them up, docs/images/curves/ has a picture of each task, and docs/tasks.md the table. The last
line is curves.json: of each task `base`, `last` and `expert` (held-out rewards, means over the seeds), and `gain`, the
least over the seeds of (last - base) / (expert - base).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.curves.summary import LONG, LONG_RUN, Run, Summary, fill_table, summarise
from benchmarks.harness import RESULTS, ROOT, report, say, slipstream
from common.demo.curve import LearningCurve, StepPoint, VersionPoint, plot
from common.task import Missing, load_task, task_names
from tests.support.ruled_judge import RuledJudge, each
from tests.support.served import Served

PAGE = ROOT / "docs" / "tasks.md"
JUDGE_SECONDS = 1.0
BY = ("reward", "ruler")


@dataclass(frozen=True)
class Places:
    """Where what was found is kept."""

    results: Path = RESULTS
    images: Path = ROOT / "docs" / "images" / "curves"
    page: Path | None = PAGE

    @property
    def runs(self) -> Path:
        """A file of each run."""
        return self.results / "curves"

    def run(self, name: str, kind: str, seed: int) -> Path:
        """`kind`: "reward", "ruler", or "long" for a run by reward of many steps."""
        return self.runs / f"{name}-{kind}-{seed}.json"


def demo(name: str, seed: int, folder: Path, minutes: float, *more: str) -> Run:
    """One run. Raises ``SystemExit`` where it failed."""
    command = slipstream("demo", "--task", name, "--seed", str(seed))
    command += ["--data-dir", str(folder), "--time-limit", str(60 * minutes), *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=folder)
    found = sorted(folder.rglob("curve.json"))
    if ran.returncode or not found:
        logs = "".join(log.read_text()[-3000:] for log in folder.rglob("demo.log"))
        raise SystemExit(f"{' '.join(command)} ended with {ran.returncode}\n{logs}")
    return Run.model_validate_json(found[0].read_text())


def by_ruler(name: str, seed: int, folder: Path, args: argparse.Namespace) -> Run:
    """A run in which nobody posts a reward: a judge scores groups of transcripts."""
    task = load_task(name)
    os.environ.setdefault("OPENAI_API_KEY", "none")
    judge = RuledJudge(each(task.rule), latency=JUDGE_SECONDS)
    with Served(judge.app()) as url:
        settings = {
            "judge.model": "openai/ruled",
            "judge.api_base": f"{url}/v1",
            "judge.rubric": task.rubric,
            "reward.weights": "{ judge = 1.0 }",
        }
        config = folder / "judge.toml"
        config.write_text("".join(f"{key} = {toml(key, value)}\n" for key, value in settings.items()))
        run = demo(name, seed, folder, args.minutes, "--no-reward", "--config", str(config), *more(args))
    return run.model_copy(update={"judge_calls": len(judge.requests)})


def toml(key: str, value: str) -> str:
    """A value in TOML: what is a table stays one."""
    return value if key == "reward.weights" else json.dumps(value, ensure_ascii=False)


def more(args: argparse.Namespace) -> list[str]:
    """What the demo is told beside the task, the seed and the time."""
    steps = ["--steps", str(args.steps)] if args.steps else []
    return [*steps, *(part for setting in args.set for part in ("--set", setting))]


def make_run(name: str, by: str, seed: int, places: Places, args: argparse.Namespace) -> Run | None:
    """Run it and keep it. None where the task can't run here."""
    task = load_task(name)
    if not (task.model / "config.json").is_file():
        say(f"{name}: no model in {task.model}, left out")
        return None
    with tempfile.TemporaryDirectory(prefix="slipstream-curves-") as temporary:
        folder = Path(temporary)
        say(f"{name} by {by}, seed {seed}")
        run = (
            by_ruler(name, seed, folder, args) if by == "ruler" else demo(name, seed, folder, args.minutes, *more(args))
        )
    places.runs.mkdir(parents=True, exist_ok=True)
    kind = LONG_RUN if by == "reward" and (args.steps or 0) >= LONG else by
    places.run(name, kind, seed).write_text(run.rounded().model_dump_json(exclude_none=True) + "\n")
    say(f"{name} by {by}, seed {seed}: {run.told()}")
    return run


def kept_runs(places: Places) -> dict[tuple[str, str], list[Run]]:
    """(task, kind) → the runs that were kept, by seed."""
    found: dict[tuple[str, str], list[Run]] = {}
    for name in task_names():
        for kind in (*BY, LONG_RUN):
            files = places.runs.glob(f"{name}-{kind}-[0-9]*.json")
            runs = [Run.model_validate_json(file.read_text()) for file in files]
            if runs:
                found[name, kind] = sorted(runs, key=lambda run: run.seed)
    return found


def draw(runs: dict[tuple[str, str], list[Run]], images: Path, axis: str) -> None:
    """A picture of each task: of its first run by reward, or else by a judge; and of its first long run."""
    images.mkdir(parents=True, exist_ok=True)
    for (name, kind), each_run in runs.items():
        if kind in ("reward", LONG_RUN) or (name, "reward") not in runs:
            one = each_run[0].curve
            versions = [VersionPoint(**point) for point in one["versions"]]
            steps = [StepPoint(**point) for point in one["steps"]]
            curve = LearningCurve(name, versions, steps, one["held_out"], one["expert"])
            plot(curve, images / (f"{name}-long.png" if kind == LONG_RUN else f"{name}.png"), axis=axis, dpi=80)


def write(places: Places, axis: str) -> Summary:
    """Sum up what is kept, draw it, and fill the page's table."""
    runs = kept_runs(places)
    summary = summarise(runs)
    places.results.mkdir(parents=True, exist_ok=True)
    (places.results / "curves.json").write_text(json.dumps(summary, indent=1) + "\n")
    draw(runs, places.images, axis)
    if places.page:
        places.page.write_text(fill_table(places.page.read_text(), summary))
    return summary


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=sorted(task_names()), metavar="NAME", help="may be repeated")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each task, with the seeds from 0")
    parser.add_argument("--seed", type=int, action="append", help="these seeds instead")
    parser.add_argument("--by", choices=BY, help="default: both")
    parser.add_argument("--minutes", type=float, default=6.0, help="of training after the first step")
    parser.add_argument("--steps", type=int, help="end after so many, however good the agent is by then")
    parser.add_argument("--axis", choices=("version", "time"), default="version")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE", help="as of the demo")
    parser.add_argument("--summary", action="store_true", help="run nothing, sum up what is kept")
    parser.add_argument("--into", type=Path, help="keep everything in this folder instead, and leave the page alone")
    parser.add_argument(
        "--least-gain", type=float, help="end with 1 where a run that was made has less, or failed calls"
    )
    return parser.parse_args()


def main() -> int:
    args = arguments()
    places = Places(args.into, args.into / "images", None) if args.into else Places()
    runs = itertools.product((args.by,) if args.by else BY, args.seed or range(args.seeds), args.only or task_names())
    good = True
    for by, seed, name in () if args.summary else runs:
        try:
            run = make_run(name, by, seed, places, args)
        except Missing as missing:
            say(f"{name}: {missing}")
            run = None
        if args.least_gain is not None:
            good = good and run is not None and run.gain >= args.least_gain and not run.failed_calls
        if run:
            write(places, args.axis)
    report(write(places, args.axis))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
