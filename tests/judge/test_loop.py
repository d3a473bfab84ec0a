from __future__ import annotations

import asyncio

from slipstream_judge.loop import run_loop


def test_it_runs_and_returns():
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    assert run_loop(work()) == "done"
