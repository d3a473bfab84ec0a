"""A trainer's step goes wrong in mid-run: does the stack mend itself? ``python benchmarks/gate/spoiled.py``.

The inbox demo on real vLLM, at the default holdout and with the default settings, twice with one seed and for the same
time. In the second run one step destroys the trainer's weights, after the first adapter was accepted. The gate is to
take that adapter back, the trainer to go on from the accepted version's weights and optimiser, and held-out success to
end where it does in the first run. The last line is one JSON object; the exit code is 0 if all of that holds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from slipstream.client import AsyncClient
from slipstream.contract import Event
from slipstream.errors import ApiError
from slipstream.operate.demo.driver import HELD_OUT, TaskDriver
from slipstream.operate.demo.progress import Progress
from slipstream.operate.demo.task import demo_config, load_task, open_agent
from slipstream.operate.run.stack import CONFIG_ENV, start_stack
from slipstream.shared.processes.supervisor import Child, Supervisor

SPOIL_AFTER = 0.4
"""Part of the time after which a step is spoiled, once a version was accepted."""
FIRST_STEP_LIMIT = 900.0


class Line(TypedDict):
    """Of ``checkpoints.jsonl``."""

    weights: str
    step: int
    optimizer: str
    moments: int
    at: float


@dataclass
class Seen:
    """What one run showed."""

    base: float = 0.0
    last: float = 0.0
    steps: int = 0
    seconds: float = 0.0
    live: str = ""
    groups: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    spoiled: str | None = None
    reached: int = 0
    """Training episodes that the spoiled adapter, or what was made from it, answered."""
    lines: list[Line] = field(default_factory=list)
    failed: int = 0

    @property
    def stale(self) -> float:
        """Share of the groups that were used or lost."""
        done = {k: n for k, n in self.groups.items() if k in ("trained", "stale", "skipped", "dropped")}
        return done.get("stale", 0) / max(1, sum(done.values()))

    def rollback(self) -> Event | None:
        return next((e for e in self.events if e.kind == "rollback" and self.spoiled), None)

    def restored(self) -> Event | None:
        back = self.rollback()
        return next((e for e in self.events if back and e.kind == "restored" and e.at >= back.at - 1.0), None)

    def same_optimizer(self) -> bool:
        """Whether the optimiser that training went on with is the one that the accepted version was made with."""
        back, restored = self.rollback(), self.restored()
        if back is None or restored is None:
            return False
        of_it = [x for x in self.lines if x["weights"] == restored.data.get("adapter")]
        before, after = [x for x in of_it if x["at"] < back.at], [x for x in of_it if x["at"] >= back.at]
        return bool(before and after) and before[0]["optimizer"] == after[0]["optimizer"]


def _trainer(config_json: str, folder: Path, url: str) -> Child:
    script = Path(__file__).with_name("spoiling_trainer.py")
    argv = [sys.executable, str(script), str(folder), "--url", url]
    child = Child("trainer", argv, {CONFIG_ENV: config_json, "PYTHONUNBUFFERED": "1"})
    child.essential, child.may_end = False, True
    return child


async def train(driver: TaskDriver, url: str, folder: Path, args: argparse.Namespace, spoil: bool, seen: Seen) -> None:
    """The agent works until the time is over. The clock starts with the first step."""
    stop, began, first = asyncio.Event(), time.monotonic(), None
    working = asyncio.create_task(driver.work(stop))
    try:
        async with AsyncClient(url) as client:
            while not working.done():
                await asyncio.sleep(1.0)
                try:
                    seen.events, adapters = await client.events(), await client.adapters()
                except ApiError:
                    continue
                seen.steps = sum(e.kind == "step" for e in seen.events)
                now = time.monotonic()
                if first is None and seen.steps:
                    first = now
                if first is None:
                    if now - began > FIRST_STEP_LIMIT:
                        raise SystemExit(f"no step in {FIRST_STEP_LIMIT:.0f} s: {(await client.status()).waiting}")
                    continue
                seen.seconds = now - first
                accepted = any(a.accepted for a in adapters.adapters)
                if spoil and accepted and seen.seconds > SPOIL_AFTER * args.seconds:
                    spoil = False
                    (folder / "spoil").touch()
                if seen.seconds > args.seconds:
                    return
    finally:
        stop.set()
        await working


async def run(name: str, spoil: bool, args: argparse.Namespace) -> Seen:
    folder = args.data_dir.resolve() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    task = load_task("inbox")
    config = demo_config(task, args.seed, folder / "data", args.set)
    seen, progress = Seen(), Progress()
    with (folder / "log").open("w", buffering=1) as log:
        supervisor = Supervisor(lambda who, line: print(f"{who:8} | {line}", file=log))
        try:
            parts = config.model_copy(update={"trainer": config.trainer.model_copy(update={"enabled": False})})
            stack = await start_stack(parts, supervisor, progress.say)
            config = stack.config.model_copy(update={"trainer": config.trainer})
            agent = await open_agent(task, f"{stack.url}/v1")
            driver = TaskDriver(task, agent, args.seed)
            seen.base = (await driver.held_out("base", progress)).mean
            child = supervisor.start(_trainer(config.model_dump_json(), folder, stack.url))
            await train(driver, stack.url, folder, args, spoil, seen)
            child.restart = False
            await supervisor.end(child)
            await _collect(stack.url, folder, seen)
            seen.last = (await driver.held_out("last", progress)).mean
            seen.failed = driver.tally.failed
            await agent.close()
        finally:
            await supervisor.stop()
    progress.say(
        f"{name}: {seen.base:.1%} → {seen.last:.1%} with {seen.live}, {seen.steps} steps, groups {seen.groups}"
    )
    return seen


async def _collect(url: str, folder: Path, seen: Seen) -> None:
    async with AsyncClient(url) as client:
        seen.events, status, adapters = await client.events(), await client.status(), await client.adapters()
        seen.steps = sum(e.kind == "step" for e in seen.events)
        seen.groups, seen.live = status.groups, next(iter(adapters.live.values()))
        spoiled = next(folder.glob("spoiled-*"), None)
        if spoiled is not None:
            seen.spoiled = spoiled.name.removeprefix("spoiled-")
            back = seen.rollback()
            version, until = int(seen.spoiled.rsplit("@", 1)[1]), back.at if back else time.time()
            names = [a.name for a in adapters.adapters if a.version >= version and a.created <= until]
            quoted = ", ".join(f"'{n}'" for n in names)
            rows = await client.sql(f"SELECT count(*) FROM episodes WHERE split = 'train' AND adapter IN ({quoted})")
            seen.reached = int(rows.rows[0][0])
    kept = folder / "checkpoints.jsonl"
    seen.lines = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def summary(plain: Seen | None, spoiled: Seen) -> dict[str, object]:
    back, restored = spoiled.rollback(), spoiled.restored()
    found: dict[str, object] = {
        "spoiled": spoiled.spoiled,
        "taken_back": back.data.get("adapter") if back else None,
        "reason": back.data.get("reason") if back else None,
        "live_episodes": spoiled.reached,
        "restored": restored.data.get("adapter") if restored else None,
        "restored_from": restored.data.get("source") if restored else None,
        "same_optimizer": spoiled.same_optimizer(),
        "success_base": round(spoiled.base, 4),
        "success_spoiled_run": round(spoiled.last, 4),
        "steps_spoiled_run": spoiled.steps,
        "stale_groups": round(spoiled.stale, 4),
        "failed_calls": spoiled.failed,
    }
    ends_there = True
    if plain is not None:
        error = math.sqrt(sum(s.last * (1.0 - s.last) for s in (plain, spoiled)) / HELD_OUT + 1e-4)
        ends_there = spoiled.last >= plain.last - 2.0 * error
        found |= {
            "success_plain_run": round(plain.last, 4),
            "steps_plain_run": plain.steps,
            "stale_groups_plain_run": round(plain.stale, 4),
            "rollbacks_plain_run": sum(e.kind == "rollback" for e in plain.events),
            "chance": round(2.0 * error, 4),
        }
    good = back is not None and restored is not None and restored.data.get("source") in ("checkpoint", "start")
    return found | {"holds": good and spoiled.same_optimizer() and ends_there and spoiled.stale <= 0.05}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=330.0, help="of training after the first step")
    parser.add_argument("--data-dir", type=Path, default=Path("slipstream-data/spoiled"))
    parser.add_argument("--only-spoiled", action="store_true", help="leave the run without an accident out")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.FIELD=VALUE")
    args = parser.parse_args()
    plain = None if args.only_spoiled else asyncio.run(run("plain", False, args))
    found = summary(plain, asyncio.run(run("spoiled", True, args)))
    print(json.dumps({"seed": args.seed, "seconds": args.seconds, **found}))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
