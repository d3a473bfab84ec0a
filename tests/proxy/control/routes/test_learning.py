from __future__ import annotations

import pytest
from tests.support.plane import until


async def test_points_with_their_errors(plane):
    for i, value in enumerate((0.0, 1.0, 1.0, 1.0)):
        await plane.call(f"e{i}", task=f"t{i % 2}", adapter="tiny", tags={"lang": "de"})
        await plane.ask("POST", f"/episodes/e{i}/rewards", {"value": value})

    async def points():
        _, body = await plane.ask("GET", "/learning")
        return body if body["points"] and body["points"][0]["n"] == 4 else None

    (point,) = (await until(points))["points"]
    assert (point["adapter"], point["version"], point["mean"], point["success"]) == ("tiny", 0, 0.75, 0.75)
    assert point["se"] == pytest.approx(0.25)
    span = {"by": "time", "bucket": "1e9"}  # a shorter one may end between two of the calls
    _, body = await plane.ask("GET", "/learning", params={"each": "task", **span})
    assert [(p["series"], p["mean"]) for p in body["points"]] == [("t0", 0.5), ("t1", 1.0)]
    _, body = await plane.ask("GET", "/learning", params={"each": "tag.lang", "tag": "lang:de"})
    assert [(p["series"], p["n"]) for p in body["points"]] == [("de", 4)]
    _, body = await plane.ask("GET", "/learning", key="other", scopes=["inference"])
    assert body["points"] == []
    for params, field in (
        ({"by": "x"}, "by"),
        ({"each": "x"}, "each"),
        ({"tag": "x"}, "tag"),
        ({"bucket": "0"}, "bucket"),
    ):
        status, body = await plane.ask("GET", "/learning", params=params)
        assert (status, body["error"]["field"]) == (422, f"query.{field}")
