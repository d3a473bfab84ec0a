"""Groups, batches and tokens as the page and the client read them."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from slipstream.contract.groups import BatchDetail, CallTokens, GroupDetail, GroupPage, GroupSummary, Token

GROUP = {
    "id": "g", "kind": "task", "key": "-", "task": "t", "model": "m", "split": "train", "state": "ready", "episodes": 2, "created": 1.0,
}  # fmt: skip


def test_a_group_without_rewards_has_no_mean() -> None:
    group = GroupSummary.model_validate(GROUP)
    assert (group.rewarded, group.mean, group.low, group.high) == (0, None, None, None)
    assert GroupPage(groups=[group]).next is None


def test_a_detail_is_a_summary_with_its_runs() -> None:
    detail = GroupDetail.model_validate({**GROUP, "runs": [], "batches": []})
    assert GroupSummary.model_validate(detail.model_dump(include=set(GroupSummary.model_fields))).id == "g"
    with pytest.raises(ValidationError, match="runs"):
        GroupDetail.model_validate(GROUP)


def test_a_token_says_why_it_is_not_trained_on() -> None:
    masked = Token(id=1, trained=False, masked="prompt")
    assert (masked.text, masked.logprob, masked.gap) == (None, None, None)
    with pytest.raises(ValidationError, match="trained"):
        Token.model_validate({"id": 1})


def test_tokens_and_batches_travel_as_json() -> None:
    tokens = CallTokens(
        call="c", episode="e", key="-", adapter=None, trainable=True, prompt=[], choices=[[Token(id=1, trained=True)]]
    )
    assert CallTokens.model_validate_json(tokens.model_dump_json()) == tokens
    batch = BatchDetail(id="b", model="m", state="trained", created=1.0, groups=["g"], episodes=[])
    assert BatchDetail.model_validate_json(batch.model_dump_json()) == batch
