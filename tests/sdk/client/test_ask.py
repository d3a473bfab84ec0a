"""One question: what it sends, and how an answer is read."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from slipstream.client.ask import Ask, check, model, nothing, part, query
from slipstream.contract import DoneIn, RewardAck, RewardIn
from slipstream.errors import ApiError

BASE = httpx.Client(base_url="http://proxy")


def answered(status: int, body: object = None, text: str = "") -> httpx.Response:
    request = httpx.Request("GET", "http://proxy/slipstream/v1/x")
    content = text if body is None else json.dumps(body)
    return httpx.Response(status, content=content.encode(), request=request)


def test_a_body_is_json_whether_it_is_a_model_or_a_dictionary() -> None:
    sent = Ask("POST", "/x", nothing, RewardIn(value=0.5)).request(BASE)
    assert (sent.method, sent.url.path) == ("POST", "/slipstream/v1/x")
    assert sent.headers["content-type"] == "application/json"
    assert json.loads(sent.content)["value"] == 0.5
    plain = Ask("POST", "/x", nothing, {"worker": "w"}).request(BASE)
    assert plain.headers["content-type"] == "application/json"
    assert json.loads(plain.content) == {"worker": "w"}
    assert Ask("GET", "/x", nothing, params={"a": 1}).request(BASE).url.query == b"a=1"


def test_a_model_sends_every_field_that_has_a_value() -> None:
    sent = Ask("POST", "/x", nothing, DoneIn()).request(BASE)
    assert DoneIn.model_validate_json(sent.content) == DoneIn()


def test_404_is_the_default_where_there_is_one() -> None:
    assert Ask("GET", "/x", nothing, default=lambda: None).result(answered(404)) is None
    with pytest.raises(ApiError) as e:
        Ask("GET", "/x", nothing).result(answered(404, {"error": {"type": "not_found", "message": "no x"}}))
    assert (e.value.status, str(e.value)) == (404, "no x")


def test_a_refusal_of_another_shape_is_quoted_in_part() -> None:
    check(answered(204))
    with pytest.raises(ApiError) as e:
        check(answered(502, text="y" * 9000))
    assert "502 from http://proxy" in str(e.value)
    assert str(e.value).count("y") <= 520


def test_an_answer_that_does_not_fit_names_the_model() -> None:
    assert model(RewardAck)(answered(200, {"stored": True, "known": False})) == RewardAck(stored=True, known=False)
    with pytest.raises(ApiError, match="not a valid RewardAck"):
        model(RewardAck)(answered(200, {"stored": "perhaps"}))


@pytest.mark.parametrize("said", ["[" * 260 + "]" * 260, '"\\ud83d"'], ids=["deep", "half a surrogate pair"])
def test_an_answer_may_hold_whatever_an_agent_sent(said: str) -> None:
    class Transcript(BaseModel):
        messages: list[dict[str, Any]]

    read = model(Transcript)(answered(200, text='{"messages": [{"content": %s}]}' % said))
    assert read.messages == [{"content": json.loads(said)}]


@pytest.mark.parametrize(
    ("given", "quoted"),
    [("inbox@12", "inbox@12"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a?b#c", "a%3Fb%23c"), ("ä ~", "%C3%A4%20~")],
)
def test_an_id_is_one_part_of_a_path(given: str, quoted: str) -> None:
    assert part(given) == quoted


def test_filters_become_parameters() -> None:
    given = {"task": "t", "split": None, "reward_min": 0.0, "tags": {"user": "x", "n": "1"}}
    assert query(given) == {"task": "t", "reward_min": 0.0, "tag.user": "x", "tag.n": "1"}
    assert query({"tags": None}) == {}
