"""Adapters that go live under load: how long it takes, what the streams notice, and whether a token came from a wrong adapter.

Each stream makes one greedy call after the other, each an episode of its own, and notes the adapter that the reply names. Afterwards
each adapter answers the same prompt, on the quiet engine: ids that it does not give there come from something else. An adapter of
``make_adapters.py`` has one token, whatever it is asked. Where two tokens of the vocabulary lie nearly alike for it, the logits' rounding
to bf16 decides between them, and that changes with what else is in the batch. So an adapter with other ids is asked again, alone in the
engine, in many calls at once: ids that it gives there are its own. All others are wrong.
"""

from __future__ import annotations

import bisect
import contextlib
import http.client
import itertools
import json
import math
import multiprocessing
import shutil
import statistics
import tempfile
import time
import urllib.error
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.engine.streams import PROCESSES
from benchmarks.harness import API, ask

PROMPT = [{"role": "user", "content": "say it"}]
TOKENS = 96
PAUSE = 1.0
"""Seconds from one swap to the next. A call of 96 tokens lasts about as long, so two or three adapters are at work at once."""
SETTLE = 3.0
"""Seconds until all streams have the first adapter: calls begin with the version of their time, and last about one second."""
QUIET = 6.0
"""Seconds under one adapter, without a swap: what the streams' gaps are compared with."""
AFTER = 0.1
"""Seconds after a swap that its gaps may still end in."""
ALONE = 4
"""Reference calls at once: as many as the engine holds adapters. One answer outweighs the rest in each of them."""
CROWDS = (256, 64, 16, 1)
"""Calls at once of one adapter, where rounding is to be seen: batches of these sizes."""


@dataclass
class Call:
    adapter: str
    ids: list[int]
    times: list[float]
    """When each event of the stream came, in seconds of the machine's clock."""


@dataclass
class Load:
    """What the streams saw."""

    calls: list[Call] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def one_call(url: str, model: str, episode: str | None) -> Call:
    """A greedy streamed call. Raises ``RuntimeError`` if it fails or ends without its last token."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    body = {"model": model, "messages": PROMPT, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    headers = {"content-type": "application/json"} | ({"x-slipstream-episode": episode} if episode else {})
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    reply = connection.getresponse()
    call = Call(reply.headers.get("x-slipstream-adapter", model), [], [])
    if reply.status != 200:
        raise RuntimeError(f"{reply.status} {reply.read(300)!r}")
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(str(event)[:300])
        now = time.monotonic()
        for choice in event["choices"]:
            if choice.get("token_ids"):
                call.times.append(now)
                call.ids += choice["token_ids"]
    connection.close()
    if len(call.ids) != TOKENS:
        raise RuntimeError(f"{len(call.ids)} of {TOKENS} tokens")
    return call


def stream(load: Load, stop: Event, url: str, model: str, number: int) -> None:
    n = 0
    while not stop.is_set():
        n += 1
        try:
            load.calls.append(one_call(url, model, f"swap-{number}-{n}"))
        except (RuntimeError, OSError, http.client.HTTPException) as e:
            load.failed.append(repr(e))


def process(url: str, model: str, numbers: range, stop: Event, out: Queue[Load]) -> None:
    load = Load()
    with ThreadPoolExecutor(len(numbers)) as pool:
        for number in numbers:
            pool.submit(stream, load, stop, url, model, number)
    out.put(load)


@contextlib.contextmanager
def streaming(url: str, model: str, streams: int) -> Iterator[Load]:
    """Streams from several processes. What they saw is there at the end of the block."""
    stop, load = multiprocessing.Event(), Load()
    out: Queue[Load] = multiprocessing.Queue()
    share = max(1, streams // PROCESSES)
    shares = [range(i, i + share) for i in range(0, streams, share)]
    processes = [multiprocessing.Process(target=process, args=(url, model, s, stop, out)) for s in shares]
    for p in processes:
        p.start()
    try:
        yield load
    finally:
        stop.set()
        for _ in processes:
            found = out.get()
            load.calls += found.calls
            load.failed += found.failed
        for p in processes:
            p.join()


def control(url: str, method: str, path: str, body: object = None) -> dict[str, object]:
    for _ in range(50):
        try:
            return dict(json.loads(ask(method, f"{url}{API}{path}", body)))
        except urllib.error.HTTPError as e:
            if e.code != 503:  # busy: it says so at once, and is asked again
                raise SystemExit(f"{method} {path}: {e.code} {e.read(500)!r}") from None
            time.sleep(0.1)
    raise SystemExit(f"{method} {path}: 503 fifty times in a row")


@dataclass(frozen=True)
class Span:
    """From ``start`` to ``end``, in seconds of the machine's clock."""

    start: float
    end: float

    def cut(self, length: float) -> list[Span]:
        """Spans of this length, one after the other."""
        count = int((self.end - self.start) / length)
        return [Span(self.start + i * length, self.start + (i + 1) * length) for i in range(count)]


class Gaps:
    """The time between two events of a stream, of all streams, in the order in which they ended."""

    def __init__(self, calls: list[Call]) -> None:
        found = sorted((now, now - last) for c in calls for last, now in itertools.pairwise(c.times))
        self._ends, self._gaps = [end for end, _ in found], [gap for _, gap in found]

    def within(self, span: Span) -> list[float]:
        """Those that ended in a span, in seconds."""
        return self._gaps[bisect.bisect_left(self._ends, span.start) : bisect.bisect_right(self._ends, span.end)]

    def longest(self, spans: list[Span]) -> float:
        """The longest gap that any stream had in a span: the median of all spans, in seconds."""
        return statistics.median(max(self.within(span), default=0.0) for span in spans)


def go_live(url: str, model: str, number: int) -> Span:
    """From the registration to the adapter being live."""
    name = f"{model}@{number}"
    start = time.monotonic()
    control(url, "POST", "/adapters", {"path": name, "step": number})
    while dict(control(url, "GET", "/adapters")["live"]).get(model) != name:  # type: ignore[call-overload]
        if time.monotonic() - start > 60:
            raise SystemExit(f"{name} is not live after 60 s: {control(url, 'GET', '/adapters')}"[:2000])
        time.sleep(0.005)
    return Span(start, time.monotonic())


def swap(engine: str, proxy: str, model: str, streams: int, count: int, folder: Path) -> dict[str, object]:
    """``count`` swaps under ``streams`` streams, after a first adapter that goes live for the comparison."""
    kept = Path(tempfile.mkdtemp()) / "adapters"
    shutil.copytree(folder, kept)  # the proxy deletes the files of versions that nobody goes back to
    swaps = []
    with streaming(proxy, model, streams) as load:
        time.sleep(2)
        go_live(proxy, model, 1)
        time.sleep(SETTLE)
        quiet = Span(time.monotonic(), time.monotonic() + QUIET)
        time.sleep(QUIET)
        for number in range(2, count + 2):
            swaps.append(go_live(proxy, model, number))
            time.sleep(PAUSE)
        under_swaps = Span(quiet.end, time.monotonic())
        time.sleep(2)
    served = sorted({c.adapter for c in load.calls})
    with ThreadPoolExecutor(ALONE) as pool:
        reference = dict(zip(served, pool.map(lambda name: alone(engine, kept, name), served), strict=True))
    seen = tokens_seen(load.calls, reference, model)
    if seen.adapters:
        own = {name: crowded(engine, kept, name) for name in sorted(seen.adapters)}
        seen = tokens_seen(load.calls, reference, model, own)
    distinct = len({tuple(ids) for ids in reference.values()})
    seconds = [s.end - s.start for s in swaps]
    gaps = Gaps(load.calls)
    before, during = gaps.within(quiet), gaps.within(under_swaps)
    return {
        "swaps": count,
        "swap_streams": streams,
        "swap_failed_calls": len(load.failed),
        "swap_failures": sorted(set(load.failed))[:3],
        "swap_calls": len(load.calls),
        "swap_adapters_served": len(reference),
        "swap_distinct_answers": distinct,
        "swap_wrong_tokens": seen.of_another + seen.of_none,
        "swap_wrong_tokens_of_another": seen.of_another,
        "swap_wrong_in_calls_of": sorted(seen.adapters),
        "swap_wrong_calls": seen.calls,
        "swap_rounded_tokens": seen.rounded,
        "swap_adapter_tokens_in_base_calls": seen.in_base_calls,
        "swap_base_calls": sum(c.adapter == model for c in load.calls),
        "swap_live_p50_ms": round(1000 * statistics.median(seconds), 1),
        "swap_live_p99_ms": round(1000 * quantile(seconds, 0.99), 1),
        "swap_live_ms": [round(1000 * s) for s in seconds],
        "longest_gap_p50_ms_quiet": round(1000 * gaps.longest(quiet.cut(statistics.median(seconds) + AFTER)), 1),
        "longest_gap_p50_ms_swap": round(1000 * gaps.longest([Span(s.start, s.end + AFTER) for s in swaps]), 1),
        "token_gap_p50_ms_before": round(1000 * quantile(before, 0.5), 1),
        "token_gap_p50_ms_during": round(1000 * quantile(during, 0.5), 1),
        "token_gap_p99_ms_before": round(1000 * quantile(before, 0.99), 1),
        "token_gap_p99_ms_during": round(1000 * quantile(during, 0.99), 1),
        "token_gap_p999_ms_before": round(1000 * quantile(before, 0.999), 1),
        "token_gap_p999_ms_during": round(1000 * quantile(during, 0.999), 1),
    }


@dataclass
class Seen:
    """Tokens of the calls that the answer alone does not have."""

    of_another: int = 0
    """Of an adapter's call, from another adapter's answer."""
    of_none: int = 0
    """Of an adapter's call, from no adapter's answer: the base model's own, or those of an adapter that is half there."""
    adapters: set[str] = field(default_factory=set)
    """Those of whose calls such tokens came."""
    calls: int = 0
    """With such tokens."""
    rounded: int = 0
    """Tokens that the adapter gives alone, too, in batches of other sizes."""
    in_base_calls: int = 0
    """Of the base model's calls, from an adapter's answer. Its weights are random, so its own answer depends on rounding."""


def tokens_seen(
    calls: list[Call], reference: dict[str, list[int]], model: str, own: Mapping[str, set[int]] | None = None
) -> Seen:
    """Compare each call with the answers (``reference``) that the adapters gave alone. ``own``: see ``crowded``."""
    owners: dict[int, set[str]] = defaultdict(set)
    for name, ids in reference.items():
        for token in ids:
            owners[token].add(name)
    found = Seen()
    for call in calls:
        if call.adapter == model:
            found.in_base_calls += sum(bool(owners[t] - {model}) and model not in owners[t] for t in call.ids)
            continue
        others = [token for token, there in zip(call.ids, reference[call.adapter], strict=True) if token != there]
        wrong = [token for token in others if token not in (own or {}).get(call.adapter, ())]
        found.rounded += len(others) - len(wrong)
        if wrong:
            found.adapters.add(call.adapter)
            found.calls += 1
            another = sum(bool(owners[token] - {model, call.adapter}) for token in wrong)
            found.of_another += another
            found.of_none += len(wrong) - another
    return found


def alone(engine: str, folder: Path, name: str) -> list[int]:
    """The ids that an adapter gives on the quiet engine."""
    if "@" not in name:
        return one_call(engine, name, None).ids
    with loaded(engine, folder, name, f"alone-{name}"):
        return one_call(engine, f"alone-{name}", None).ids


def crowded(engine: str, folder: Path, name: str) -> set[int]:
    """All ids that an adapter gives where it is the only one in the engine, in many calls at once."""
    found: set[int] = set()
    fresh = f"crowd-{name}"
    with loaded(engine, folder, name, fresh):
        for size in CROWDS:
            with ThreadPoolExecutor(size) as pool:
                found.update(*pool.map(lambda _: one_call(engine, fresh, None).ids, range(size)))
    return found


@contextlib.contextmanager
def loaded(engine: str, folder: Path, name: str, fresh: str) -> Iterator[None]:
    """An adapter in the engine, under a name that was not used before."""
    ask("POST", f"{engine}/v1/load_lora_adapter", {"lora_name": fresh, "lora_path": str(folder / name)})
    yield
    ask("POST", f"{engine}/v1/unload_lora_adapter", {"lora_name": fresh})


def quantile(values: list[float], share: float) -> float:
    """The least value that this share of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else float("nan")
