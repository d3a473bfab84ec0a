"""A worker's parts."""

from __future__ import annotations

import pytest

from slipstream.config import Config
from slipstream_proxy.data.plane import Plane


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_it_opens_it_closes(tmp_path, workers):
    config = Config(data_dir=str(tmp_path), engine={"name": "tiny"}, proxy={"workers": workers})
    plane = Plane(config)
    assert (plane.shared is not None) == (workers > 1)
    assert plane.services.default_model == "tiny" and not plane.services.in_flight
    await plane.close()
