"""Does a worker that decides alone say what the control plane says? Each case is asked of both: part ``agree`` of ``bench_growth``."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from tests.support.fake_engine import LoraEngine
from tests.support.plane import Plane, make_config, register, until

from slipstream_proxy.data.engines.control_link import ControlLink
from slipstream_proxy.data.engines.live import LiveView

AT_ONCE = 500
LETTERS = "ab-_/. \u00e9\u4e2d\U0001f600\u2028"
Case = tuple[str, str, str | None, str]
"""Key, episode, task, split."""


def cases(rng: random.Random, first: int, count: int) -> list[Case]:
    """New runs with names of every kind; of four, one is for evaluation and one without a task."""

    def text() -> str:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 9)))

    return [
        (rng.choice(["-", "k1", text()]), f"{text()}{n}", text() if n % 4 else None, "eval" if n % 4 == 1 else "train")
        for n in range(first, first + count)
    ]


async def answered(link: ControlLink, case: Case) -> object:
    """What the control plane says, asked again where a busy machine kept it from saying anything."""
    key, episode, task, split = case
    for _ in range(20):
        answer = await link.pin(key, episode, "tiny", task, split, {})
        if answer is not None:
            return answer
    return None


async def agreed(plane: Plane, link: ControlLink, some: list[Case]) -> int:
    central = await asyncio.gather(*(answered(link, case) for case in some))
    found = 0
    for (key, episode, task, split), answer in zip(some, central, strict=True):
        alone = link.live.decide("tiny", key, task, episode, split, {})
        found += answer == {"adapter": alone.adapter, "arm": alone.arm, "chances": alone.chances}
    return found


async def compare(folder: Path, count: int, mode: str) -> int:
    """With no adapter, with one and with two, in this mode of the gate."""
    engine = await LoraEngine().start()
    plane = await Plane(make_config(folder, engine, gate={"holdout": 0.1, "mode": mode, "share": 0.2}), engine).start()
    await plane.control.serve()
    link = ControlLink(plane.config.socket, LiveView(plane.config))
    following = asyncio.create_task(link.follow())
    rng, asked, found = random.Random(mode), 0, 0
    try:
        await until(lambda: link.live.connected)
        for version in range(3):
            if version:
                await register(plane, version)
                await until(lambda: link.live.models["tiny"].arms)
            await until(
                lambda: (
                    [list(arm) for arm in link.live.models["tiny"].arms]
                    == plane.deps.live.value["models"]["tiny"]["arms"]
                )
            )
            until_now = count * (version + 1) // 3
            while asked < until_now:
                some = cases(rng, asked, min(AT_ONCE, until_now - asked))
                found += await agreed(plane, link, some)
                asked += len(some)
    finally:
        following.cancel()
        await link.close()
        await plane.stop()
        await engine.stop()
    return found


def agreement(count: int) -> dict[str, int]:
    found = 0
    for part, mode in enumerate(("guard", "canary")):
        with tempfile.TemporaryDirectory() as folder:
            found += asyncio.run(compare(Path(folder), (count + part) // 2, mode))
    return {"pins_agree": found, "pins_asked": count}
