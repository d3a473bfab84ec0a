"""What comes in, and what is refused (over HTTP: routes/test_adapters.py)."""

from __future__ import annotations

import shutil

import pytest
from tests.support.adapters import write_adapter
from tests.support.plane import until

from slipstream.contract import Adapter, AdapterIn
from slipstream_proxy.control.shared.problem import Problem


async def status(plane, path: str, **more) -> int:
    try:
        await plane.deps.rollout.registrar.register(AdapterIn(path=path, **more))
    except Problem as e:
        return e.status
    return 201


async def test_names_and_files(plane, tmp_path):
    folder = plane.config.adapters_dir
    write_adapter(folder / "tiny@1")
    (folder / "tiny@2").symlink_to(folder / "tiny@1")
    write_adapter(folder / "tiny@3", rank=1024)
    write_adapter(folder / "other@1")
    assert [await status(plane, p) for p in ("tiny@1", "tiny@2", "tiny@3", "other@1", "tiny", "../tiny@1", "tiny@9")] == [201, 404, 422, 404, 422, 422, 404]  # fmt: skip
    assert await status(plane, "tiny@1", model="other") == 404
    assert plane.deps.rollout.registry.items["tiny@3"].state == "refused"
    assert plane.deps.rollout.registry.items["tiny@3"].reason


async def test_an_adapter_is_told_from_the_same_weights_at_another_scale(plane):
    """Where a trainer asks again, and where a list comes with its files. One of a store that was written before
    scales were noted is compared by its weights.
    """
    folder = plane.config.adapters_dir / "tiny@1"
    write_adapter(folder, lora_alpha=16)
    assert [await status(plane, "tiny@1") for _ in range(2)] == [201, 201]
    shutil.rmtree(folder)
    write_adapter(folder, lora_alpha=32)
    assert await status(plane, "tiny@1") == 409
    known = plane.deps.rollout.registry.items["tiny@1"]
    older = known.model_copy(update={"scales_sha256": None})
    await plane.deps.rollout.journal.change([older])
    assert await status(plane, "tiny@1") == 201, "no alarm after an upgrade"

    write_adapter(plane.config.adapters_dir / "tiny@2", lora_alpha=16)
    marks = {"sha256": known.sha256, "scales_sha256": "0" * 64}
    code, body = await bring(plane, entry(2, **marks))
    assert code == 409 and "other scales (lora_alpha" in body["error"]["message"]
    assert (await bring(plane, entry(2, **marks | {"scales_sha256": None})))[0] == 200
    assert plane.deps.rollout.registry.items["tiny@2"].scales_sha256 == known.scales_sha256


async def test_where_an_engine_may_have_it_from(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    one = await plane.deps.rollout.registrar.register(AdapterIn(path="tiny@1"))
    own = str(plane.config.adapters_dir / "tiny@1")
    registry, files = plane.deps.rollout.registry, plane.deps.rollout.registry.files
    assert (files.engine_paths(one), files.path_for_engine(one)) == ((own,), own)
    elsewhere = one.model_copy(update={"name": "tiny@2", "path": "tiny@2", "engine_path": "/mnt/tiny@2"})
    assert files.path_for_engine(elsewhere) == "/mnt/tiny@2"  # no files here: where the proxy that has them said
    assert len(files.engine_paths(elsewhere)) == 2 and files.exist(elsewhere)
    with pytest.raises(Problem):
        registry.find("tiny@9")


async def test_no_version_ends_the_numbers(plane):
    for n in (1, 999_999_999):
        write_adapter(plane.config.adapters_dir / f"tiny@{n}")
    assert [await status(plane, f"tiny@{n}") for n in (999_999_999, 1)] == [422, 201]
    brought = {
        "name": "tiny@999999998",
        "model": "tiny",
        "version": 999_999_998,
        "state": "retired",
        "created": 1.0,
        "path": "x",
    }
    code, body = await plane.ask("POST", "/import/adapters", {"adapters": [brought], "live": {}})
    assert (code, body["error"]["field"]) == (422, "body.adapters")


def entry(n: int, state: str = "rolled_back", **more) -> dict:
    at = {"name": f"tiny@{n}", "model": "tiny", "version": n, "state": state, "created": float(n)}
    return {**at, "path": f"tiny@{n}", **more}


async def bring(plane, *entries: dict) -> tuple[int, dict]:
    return await plane.ask("POST", "/import/adapters", {"adapters": list(entries), "live": {}})


async def test_a_list_of_adapters_names_no_other_folders(make_plane, tmp_path):
    """Neither what deletes files nor the engine goes where a list points to."""
    plane = await make_plane(adapters={"keep": 1})
    plane.deps.rollout.swapper.grace = 0.05
    apart = [tmp_path / "apart" / str(n) for n in range(4)]
    for folder in apart:
        write_adapter(folder, fill=1)
    paths = [str(apart[0]), "../../apart/1", "x/../../../apart/2"]
    entries = [entry(n, path=path) for n, path in enumerate(paths, 1)]
    live = entry(9, "live", accepted=True, path=str(apart[3]), engine_path=str(apart[3]))
    assert (await bring(plane, *entries, live))[0] == 200
    shown = (await plane.ask("GET", "/adapters"))[1]["adapters"]
    assert {a["name"]: a["path"] for a in shown} == {a["name"]: a["name"] for a in shown}
    assert [a["engine_path"] for a in shown] == [None] * 4
    await plane.deps.rollout.swapper.tick()
    plane.deps.rollout.swapper.forget_files(10**12)
    await plane.again()
    plane.deps.rollout.swapper.forget_files(10**12)
    assert all((folder / "adapter_model.safetensors").is_file() for folder in apart)
    assert plane.deps.rollout.registry.files.path_for_engine(plane.deps.rollout.registry.items["tiny@9"]).endswith(
        "data/adapters/tiny@9"
    )


async def test_files_that_come_with_a_list_are_checked(plane, tmp_path):
    root = plane.config.adapters_dir
    write_adapter(root / "tiny@1", rank=1024)
    status, body = await bring(plane, entry(1, "live", accepted=True))
    assert (status, body["error"]["field"]) == (422, "body.adapters") and "rank 1024" in body["error"]["message"]
    (root / "tiny@2").symlink_to(write_adapter(tmp_path / "apart"))
    status, body = await bring(plane, entry(2, "live", accepted=True))
    assert status == 422 and "is a link" in body["error"]["message"]
    write_adapter(root / "tiny@3")
    status, body = await bring(plane, entry(3, "live", accepted=True, sha256="0" * 64))
    assert status == 409 and "other weights" in body["error"]["message"]
    assert not plane.deps.rollout.registry.items and not plane.engine.adapters
    assert (await bring(plane, entry(3, "live", accepted=True)))[0] == 200
    await until(lambda: "tiny@3" in plane.engine.adapters)


@pytest.mark.parametrize("kind", ["bad", "link"])
async def test_files_that_no_import_saw_are_checked_before_an_engine_loads_them(plane, tmp_path, kind):
    place = plane.config.adapters_dir / "tiny@1"
    if kind == "bad":
        write_adapter(place, use_dora=True)
    else:
        place.symlink_to(write_adapter(tmp_path / "apart"))
    known = None if kind == "bad" else "0" * 64
    await plane.deps.rollout.journal.change([Adapter.model_validate(entry(1, "loading", sha256=known))])
    found = await until(lambda: (a := plane.deps.rollout.registry.items["tiny@1"]).state == "refused" and a)
    assert ("DoRA" if kind == "bad" else "is a link") in found.reason
    assert ("load", "tiny@1") not in plane.engine.calls
    plane.deps.rollout.swapper.forget_files(10**12)
    assert (tmp_path / "apart").exists() or kind == "bad"


async def test_links_that_go_round_in_circles_are_refused_in_words(plane):
    root = plane.config.adapters_dir
    (root / "tiny@1").symlink_to(root / "tiny@1")
    write_adapter(root / "tiny@2")
    for name, to in (("a", "b"), ("b", "a")):
        (root / "tiny@2" / name).symlink_to(root / "tiny@2" / to)
    write_adapter(root / "tiny@3")
    (root / "tiny@3" / "gone").symlink_to(root / "nothing")
    for n in (1, 2, 3):
        status, body = await plane.ask("POST", "/adapters", {"path": f"tiny@{n}"})
        assert (status, body["error"]["field"]) == (404 if n == 1 else 422, "body.path"), n
        assert n == 1 or "is a link" in body["error"]["message"]
    status, body = await bring(plane, entry(1))
    assert status == 422 and "is a link" in body["error"]["message"]
