"""Our own exports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipstream_chat.report import Refused
from slipstream_imports.forms.datasets.slipstream import exported, is_one


def test_rows_of_parquet_are_as_json_lines_have_them():
    row: dict[str, Any] = {"id": "e", "call_list": [{"id": "c"}]}
    assert is_one(row) and exported(row) is row
    names = ("tags", "rewards", "lineage", "batches", "trained_adapters")
    flat: dict[str, Any] = {
        "call_list": json.dumps([{"id": "c"}]),
        "prompt_ids": [[1]],
        "completion_ids": [[[2]]],
        "logprobs": [[[0.5]]],
        **dict.fromkeys(names, "[]"),
    }
    assert exported(flat)["call_list"] == [{"id": "c", "prompt_ids": [1], "completion_ids": [[2]], "logprobs": [[0.5]]}]
    with pytest.raises(Refused, match="prompt_ids"):
        exported({**flat, "prompt_ids": []})
