"""A data folder in which every feature was used: what a later release has to read.

``python -m tests.support.older_folder OUT.tar.gz`` makes one with the code of this tree, beside what stands in it as
JSON. ``tests/data/older`` has those of earlier commits.
"""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.support.fake_engine import LoraEngine
from tests.support.leases import first_lease, group_of
from tests.support.plane import Plane, make_config, register, until

SECTIONS: dict[str, Any] = {
    "groups": {"size": 2},
    "gate": {"holdout": 0.0},
    "models": {"other-*": {"upstream": "http://127.0.0.1:9/v1"}},
}
READ = ("episodes", "groups", "adapters", "cases", "audit", "annotations", "labels/queue", "status", "cost", "tasks")


async def use_everything(plane: Plane) -> None:
    """Calls of several kinds, rewards, groups, a trained batch, versions, cases, labels, notes, and a forgotten run."""
    await register(plane, 1)
    await group_of(plane, "mail", [1.0, 0.0], tags={"user": "u1"})
    batch = await first_lease(plane)
    headers = {name: batch.headers[f"x-slipstream-{name}"] for name in ("batch", "lease")}
    ack = {"lease": headers["lease"], "outcome": "trained", "step": 1}
    assert (await plane.ask("POST", f"/batches/{headers['batch']}/ack", ack))[0] == 200
    await register(plane, 2, step=1, parent="tiny@1", batches=[headers["batch"]])
    await plane.call("turns", text="first", tags={"env": "prod", "user": "u2"})
    await plane.call("turns", text="second", kind="title")
    await plane.call("turns", text="broken", status=500, outcome="error")
    await plane.ask("POST", "/episodes/turns/rewards", {"value": 0.25, "name": "style", "reason": "too short"})
    await plane.ask("POST", "/episodes/turns/rewards", {"value": 1.0, "source": "human", "meta": {"edited": "better"}})
    await plane.ask("POST", "/episodes/turns/feedback", {"text": "be brief"})
    await plane.ask("POST", "/episodes/turns/comments", {"text": "looked at"})
    await plane.ask("POST", "/episodes/turns/done", {})
    await plane.call("gone", text="to be forgotten")
    await plane.seen("gone")
    await plane.ask("POST", "/cases/regression", {"episodes": ["mail-0", "mail-1", "turns"]})
    assert (await plane.ask("DELETE", "/episodes/gone"))[0] in (200, 202, 204)
    await plane.ask("POST", "/annotations", {"text": "a note"})
    await plane.ask("POST", "/training/pause", {"reason": "for the night"})
    await plane.ask("POST", "/training/resume", {})
    await plane.ask("POST", "/adapters/tiny@1/promote", {"reason": "by hand"})
    await plane.ask("POST", "/training/events", {"kind": "step", "data": {"step": 1, "loss": 0.5, "reward": 0.5}})
    await plane.ask("PUT", "/judge/cache/vote-1", {"key": "vote-1", "value": {"scores": [1]}})
    imported = {"id": "imported", "task": "log", "reward": 0.5, "messages": [
        {"role": "user", "content": "What is on Monday?"}, {"role": "assistant", "content": "Nothing."}]}  # fmt: skip
    assert (await plane.ask("POST", "/import", imported))[0] == 200
    await until(lambda: _ended(plane, "imported"))


async def _ended(plane: Plane, episode: str) -> bool:
    status, body = await plane.ask("GET", f"/episodes/{episode}")
    return status == 200 and body["state"] == "done"


async def facts(plane: Plane) -> dict[str, Any]:
    """What stands in the folder, as the API tells it."""
    _, listed = await plane.ask("GET", "/episodes?limit=100")
    found: dict[str, Any] = {"episodes": {}}
    for episode in listed["episodes"]:
        _, whole = await plane.ask("GET", f"/episodes/{episode['id']}?tokens=1")
        calls = [
            [c["outcome"], c["prompt_ids"], c["completion_ids"], c["logprobs"], c["reply"]] for c in whole["call_list"]
        ]
        rewards = sorted([r["name"], r["source"], r["value"]] for r in whole["rewards"])
        found["episodes"][episode["id"]] = [episode["reward"], episode["adapter"], whole["tags"], calls, rewards]
    _, adapters = await plane.ask("GET", "/adapters")
    found["adapters"] = {a["name"]: [a["state"], a["parent"]] for a in adapters["adapters"]}
    found["live"] = adapters["live"]
    _, groups = await plane.ask("GET", "/groups")
    found["groups"] = sorted([g["task"], g["state"]] for g in groups["groups"])
    _, cases = await plane.ask("GET", "/cases/regression")
    found["cases"] = sorted(c["episode"] for c in cases["cases"])
    _, audit = await plane.ask("GET", "/audit")
    found["audit"] = sorted(e["action"] for e in audit["entries"])
    _, notes = await plane.ask("GET", "/annotations")
    found["notes"] = sorted(n["text"] for n in notes["annotations"] if n["kind"] == "annotation")
    _, status = await plane.ask("GET", "/status")
    found["steps"], found["calls"] = status["steps"], status["calls"]
    return found


async def make(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        engine = await LoraEngine().start()
        plane = await Plane(make_config(Path(folder), engine, **SECTIONS), engine).start()
        await use_everything(plane)
        told = await facts(plane)
        await plane.stop()
        await engine.stop()
        with tarfile.open(out, "w:gz") as tar:
            tar.add(Path(folder) / "data", "data")
            body = json.dumps(told, indent=1, sort_keys=True).encode()
            info = tarfile.TarInfo("facts.json")
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
