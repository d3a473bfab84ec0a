"""The contract refuses what it does not know, and what no JSON can carry."""

from __future__ import annotations

import inspect
import math

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from slipstream import contract as c


def bodies() -> list[type[BaseModel]]:
    return [m for _, m in inspect.getmembers(c, inspect.isclass) if issubclass(m, c.Model) and m is not c.Model]


@pytest.mark.parametrize("body", bodies(), ids=lambda b: b.__name__)
def test_an_unknown_field_is_refused(body: type[BaseModel]) -> None:
    with pytest.raises(ValidationError) as e:
        body.model_validate({"surely_unknown": 1})
    assert ("surely_unknown",) in {x["loc"] for x in e.value.errors() if x["type"] == "extra_forbidden"}


@pytest.mark.parametrize("body", bodies(), ids=lambda b: b.__name__)
def test_it_has_a_json_schema(body: type[BaseModel]) -> None:
    assert body.model_json_schema()["type"] == "object"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(value: float) -> None:
    with pytest.raises(ValidationError):
        c.RewardIn(value=value)
    with pytest.raises(ValidationError):
        c.Score(episode="e", value=value)
    with pytest.raises(ValidationError):
        c.Score(episode="e", value=0.5, values=[0.5, value])
    with pytest.raises(ValidationError):
        c.BatchAck(lease="l", outcome="trained", advantages={"e": value})
    with pytest.raises(ValidationError):
        c.RewardIn.model_validate_json(f'{{"value": {value}}}'.replace("nan", "NaN").replace("inf", "Infinity"))


@pytest.mark.parametrize("text", ["a", "A-z_0.9", "x" * 128])
def test_tags_that_are_allowed(text: str) -> None:
    assert TypeAdapter(c.Tag).validate_python(text) == text
    assert TypeAdapter(c.Id).validate_python(text) == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a b", "a/b", "a~2", "a\n", "ä", "a:b", "../x y"])
def test_tags_that_are_not(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(c.Tag).validate_python(text)
    assert c.PLAIN_ID_PATTERN.fullmatch(text) is None


def test_stored_ids_hold_what_we_add() -> None:
    ids = TypeAdapter(c.Id)
    assert ids.validate_python("x" * 128 + "~2") == "x" * 128 + "~2"
    for bad in ("", "x" * 161, "a/b", "a\n", "a b"):
        with pytest.raises(ValidationError):
            ids.validate_python(bad)


def test_a_reward_needs_no_more_than_its_value() -> None:
    reward = c.RewardIn(value=1)
    assert (reward.name, reward.source, reward.call, reward.key) == ("reward", "agent", None, None)


def test_limits_of_leases() -> None:
    assert c.GroupLeaseIn(worker="w").names == ["judge"]
    for wrong in ({"names": []}, {"limit": 0}, {"limit": 65}, {"seconds": 0}, {"worker": "a b"}):
        with pytest.raises(ValidationError):
            c.GroupLeaseIn(**{"worker": "w", **wrong})
    for wrong in ({"min_groups": 0}, {"seconds": 0}, {"max_staleness": -1}, {"max_wait": -1}):
        with pytest.raises(ValidationError):
            c.BatchLeaseIn(**{"worker": "w", **wrong})
    with pytest.raises(ValidationError):
        c.BatchAck(lease="l", outcome="lost")


def test_defaults_are_not_shared() -> None:
    first, second = c.RewardIn(value=1), c.RewardIn(value=1)
    first.meta["x"] = 1
    assert second.meta == {}


def test_batch_columns_are_distinct() -> None:
    assert len(set(c.BATCH_COLUMNS)) == len(c.BATCH_COLUMNS)
    assert {"prompt_ids", "completion_ids", "logprobs", "reward", "temperature"} <= set(c.BATCH_COLUMNS)


@pytest.mark.parametrize(
    ("rank", "word"), [(0, "r = 0"), (True, "r = True"), ("8", "r = '8'"), (17, "above"), (12, ""), (16, "")]
)
def test_vllm_takes_any_rank_up_to_its_largest(rank: object, word: str) -> None:
    why = c.check_lora_rank(rank, 16)
    assert why is None if not word else word in str(why)
