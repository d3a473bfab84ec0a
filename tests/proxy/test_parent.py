"""The parent's socket, its lock and its children's commands."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket

import pytest

from slipstream.config import CONFIG_ENV, Config
from slipstream.errors import StartError
from slipstream.shared.processes.proxy_file import running_proxy
from slipstream_proxy.process import parent as module
from slipstream_proxy.process.parent import Parent, bind, check_bind, is_loopback, lock


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.0.0.9", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("host.lan", False)],
)
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


def test_without_keys_only_this_machine_may_ask(tmp_path):
    wide = Config.model_validate({"data_dir": str(tmp_path), "proxy": {"host": "0.0.0.0"}})
    with pytest.raises(StartError, match="keys add"):
        check_bind(wide, keyed=False)
    check_bind(wide, keyed=True)
    check_bind(Config(data_dir=str(tmp_path)), keyed=False)


def test_a_data_folder_belongs_to_one_proxy_at_a_time(tmp_path):
    held = lock(tmp_path / "new" / "folder")
    with pytest.raises(StartError, match="another proxy"):
        lock(tmp_path / "new" / "folder")
    os.close(held)
    os.close(lock(tmp_path / "new" / "folder"))
    with pytest.raises(StartError, match="data_dir"):
        lock(tmp_path / "new" / "folder" / "lock" / "x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "spool").touch()
    with pytest.raises(StartError, match="spool is a file where a folder has to be: move it away"):
        lock(tmp_path / "other")


def test_what_cannot_be_bound_says_why():
    with pytest.raises(StartError, match=r"cannot bind no\.such\.host\.invalid:1: "):
        bind("no.such.host.invalid", 1)
    taken = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(StartError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])
    taken.close()


def test_the_kernel_takes_little_for_a_client_that_does_not_read():
    with bind("127.0.0.1", 0) as listener, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(listener.getsockname())
        served, _ = listener.accept()
        with served:
            served.setblocking(False)
            taken = 0
            with contextlib.suppress(BlockingIOError):
                while taken < 2**23:
                    taken += served.send(bytes(2**20))
    assert 0 < taken < 2**19, "it would take megabytes, which the worker holds until the call is recorded"


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
def test_the_address_is_one_that_can_be_reached(tmp_path, host, shown):
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    sock = bind(host, 0)
    parent = Parent(Config(data_dir=str(tmp_path)), sock)
    assert parent.url == f"http://{shown}:{sock.getsockname()[1]}"
    sock.close()


def test_each_child_gets_the_configuration_and_the_workers_the_socket(tmp_path):
    config = Config.model_validate({"data_dir": str(tmp_path), "proxy": {"workers": 3}})
    sock = bind("127.0.0.1", 0)
    parent = Parent(config, sock, keyed=True)
    fd = sock.fileno()
    assert [worker.fds for worker in parent.workers] == [(fd,)] * 3
    assert [worker.argv[-2:] for worker in parent.workers] == [[str(n), str(fd)] for n in range(3)]
    assert parent.control.fds == ()
    for child in (parent.control, *parent.workers):
        assert Config.model_validate(json.loads(child.env[CONFIG_ENV])) == config
        assert child.env["SLIPSTREAM_KEYED"] == "1"
        assert child.max_failures is None  # it is started again for ever
    sock.close()


def test_a_part_that_was_asked_to_end_is_no_error(tmp_path, caplog):
    """Whoever sent the signal: the service manager sends it to all processes at once."""
    with bind("127.0.0.1", 0) as sock, caplog.at_level(logging.INFO):
        parent = Parent(Config(data_dir=str(tmp_path)), sock)
        parent.supervisor.children += [parent.control, *parent.workers]
        for parent.control.exit_code in (0, -15, 1, -9, None):
            parent.supervisor.echo("control plane", "ended")
    assert [r.levelname for r in caplog.records] == ["INFO", "INFO", "ERROR", "ERROR", "ERROR"]


async def test_a_disk_that_takes_no_file_ends_no_proxy(tmp_path, monkeypatch, caplog):
    """It says where it is as soon as it can, and warns once."""
    monkeypatch.setattr(module, "ANNOUNCE_EVERY", 0.02)
    (tmp_path / "proxy.json.tmp").mkdir()  # no file can be written there
    with bind("127.0.0.1", 0) as sock:
        parent = Parent(Config(data_dir=str(tmp_path)), sock)
        with caplog.at_level(logging.WARNING):
            telling = asyncio.create_task(parent._announce())
            await asyncio.sleep(0.2)
        assert not telling.done() and len(caplog.records) == 1 and "--url" in caplog.text
        (tmp_path / "proxy.json.tmp").rmdir()
        await asyncio.wait_for(telling, 10.0)
        assert running_proxy(tmp_path) == parent.url
        (tmp_path / "proxy.json.tmp").mkdir()
        telling = asyncio.create_task(parent._announce())
        await asyncio.sleep(0.1)
        parent.supervisor.stopping.set()
        await asyncio.wait_for(telling, 10.0)
