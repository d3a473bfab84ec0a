"""The data plane's numbers: per call, over workers, and never more series than were meant."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from tests.support.prometheus import samples

from slipstream.config import Config
from slipstream_proxy.data.call.observers.metering import Metering
from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.observe.metrics import MAX_ADAPTER_SERIES, TAG_VALUES, WorkerMetrics, gather, read_parts


@dataclass
class Named:
    name: str = "chat"


@dataclass
class Pin:
    adapter: str = "tiny@1"


@dataclass
class Target:
    kind: str = "trained"


@dataclass
class Run:
    tags: dict[str, str] = field(default_factory=dict)


def in_parts(count: int) -> EngineReply:
    reply = EngineReply()
    for _ in range(count):
        reply.add(b"x")
    return reply


@dataclass
class Ended:
    """Of a call what its metrics are made of."""

    dialect: Named = field(default_factory=Named)
    pin: Pin | None = field(default_factory=Pin)
    target: Target = field(default_factory=Target)
    episode: Run | None = field(default_factory=Run)
    started: float = 100.0
    forwarded: float = 100.25
    first: float | None = 101.0
    replied: float = 105.0
    stream: bool = True
    reply: EngineReply = field(default_factory=lambda: in_parts(9))

    def __post_init__(self) -> None:
        self.asked = self.route = self
        self.reply.first, self.reply.replied, self.reply.stream = self.first, self.replied, self.stream


def end(metrics: WorkerMetrics, call: Ended, status: int, outcome: str) -> None:
    Metering(metrics).ended(call, status, outcome)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr("slipstream_proxy.data.call.observers.metering._now", lambda: 105.5)


def test_a_call(tmp_path, clock):
    metrics = WorkerMetrics(["team"])
    end(metrics, Ended(episode=Run({"team": "a"})), 200, "ok")
    found = samples(gather(tmp_path, metrics, "data0.json"))
    label = {"format": "chat", "outcome": "ok", "status": "2xx", "adapter": "tiny@1"}
    assert found["slipstream_calls_total"] == [(label, 1.0)]
    assert found["slipstream_tagged_calls_total"] == [
        ({"tag": "team", "value": "a", "status": "2xx", "adapter": "tiny@1"}, 1.0)
    ]
    sums = {n: v[0][1] for n, v in found.items() if n.endswith("_sum")}
    assert sums == {
        "slipstream_call_seconds_sum": 5.5, "slipstream_first_byte_seconds_sum": 1.0, "slipstream_chunk_seconds_sum": 0.5,
        "slipstream_upstream_seconds_sum": 4.75, "slipstream_overhead_seconds_sum": 0.75, "gen_ai_server_request_duration_seconds_sum": 5.5,
        "gen_ai_server_time_to_first_token_seconds_sum": 1.0, "gen_ai_server_time_per_output_token_seconds_sum": 0.5,
    }  # fmt: skip
    buckets = {s[0]["le"]: s[1] for s in found["slipstream_chunk_seconds_bucket"]}
    assert (buckets["0.25"], buckets["0.5"], buckets["+Inf"]) == (0.0, 1.0, 1.0)
    assert found["gen_ai_server_request_duration_seconds_count"] == [({"gen_ai_operation_name": "chat"}, 1.0)]


def test_calls_that_never_reached_an_engine_have_no_times_of_it(tmp_path, clock):
    metrics = WorkerMetrics()
    end(metrics, Ended(pin=None, episode=None, first=None, forwarded=0.0, replied=0.0), 401, "error")
    end(metrics, Ended(pin=None, target=Target("upstream")), 200, "ok")
    end(metrics, Ended(dialect=Named("completions"), pin=None, target=Target("base"), stream=False), 200, "ok")
    end(metrics, Ended(replied=0.0), 499, "aborted")
    found = samples(gather(tmp_path, metrics, "data0.json"))
    assert {s[0]["adapter"] for s in found["slipstream_calls_total"]} == {"base", "external", "tiny@1"}
    assert {s[0]["outcome"] for s in found["slipstream_calls_total"]} == {"ok", "error", "aborted"}
    assert found["slipstream_upstream_seconds_count"][0][1] == found["slipstream_overhead_seconds_count"][0][1] == 2
    assert sum(s[1] for s in found["slipstream_chunk_seconds_count"]) == 1
    names = {s[0]["gen_ai_operation_name"] for s in found["gen_ai_server_request_duration_seconds_count"]}
    assert names == {"chat", "text_completion"}


def test_adapters_and_tags_cannot_flood_it(tmp_path):
    metrics = WorkerMetrics(["name0"])
    for n in range(3 * MAX_ADAPTER_SERIES):
        end(metrics, Ended(pin=Pin(f"tiny@{n}"), episode=Run({f"name{n}": f"v{n}", "name0": f"v{n}"})), 200, "ok")
    found = samples(gather(tmp_path, metrics, "data0.json"))
    calls = {s[0]["adapter"]: s[1] for s in found["slipstream_calls_total"]}
    assert len(calls) == MAX_ADAPTER_SERIES + 1
    assert calls["other"] == 2 * MAX_ADAPTER_SERIES, "the oldest are added up, so that the sum stays what it is"
    assert calls[f"tiny@{3 * MAX_ADAPTER_SERIES - 1}"] == 1
    tags: dict[str, set[str]] = {}
    for labels, _ in found["slipstream_tagged_calls_total"]:
        tags.setdefault(labels["tag"], set()).add(labels["value"])
    assert set(tags) == {"name0"}
    assert len(tags["name0"]) == TAG_VALUES + 1 and "other" in tags["name0"]
    assert len({labels["adapter"] for labels, _ in found["slipstream_tagged_calls_total"]}) == MAX_ADAPTER_SERIES + 1
    name0 = sum(count for labels, count in found["slipstream_tagged_calls_total"] if labels["tag"] == "name0")
    assert name0 == 3 * MAX_ADAPTER_SERIES, "what the oldest adapters had is added up"


def test_only_the_tags_that_are_named(tmp_path):
    metrics = WorkerMetrics(["team"])
    end(metrics, Ended(episode=Run({"team": 'say "x"\\\n', "user": "alice"})), 200, "ok")
    end(metrics, Ended(episode=Run({"team": "v" * 100})), 200, "ok")
    text = gather(tmp_path, metrics, "data0.json")
    assert "alice" not in text
    assert [s[0]["value"] for s in samples(text)["slipstream_tagged_calls_total"]] == ["other", 'say "x"\\\n']


def test_no_tag_is_counted_by_unless_somebody_asks(tmp_path):
    metrics = WorkerMetrics(Config().proxy.metric_tags)
    end(metrics, Ended(episode=Run({"team": "x", "user": "alice"})), 200, "ok")
    text = gather(tmp_path, metrics, "data0.json")
    assert "alice" not in text
    assert not samples(text).get("slipstream_tagged_calls_total")


def test_workers_are_summed(tmp_path, clock):
    one, two = WorkerMetrics(), WorkerMetrics()
    for m, lag in ((one, 0.5), (two, 0.25)):
        end(m, Ended(), 200, "ok")
        m.add("slipstream_requests_refused_total", 'status="401"')
        m.set("slipstream_in_flight", 3)
        m.set("slipstream_event_loop_lag_seconds", lag)
    two.save(tmp_path / "data1.json")
    text = gather(tmp_path, one, "data0.json")
    found = samples(text)
    assert found["slipstream_calls_total"][0][1] == found["slipstream_call_seconds_count"][0][1] == 2
    assert found["slipstream_requests_refused_total"] == [({"status": "401"}, 2.0)]
    assert found["slipstream_in_flight"][0][1] == 6
    assert found["slipstream_event_loop_lag_seconds"][0][1] == 0.5, "the worst worker's"
    (tmp_path / "data2.json").write_text("{")
    assert gather(tmp_path, one, "data0.json") == text
    assert gather(tmp_path, two, "data1.json") == text, "whoever answers a scrape says the same"


def test_a_worker_that_is_started_again_counts_on(tmp_path, clock):
    first = WorkerMetrics()
    end(first, Ended(), 200, "ok")
    first.set("slipstream_in_flight", 7)
    first.save(tmp_path / "data0.json")
    again = WorkerMetrics()
    again.resume(tmp_path / "data0.json")
    end(again, Ended(), 200, "ok")
    found = samples(gather(tmp_path, again, "data0.json"))
    assert found["slipstream_calls_total"][0][1] == found["slipstream_call_seconds_count"][0][1] == 2
    assert found["slipstream_in_flight"][0][1] == 0, "what a dead worker was doing is over"
    fresh = WorkerMetrics()
    fresh.resume(tmp_path / "none.json")
    assert len(fresh.parts()) == 1


def test_on_a_full_disk_the_older_file_is_written_over(tmp_path, monkeypatch):
    metrics = WorkerMetrics()
    path = tmp_path / "data0.json"
    metrics.save(path)
    metrics.add("slipstream_capture_lost_total")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_text", full)
    metrics.save(path)
    (part,) = read_parts(path)
    assert ["slipstream_capture_lost_total", "", 1.0] in part["values"]
    metrics.save(tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
