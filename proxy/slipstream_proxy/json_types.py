"""Types of JSON that a client or an engine wrote: what stands in it is checked where it is used."""

from __future__ import annotations

from typing import Any

Json = Any
"""Any JSON value."""

JsonObject = dict[str, Any]
JsonList = list[Any]
