"""What comes in, and what is refused (over HTTP: routes/test_adapters.py)."""

from __future__ import annotations

import pytest
from tests.support.adapters import write_adapter

from slipstream.contract import AdapterIn
from slipstream_proxy.control.shared.problem import Problem


async def status(plane, path: str, **more) -> int:
    try:
        await plane.deps.registrar.register(AdapterIn(path=path, **more))
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
    assert plane.deps.registry.items["tiny@3"].state == "refused"
    assert plane.deps.registry.items["tiny@3"].reason


async def test_where_an_engine_may_have_it_from(plane):
    write_adapter(plane.config.adapters_dir / "tiny@1")
    one = await plane.deps.registrar.register(AdapterIn(path="tiny@1"))
    own = str(plane.config.adapters_dir / "tiny@1")
    registry, files = plane.deps.registry, plane.deps.registry.files
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
