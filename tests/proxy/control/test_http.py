from __future__ import annotations

import json

import pytest
from pydantic import Field, ValidationError

from slipstream.contract import Model
from slipstream_proxy.control.api.http import (
    MAX_JSON_INTEGER,
    Caller,
    Query,
    _parsed,
    _within,
    explain,
    json_of,
    problem_response,
)
from slipstream_proxy.control.shared.problem import Problem


class Body(Model):
    name: str = "x"
    count: int = 0
    what: list[object] = Field(default_factory=list)


def refused(raw: bytes) -> Problem:
    with pytest.raises(Problem) as e:
        _parsed(Body, raw)
    return e.value


def test_bodies_are_taken_strictly():
    assert _parsed(Body, b'{"count": 3.0}') == Body(count=3)  # an integer, in JSON Schema
    for raw in (b'{"count": "3"}', b'{"count": true}', b'{"count": 3.5}', b'{"name": 1}'):
        assert refused(raw).status == 422
    assert (refused(b"{").status, refused(b"[]").status) == (400, 422)
    p = refused(b'{"nmae": "y"}')
    assert (p.status, p.field, p.fix) == (422, "body.nmae", "did you mean name?")


def test_half_a_surrogate_pair_in_a_transcript_is_taken():
    assert _parsed(Body, b'{"what": ["\\ud800", 1]}').what == ["\ud800", 1]  # type: ignore[attr-defined]
    for raw in (b'{"what": ["\\ud800", NaN]}', b'{"what": ["\\ud800"'):
        assert refused(raw).status == 400
    assert refused(b'{"what": ["\\ud800"], "surprise": 1}').field == "body.surprise"
    assert json.loads(json_of(Body(what=["\ud800"])))["what"] == ["\ud800"]


def test_the_first_mistake_is_named_and_the_others_counted():
    with pytest.raises(ValidationError) as e:
        Body.model_validate({"name": 1, "count": "x"})
    assert "(and 1 more)" in explain(e.value, "body", Body).message


def test_numbers_beyond_what_is_stored_mean_as_many_as_there_are():
    assert _within(Body(count=10**30)).count == MAX_JSON_INTEGER  # type: ignore[attr-defined]
    assert _within(Body(count=-(10**30))).count == -MAX_JSON_INTEGER  # type: ignore[attr-defined]
    assert _within(Body(count=5)).count == 5  # type: ignore[attr-defined]


def test_an_unknown_parameter_is_an_error():
    with pytest.raises(ValidationError):
        Query.model_validate({"x": "1"})


def test_who_may():
    assert Caller("k", frozenset({"admin"})).may(("trainer",))
    assert Caller("k", frozenset({"judge"})).may(("trainer", "judge"))
    assert not Caller("k", frozenset({"inference"})).may(("trainer",))


def test_errors_have_one_shape():
    r = problem_response(Problem(409, "no", field="body.x", fix="do so", headers={"retry-after": "1"}))
    assert (r.status, r.headers["retry-after"]) == (409, "1")
    assert json.loads(r.body) == {"error": {"type": "conflict", "message": "no", "field": "body.x", "fix": "do so"}}  # type: ignore[arg-type]
    assert json.loads(problem_response(Problem(418, "no")).body)["error"]["type"] == "error"  # type: ignore[arg-type]
