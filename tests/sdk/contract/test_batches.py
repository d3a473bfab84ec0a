"""The trainer's side of the contract."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from slipstream.contract.batches import BATCH_COLUMNS, BatchAck, BatchLeaseIn
from slipstream_proxy.store.write.batches import BATCH_SCHEMA


def test_the_columns_are_those_of_the_table_that_the_store_leases() -> None:
    assert tuple(BATCH_SCHEMA.names) == BATCH_COLUMNS


@pytest.mark.parametrize(
    "wrong",
    [{"seconds": 0}, {"seconds": 86_401}, {"min_groups": 0}, {"max_groups": 0}, {"max_wait": -1}, {"worker": "a b"}],
)
def test_what_a_trainer_cannot_ask_for(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        BatchLeaseIn.model_validate({"worker": "w", **wrong})


def test_an_ack_says_one_of_three_things() -> None:
    for outcome in ("trained", "skipped", "released"):
        assert BatchAck.model_validate({"lease": "l", "outcome": outcome}).advantages == {}
    for wrong in ({"outcome": "lost"}, {"outcome": "trained", "advantages": {"-/e": math.nan}}):
        with pytest.raises(ValidationError):
            BatchAck.model_validate({"lease": "l", **wrong})
