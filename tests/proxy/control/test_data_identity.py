"""A copied data folder, and a store that is older than the spool: nothing goes unsaid, and what is forgotten stays so."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import duckdb
import pytest
from tests.support import process, slipstream
from tests.support.plane import until
from tests.support.postgres import fresh_schema, postgres  # noqa: F401 - a fixture
from tests.support.records import rules

from slipstream.config import Config
from slipstream.errors import StartError
from slipstream_proxy.control.storage import identity
from slipstream_proxy.log.records import Mutation, mark_of
from slipstream_proxy.store import open_store
from slipstream_proxy.store.tables.tallies import set_meta
from slipstream_proxy.store.values import Position
from slipstream_proxy.store.write.claims import InstanceClaim, TwinError
from slipstream_proxy.store.write.deletion import ALIVE_PREFIX


def done(name: str) -> Mutation:
    return Mutation(name, "done", time.time(), {"key": "k", "episode": name})


def long_ago(store) -> None:
    """The proxy was alive two minutes ago."""
    with store.db.write() as tx:
        set_meta(tx, ALIVE_PREFIX + store.instance, repr(time.time() - 120))


@pytest.fixture
def folders(tmp_path: Path, postgres: str):  # noqa: F811
    """A data folder in use, its copy, and the database that they share."""
    url = fresh_schema(postgres)
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir()
    store = open_store(url, rules(), instance=identity.instance_of(first))
    identity.claim(first, store)
    store.ingest([done("a")], {"data0": Position(3, 100)})
    shutil.copytree(first, copy)
    twin = open_store(url, rules(), instance=identity.instance_of(copy))
    yield url, first, copy, store, twin
    for one in (store, twin):
        one.close()


def config_of(folder: Path, url: str) -> Config:
    return Config.model_validate({"data_dir": str(folder), "store": {"url": url}})


def test_a_copy_of_a_folder_in_use_does_not_start_and_says_how_it_becomes_its_own(folders):
    url, first, copy, store, twin = folders
    identity.refuse_twin(config_of(first, url))
    with pytest.raises(StartError, match="--new-instance"):
        identity.refuse_twin(config_of(copy, url))
    with pytest.raises(TwinError, match="runs elsewhere"):
        identity.claim(copy, twin)
    store.ingest([done("b")], {"data0": Position(3, 200)})
    identity.make_new(config_of(copy, url))
    identity.refuse_twin(config_of(copy, url))
    own = open_store(url, rules(), instance=identity.instance_of(copy))
    identity.claim(copy, own)
    own.ingest([done("b"), done("c")], {"data0": Position(3, 200)})
    assert own.positions() == store.positions() == {"data0": Position(3, 200)}
    own.close()


def test_of_two_copies_one_alone_moves_the_positions(folders):
    """They ran one after the other, or the first does not know yet: its writes are refused, and its spool keeps all."""
    url, first, copy, store, twin = folders
    long_ago(store)
    identity.claim(copy, twin)
    twin.ingest([done("of the copy")], {"data0": Position(4, 50)})
    with pytest.raises(TwinError, match="--new-instance"):
        store.ingest([done("lost?")], {"data0": Position(4, 60)})
    assert store.positions() == {"data0": Position(4, 50)}
    with pytest.raises(StartError, match="another copy of this data folder was started later"):
        identity.refuse_twin(config_of(first, url))
    identity.refuse_twin(config_of(copy, url))


def test_a_folder_that_was_moved_or_killed_goes_on(folders, monkeypatch):
    url, first, _, store, _ = folders
    identity.claim(first, store)  # killed, and started at once
    long_ago(store)
    moved = first.with_name("moved")
    first.rename(moved)
    identity.refuse_twin(config_of(moved, url))
    identity.claim(moved, store)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as during:  # between the folder's token and the database's
        during.setattr(InstanceClaim, "take", killed)
        with pytest.raises(KeyboardInterrupt):
            identity.claim(moved, store)
    identity.claim(moved, store)


def test_a_folder_with_a_store_of_its_own_needs_no_new_instance(tmp_path):
    with pytest.raises(StartError, match="without --new-instance"):
        identity.make_new(Config(data_dir=str(tmp_path)))


def test_a_database_that_is_away_keeps_no_proxy_from_starting(tmp_path):
    identity.instance_of(tmp_path)
    identity.refuse_twin(config_of(tmp_path, "postgresql://127.0.0.1:1/none"))


async def test_an_older_store_says_what_it_lacks_and_knows_what_was_forgotten(make_plane, tmp_path):
    plane = await make_plane(proxy={"segment_bytes": 4096, "durability": "process"})
    for n in range(6):
        await plane.call(f"e{n}", text="long " * 400)
    await plane.seen("e5")
    await plane.stop()
    file = Path(plane.config.store_url.removeprefix("duckdb://"))
    older = tmp_path / "older"
    older.mkdir()
    for part in file.parent.glob(f"{file.name}*"):
        if part.is_file():
            shutil.copy(part, older)
    plane = await _started(plane)
    assert plane.deps.ingester.stats.missing is None
    assert (await plane.ask("DELETE", "/episodes/e1"))[0] == 200
    for n in range(6, 12):
        await plane.call(f"e{n}", text="long " * 400)
    await plane.seen("e11")
    await until(lambda: plane.deps.ingester.tidy() or len(list(plane.config.spool_dir.glob("data0-*.seg"))) < 3)
    await plane.stop()
    for part in file.parent.glob(f"{file.name}*"):
        if part.is_file():
            part.unlink()
    for part in older.iterdir():
        shutil.copy(part, file.parent)
    plane = await _started(plane)
    missing = plane.deps.ingester.stats.missing
    assert missing is not None and "data0 from 0000" in missing.text and "restore the store file" in missing.fix
    assert (await plane.ask("GET", "/episodes/e1"))[0] == 404, "it answers no more from its first moment"
    assert (await plane.ask("GET", "/episodes/e0"))[0] == 200
    _, status = await plane.ask("GET", "/status")
    assert "older than the spool" in json.dumps(status)


async def _started(plane):
    plane.control = type(plane.control)(plane.config)
    return await plane.start()


def test_a_spool_that_is_older_than_the_store_is_read_again(tmp_path):
    files = {}
    for writer, numbers in {"data0": [2, 3], "data1": [7]}.items():
        files[writer] = [(n, tmp_path / f"{writer}-{n:08d}.seg") for n in numbers]
        for _, path in files[writer]:
            path.write_bytes(b"x" * 10)
    at = {"data0": Position(3, 10), "data1": Position(9, 5), "gone": Position(4, 1)}
    assert identity.ahead(files, at) == ["data1", "gone"]
    assert identity.missing_segments(files, {"data0": Position(2, 1), "data1": Position(5, 0)}) == [("data1", 5, 6)]
    assert identity.missing_segments(files, {"data1": Position(7, 0)}) == [("data0", 1, 1)]
    files["data1"].append((11, tmp_path / "data1-00000011.seg"))
    assert identity.missing_segments(files, {"data0": Position(2, 1), "data1": Position(7, 0)}) == [("data1", 8, 10)]


def test_a_line_that_a_kill_cut_off_takes_no_other_with_it(tmp_path):
    identity.remember_forgotten(tmp_path, [("k", "first")])
    with (tmp_path / "forgotten").open("a") as file:
        file.write('["k", "forgo')
    identity.remember_forgotten(tmp_path, [("k", "second"), ("k", "third")])
    assert identity.forgotten_in(tmp_path) == {("k", mark_of(name)) for name in ("first", "second", "third")}


def test_a_newer_store_file_in_an_older_folder_ends_the_proxy(tmp_path):
    """It would serve the base model, and say that it is ready."""
    data, config, log = tmp_path / "data", tmp_path / "slipstream.toml", tmp_path / "proxy.log"
    open_store(f"duckdb://{data}/slipstream.duckdb", rules()).close()
    with duckdb.connect(str(data / "slipstream.duckdb")) as con:
        con.execute("UPDATE t_meta SET value = '999' WHERE name = 'schema'")
    config.write_text(f'data_dir = "{data}"\n[engine]\nurls = ["http://127.0.0.1:9"]\nname = "m"\n[proxy]\nport = 0\n')
    with process(slipstream("proxy", "--config", str(config)), log) as proxy:
        assert proxy.wait(60) == 1
    assert "schema is version 999" in log.read_text() and "install" in log.read_text()
