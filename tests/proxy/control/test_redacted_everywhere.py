"""With ``proxy.redact``, no piece of a secret is in the spool, the store, exports, logs, metrics, traces, what the page reads, or what the judge
is asked: whatever the format, the field and the pieces that it comes in, and whether the control plane is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from tests.support import until
from tests.support.collector import Collector
from tests.support.dataplane import Proxy
from tests.support.plane import make_config
from tests.support.planted_traffic import EXPORTS, SayingEngine, Scan, Sender, files, read

from slipstream_proxy.control.run.worker import ControlPlane

CASES = int(os.environ.get("REDACTION_CASES", "120"))
"""``REDACTION_CASES=100000`` tries as many, ``BATCH_CASES`` in one data folder."""
BATCH_CASES = 250
AT_ONCE = 16


async def run_batch(folder: Any, rng: random.Random, count: int, scan: Scan, logged: Callable[[], str]) -> Sender:
    """``count`` cases on one data folder. In half of the batches the control plane comes late."""
    engine = SayingEngine(rng)
    await engine.start()
    config = make_config(
        folder, engine, proxy={"redact": "tests.support.planted:redact", "metric_tags": ["user", "x"]}, groups={"size": 2},
        reward={"weights": {"judge": 1.0}}, engine={"kind": "vllm"}, identity={"traceparent": True},
    )  # fmt: skip
    control, late = ControlPlane(config), rng.random() < 0.5

    async def begin() -> None:
        await control.start()
        await control.serve()

    if not late:
        await begin()
    proxy = await Proxy(config).start()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            sender = Sender(proxy.url, session, rng, lambda: proxy.plane.live.connected)
            if not late:
                await until(lambda: proxy.plane.live.connected)
            left = iter(range(count))

            async def send() -> None:
                for _ in left:
                    await sender.one()

            await asyncio.gather(*(send() for _ in range(AT_ONCE)))
            if late:
                await begin()
                await until(lambda: proxy.plane.live.connected)
            await stored(control)
            await read(scan, session, proxy.url)
    finally:
        await proxy.stop()
        await control.stop()
        await engine.stop()
    files(scan, proxy.config.root)
    scan.look("log", logged())
    return sender


async def stored(control: ControlPlane) -> None:
    """Until the store has what stands in the spool."""

    async def behind() -> int:
        ingester = control.deps.ingester
        return (await asyncio.to_thread(ingester.backlog))[0] if ingester is not None else 1

    async with asyncio.timeout(60):
        while await behind():
            await asyncio.sleep(0.02)


@pytest.fixture
def collector(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    made = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.close()


@pytest.mark.timeout(36_000)
async def test_no_piece_of_a_secret_is_anywhere(tmp_path, caplog, collector):
    seed = int(os.environ.get("REDACTION_SEED", "1"))
    caplog.set_level("DEBUG")
    scan, fields, statuses, left, batch = Scan(), Counter(), Counter(), CASES, 0
    while left > 0:
        rng = random.Random(f"{seed}-{batch}")
        sender = await run_batch(tmp_path / str(batch), rng, min(left, BATCH_CASES), scan, lambda: caplog.text)
        fields.update(sender.fields)
        statuses.update(sender.statuses)
        for raw in collector.raw:
            scan.look("traces", raw)
        caplog.clear()
        collector.raw.clear()
        one_each = {place: piece for place, piece in reversed(scan.found)}
        assert not scan.found, (seed, batch, one_each)
        left, batch = left - BATCH_CASES, batch + 1
    told = {"cases": sum(fields.values()), "fields": fields, "bytes": scan.places}
    print(json.dumps(told | {"statuses": {f"{field} {status}": n for (field, status), n in sorted(statuses.items())}}))
    assert {"spool", "store", "files", "log", "metrics", "traces", "page", "judge's prompts"} < scan.places.keys()
    assert all(scan.places[f"export {name}"] for name in EXPORTS)
