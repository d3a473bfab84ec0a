from __future__ import annotations

import pytest
from tests.support.plane import SHARED, give, take


async def test_nobody_holds_what_is_not_shared(plane, engine):
    status, body = await take(plane)
    assert status == 409 and "engine.share" in body["error"]["fix"] and not engine.sleeping.modes
    assert (await give(plane))[1]["held"] is False
    assert (await plane.ask("POST", "/engine/hold", {"worker": "t"}, scopes=["judge"]))[0] == 403


@pytest.mark.parametrize("seconds", [0, 601, "1"])
async def test_nonsense_is_refused(make_plane, seconds):
    plane = await make_plane(**SHARED)
    assert (await take(plane, seconds=seconds))[0] == 422
