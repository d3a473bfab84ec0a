"""Each method's request, and its answer as a typed result, without a connection."""

from __future__ import annotations

import inspect
import io
from typing import Any

import httpx
import pyarrow as pa
import pytest

from slipstream import contract as c
from slipstream.client import requests
from slipstream.client.ask import Ask
from slipstream.errors import ApiError, Unavailable

BASE = httpx.Client(base_url="http://proxy")


def response(status: int = 200, content: bytes = b"", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(status, content=content, headers=named, request=httpx.Request("GET", "http://proxy/x"))


def test_every_method_says_its_type_and_makes_a_request() -> None:
    asks = {n: f for n, f in vars(requests).items() if inspect.isfunction(f) and f.__module__ == requests.__name__}
    public = {n: f for n, f in asks.items() if not n.startswith("_")}
    assert len(public) > 20
    for name, method in public.items():
        assert str(inspect.signature(method).return_annotation).startswith("Ask["), name


@pytest.mark.parametrize(
    ("ask", "method", "path"),
    [
        (requests.episode_page("e 1"), "GET", "/slipstream/v1/episodes/e%201?tokens=0&form=auto&calls_from=0"),
        (
            requests.episode_page("e", tokens=True, form="deltas", calls_from=3, calls=2),
            "GET",
            "/slipstream/v1/episodes/e?tokens=1&form=deltas&calls_from=3&calls=2",
        ),
        (requests.delete("a/b"), "DELETE", "/slipstream/v1/episodes/a%2Fb"),
        (requests.promote("m@2"), "POST", "/slipstream/v1/adapters/m@2/promote"),
        (requests.events(7), "GET", "/slipstream/v1/training/events?after=7"),
        (requests.export("sft", {"task": "t"}), "GET", "/slipstream/v1/export?task=t&format=sft"),
        (requests.cache_put("k", {"a": 1}), "PUT", "/slipstream/v1/judge/cache/k"),
    ],
)
def test_requests(ask: Ask[Any], method: str, path: str) -> None:
    sent = ask.request(BASE)
    assert (sent.method, sent.url.raw_path.decode()) == (method, path)


def test_no_content_is_none() -> None:
    assert requests.lease_groups(c.GroupLeaseIn(worker="w")).result(response(204)) is None
    assert requests.lease_batch(c.BatchLeaseIn(worker="w")).result(response(204)) is None


def test_a_batch_is_a_table_with_its_lease() -> None:
    sink = io.BytesIO()
    table = pa.table({"call": ["c1", "c2"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    lease = {"x_slipstream_batch": "b", "x_slipstream_lease": "l", "x_slipstream_until": "9.5"}
    ask = requests.lease_batch(c.BatchLeaseIn(worker="w"))
    batch = ask.result(response(200, sink.getvalue(), **lease))
    assert batch is not None
    assert (batch.id, batch.lease, batch.until, batch.table.num_rows) == ("b", "l", 9.5, 2)
    for content, headers in ((b"", lease), (sink.getvalue()[:40], lease), (sink.getvalue(), {})):
        with pytest.raises(Unavailable, match="broken batch"):
            ask.result(response(200, content, **headers))


def test_an_events_line_may_hold_what_other_readers_take_for_a_line_break() -> None:
    lines = '{"id": 1, "kind": "step", "data": {"a": "x\u2028y"}}\n\n{"id": 2, "kind": "gate"}\n'.encode()
    found = requests.events().result(response(200, lines))
    assert [(e.id, e.kind) for e in found] == [(1, "step"), (2, "gate")]
    assert found[0].data["a"] == "x\u2028y"
    with pytest.raises(ApiError, match="not a valid event"):
        requests.events().result(response(200, b"{}"))


def test_nothing_in_the_cache_is_none() -> None:
    ask = requests.cache_get("k")
    assert ask.result(response(404)) is None
    assert ask.result(response(200, b'{"key": "k", "value": {"a": 1}}')) == {"a": 1}


def test_parked_groups_come_as_a_list() -> None:
    assert requests.parked().result(response(200, b'{"groups": []}')) == []
