"""Types of strangers' JSON."""

from __future__ import annotations

import json

from slipstream_proxy.json_types import JsonList, JsonObject


def test_they_are_what_the_reader_gives():
    assert isinstance(json.loads("{}"), JsonObject.__origin__) and isinstance(json.loads("[]"), JsonList.__origin__)  # type: ignore[attr-defined]
