"""Parts of the data plane beside the libraries that could stand in their place: microseconds of one core for one call.

    python benchmarks/proxy/parts.py [--rounds N]

- A request's head: ``wire/http1.py`` and ``wire/request.py`` beside httptools, which calls back for each field.
- The ids of a prompt of 8,000: a first call's remembered, and a later call's put back into its reply (``episode/prompts.py``).
- A call's metrics: ``observe/metrics.py`` beside prometheus-client in multiprocess mode, which several workers need.

Compile first (``python -m slipstream_proxy.process.compiled``), as for production. The last line is one JSON object with the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from types import SimpleNamespace

os.environ["PROMETHEUS_MULTIPROC_DIR"] = tempfile.mkdtemp()

from slipstream_proxy.process import compiled

COMPILED = compiled.use()

import httptools
import prometheus_client

from slipstream_proxy.data.episode.prompts import PromptMemory
from slipstream_proxy.data.episode.running import RunningEpisode
from slipstream_proxy.data.observe.exposition import SECONDS_BUCKETS
from slipstream_proxy.data.observe.metrics import WorkerMetrics
from slipstream_proxy.data.wire.http1 import RepeatedHead
from slipstream_proxy.data.wire.identity import Tags
from slipstream_proxy.data.wire.request import parse_fields
from slipstream_vllm import packing

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:8000\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    b"Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 2.8.1\r\nX-Stainless-Lang: python\r\n"
    b"X-Stainless-Package-Version: 2.8.1\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n"
    b"Authorization: Bearer sk-slip-0123456789abcdef\r\nX-Stainless-Async: false\r\nx-stainless-retry-count: 0\r\n"
    b"x-slipstream-episode: episode-17\r\nContent-Length: 1000\r\n\r\n"
)


class Fields:
    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value


def library_head() -> None:
    httptools.HttpRequestParser(Fields()).feed_data(HEAD)


START = HEAD.find(b"\r\n") + 2
KNOWN = RepeatedHead(HEAD, None)


def first_head() -> None:
    parse_fields(HEAD[START:-2])


def next_head() -> None:
    assert KNOWN.matches(HEAD)


LABELS = ["format", "outcome", "status", "adapter"]
CALLS = prometheus_client.Counter("calls", "Calls", LABELS)
TIMES = [prometheus_client.Histogram(f"time_{i}", "Time", ["format"], buckets=SECONDS_BUCKETS) for i in range(2)]
MORE = [prometheus_client.Histogram(f"more_{i}", "Time", buckets=SECONDS_BUCKETS) for i in range(2)]


def library_metrics() -> None:
    CALLS.labels("chat", "ok", "2xx", "tiny@1").inc()
    for histogram in TIMES:
        histogram.labels("chat").observe(0.01)
    for histogram in MORE:
        histogram.observe(0.01)


OURS = WorkerMetrics()
NOW = time.time()
ENDED: object = SimpleNamespace(
    dialect=SimpleNamespace(name="chat"),
    pin=SimpleNamespace(adapter="tiny@1"),
    target=SimpleNamespace(kind="trained"),
    episode=SimpleNamespace(tags={}),
    started=NOW,
    forwarded=NOW,
    first=NOW,
    replied=NOW,
    stream=False,
    parts=[b""],
)


def our_metrics() -> None:
    OURS.ended(ENDED, 200, "ok")


EPISODE = RunningEpisode(("-", "a"), 1, Tags(), 0.0)
PROMPTS, IDS = PromptMemory(), list(range(8_000))


def reply(ids: list[int], known: list[packing.Known]) -> bytes:
    """As the plugin sends it, with 150 sampled tokens."""
    packed = packing.pack([(0, ids)], [(0, ids[:150], [-1.0] * 150)], known)
    said = {"choices": [{"message": {"content": "x" * 600}}], packing.PACKED_FIELD: packed}
    return json.dumps(said, separators=(",", ":")).encode()


FIRST = reply(IDS, [])
PROMPTS.whole(EPISODE, [], FIRST, stream=False)
KNOWN_PROMPTS = PROMPTS.of(EPISODE)
LATER = reply(IDS + IDS[:300], [(p.count, p.digest) for p in KNOWN_PROMPTS])


def remember_prompt() -> None:
    PROMPTS.whole(EPISODE, [], FIRST, stream=False)


def put_back_prompt() -> None:
    PROMPTS.whole(EPISODE, KNOWN_PROMPTS, LATER, stream=False)


def microseconds(do: Callable[[], None], count: int = 20_000) -> float:
    start = time.process_time()
    for _ in range(count):
        do()
    return (time.process_time() - start) / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    cases = {
        "head_httptools_us": library_head,
        "head_ours_us": first_head,
        "head_ours_repeated_us": next_head,
        "prompt_remembered_us": remember_prompt,
        "prompt_put_back_us": put_back_prompt,
        "metrics_prometheus_client_us": library_metrics,
        "metrics_ours_us": our_metrics,
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(parser.parse_args().rounds):
        for name, do in cases.items():
            found[name].append(microseconds(do))
    print(json.dumps({"compiled": COMPILED, **{name: round(statistics.median(v), 2) for name, v in found.items()}}))


if __name__ == "__main__":
    main()
