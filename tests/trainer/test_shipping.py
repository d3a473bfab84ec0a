"""What becomes of a version whose folder the proxy sees late, never, or with other files."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.support.adapters import write_adapter
from tests.support.tiny import make_config

from slipstream.client import Client
from slipstream.contract import AdapterIn
from slipstream.errors import ApiError
from slipstream.shared.files import sha256_of
from slipstream_trainer.versions import shipping
from slipstream_trainer.versions.shipping import AdapterShipping, NameTaken, put_adapter

MADE = {"name": "tiny@1", "model": "tiny", "version": 1, "state": "loading", "created": 1.0, "path": "tiny@1"}


class Proxy:
    """Answers at the network's boundary. ``sees``: whether it sees the folder of the trainer's machine at this look."""

    def __init__(self, sees: Callable[[int], bool], lossy: int = 0) -> None:
        self.sees, self.looks, self.lossy = sees, 0, lossy
        self.parts, self.uploads, self.taken = bytearray(), list[dict[str, object]](), ""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path, body = request.url.path, request.read()
        if "/uploads/" in path:
            if request.method == "PUT":
                at = int(request.url.params["offset"])
                if self.lossy:
                    self.lossy -= 1
                    self.parts[at:] = body[: len(body) // 2]
                    raise httpx.ReadError("cut off", request=request)
                self.parts[at:] = body
            return httpx.Response(200, json={"bytes": len(self.parts)})
        if self.taken and self.taken in body.decode("latin1"):
            return self._no(409, "body.path", "there already")
        if request.headers["content-type"].startswith("multipart/"):
            said = json.loads(re.search(rb'\{"path".*\}', body)[0])
            self.uploads.append(said | {"names": sorted(set(re.findall(rb'filename="([^"]+)"', body)))})
            return httpx.Response(201, json=MADE)
        self.looks += 1
        return httpx.Response(201, json=MADE) if self.sees(self.looks) else self._no(404, "body.path", "no folder")

    @staticmethod
    def _no(status: int, field: str, text: str) -> httpx.Response:
        return httpx.Response(status, json={"error": {"type": "x", "message": text, "field": field, "fix": "…"}})


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shipping, "LOOK_INTERVAL_S", 0.01)
    monkeypatch.setattr(shipping, "MOUNT_LAG_S", 0.05)

    def made(proxy: Proxy) -> AdapterShipping:
        client = Client("http://proxy")
        client.http = httpx.Client(base_url="http://proxy", transport=httpx.MockTransport(proxy))

        def patiently(ask):
            for _ in range(9):
                try:
                    return ask()
                except ApiError as e:
                    if e.status:
                        raise
            raise AssertionError

        return AdapterShipping(make_config(tmp_path, tmp_path / "data"), client, patiently, threading.Event())

    return made


def test_a_mount_that_lags_is_waited_for_and_then_the_files_are_uploaded(ship, tmp_path) -> None:
    source = write_adapter(tmp_path / "source")
    late = Proxy(lambda look: look in (1, 4))
    shipped = ship(late)
    for n in (1, 2):
        assert shipped.register(source, AdapterIn(path=f"tiny@{n}")).name == "tiny@1"
    assert (late.looks, late.uploads) == (4, [])
    never = Proxy(lambda look: look == 1)
    shipped = ship(never)
    for n in (3, 4):
        shipped.register(source, AdapterIn(path=f"tiny@{n}"))
    assert [u["path"] for u in never.uploads] == ["tiny@4"]
    assert never.uploads[0]["sha256"] == sha256_of(source / "adapter_model.safetensors")


def test_where_no_folder_is_shared_the_first_answer_is_enough(ship, tmp_path) -> None:
    source, proxy = write_adapter(tmp_path / "source"), Proxy(lambda _: False)
    shipped = ship(proxy)
    shipped.register(source, AdapterIn(path="tiny@1"))
    assert proxy.looks == 1 and len(proxy.uploads) == 1


def test_a_folder_that_cannot_be_written_is_no_hindrance(ship, tmp_path) -> None:
    source, proxy = write_adapter(tmp_path / "source"), Proxy(lambda _: True)
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "adapters").write_text("a file")
    ship(proxy).register(source, AdapterIn(path="tiny@1"))
    assert proxy.looks == 0 and len(proxy.uploads) == 1


def test_a_large_file_goes_on_where_the_connection_broke(ship, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(shipping, "PART_BYTES", 100)
    source, proxy = write_adapter(tmp_path / "source"), Proxy(lambda _: False, lossy=2)
    ship(proxy).register(source, AdapterIn(path="tiny@1"))
    assert bytes(proxy.parts) == (source / "adapter_model.safetensors").read_bytes()
    assert proxy.uploads[0]["names"] == [b"adapter_config.json"], "the weights came before"


def test_another_s_folder_or_version_is_a_taken_name(ship, tmp_path) -> None:
    source, proxy = write_adapter(tmp_path / "source", fill=1), Proxy(lambda _: True)
    other = write_adapter(tmp_path / "data" / "adapters" / "tiny@1", fill=2)
    before = sha256_of(other / "adapter_model.safetensors")
    with pytest.raises(NameTaken, match="other weights"):
        ship(proxy).register(source, AdapterIn(path="tiny@1"))
    assert sha256_of(other / "adapter_model.safetensors") == before and not proxy.looks
    proxy.taken = "tiny@2"
    with pytest.raises(NameTaken, match="there already"):
        ship(proxy).register(source, AdapterIn(path="tiny@2"))


def test_nobody_sweeps_what_another_is_writing(tmp_path) -> None:
    from slipstream_trainer.versions.adapter_folder import sweep, temporary_of

    theirs, ours = temporary_of(tmp_path / "m@1", "aaaa"), temporary_of(tmp_path / "m@2", "bbbb")
    for folder in (theirs, ours):
        folder.mkdir()
    sweep(tmp_path, "bbbb-")
    assert theirs.is_dir() and not ours.exists()
    put_adapter(
        source := write_adapter(tmp_path / "s"), tmp_path / "m@3", 16, sha256_of(source / "adapter_model.safetensors")
    )
    assert theirs.is_dir()
