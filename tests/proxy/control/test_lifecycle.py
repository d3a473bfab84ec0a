"""States of adapters over the API (engines: test_swapper.py; the gate: test_gatekeeper.py)."""

from __future__ import annotations

import shutil

from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.contract import Adapter


def adapter(n: int, state: str = "live", **more) -> Adapter:
    return Adapter(name=f"tiny@{n}", model="tiny", version=n, state=state, created=1.0, path=f"tiny@{n}", **more)


async def register(plane, n: int) -> dict:
    write_adapter(plane.config.adapters_dir / f"tiny@{n}", fill=n)
    return (await plane.ask("POST", "/adapters?wait=60", {"path": f"tiny@{n}"}))[1]


async def test_adapters_of_elsewhere_do_not_take_the_live_ones_place(plane):
    assert (await register(plane, 1))["state"] == "live"
    brought = {"adapters": [adapter(7).model_dump(mode="json")], "live": {}}
    assert (await plane.ask("POST", "/import/adapters", brought))[0] == 409
    brought["adapters"][0]["state"] = "retired"  # type: ignore[index]
    assert await plane.ask("POST", "/import/adapters", brought) == (200, {"adapters": 1})


async def test_promoting_an_adapter_whose_files_are_gone_says_so(plane):
    await register(plane, 1)
    await register(plane, 2)
    shutil.rmtree(plane.config.adapters_dir / "tiny@1")
    status, body = await plane.ask("POST", "/adapters/tiny@1/promote")
    assert status == 409
    assert "its files are gone from" in body["error"]["message"]
    assert str(plane.config.adapters_dir / "tiny@1") in body["error"]["message"]
    assert "put its folder back" in body["error"]["fix"]


async def test_what_was_refused_for_the_engines_sake_can_be_promoted(plane):
    """Older versions refused an adapter when the engine had no route to load it."""
    write_adapter(plane.config.adapters_dir / "tiny@1")
    write_adapter(plane.config.adapters_dir / "tiny@2")
    said = "the engine refuses it: load_lora_adapter answered"
    old = [
        adapter(1, "refused", reason=f'{said} 404: {{"detail":"Not Found"}}'),
        adapter(2, "refused", reason=f"{said} 400: rank"),
    ]
    brought = {"adapters": [a.model_dump(mode="json") for a in old], "live": {}}
    assert (await plane.ask("POST", "/import/adapters", brought))[0] == 200
    assert (await plane.ask("POST", "/adapters/tiny@2/promote"))[0] == 409
    assert (await plane.ask("POST", "/adapters/tiny@1/promote"))[0] == 200
    await until(lambda: plane.deps.live.value["models"]["tiny"]["live"] == "tiny@1")


async def test_an_accepted_adapter_stays_accepted_over_a_restart(plane):
    await register(plane, 1)
    await register(plane, 2)
    await plane.again()
    state = {
        a["name"]: (a["state"], a["accepted"], bool(a["sha256"]))
        for a in (await plane.ask("GET", "/adapters"))[1]["adapters"]
    }
    assert state == {"tiny@1": ("retired", True, True), "tiny@2": ("live", True, True)}
    assert (await plane.ask("POST", "/adapters/tiny@2/rollback"))[1]["state"] == "rolled_back"
    assert (await plane.ask("GET", "/adapters"))[1]["live"] == {"tiny": "tiny@1"}
