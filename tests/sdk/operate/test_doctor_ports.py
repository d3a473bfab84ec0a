"""Ports that are taken, and those that are our own."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.doctored import config
from tests.support.server import Server

from slipstream.operate.doctor.ports import Running, check_ports, find_running
from slipstream.shared.processes.proxy_file import announce_proxy
from slipstream.shared.processes.sidecars import SidecarFile
from slipstream.shared.processes.supervisor import Child


def test_ports_of_others_and_our_own() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        (taken,) = check_ports(config(f"proxy.port={port}"), Running())
        assert (taken.level, "is taken" in taken.what) == ("warn", True)
        assert taken.fix == "end what uses it (`ss -ltnp`), or set proxy.port to another"
        (own,) = check_ports(config(f"proxy.port={port}"), Running(proxy=f"http://127.0.0.1:{port}"))
        assert (own.level, "served by the proxy that runs" in own.what) == ("ok", True)
        both = config("proxy.port=0", f"trainer.metrics_port={port}", "engine.model=x", f"engine.port={port}")
        _, metrics, engine = check_ports(both, Running())
        assert (metrics.level, metrics.fix.endswith("set trainer.metrics_port to another")) == ("warn", True)
        assert engine.level == "warn"
        here = Running(engines=(f"http://127.0.0.1:{port}",), sidecars=frozenset({"trainer"}))
        assert [f.level for f in check_ports(both, here)] == ["ok", "ok", "ok"]
    (free,) = check_ports(config("proxy.port=0"), Running())
    assert free.level == "ok"


def test_what_runs(server: Server, tmp_path: Path) -> None:
    wanted = config(f"data_dir={tmp_path}", "proxy.port=1")
    assert find_running(wanted, "http://127.0.0.1:1", None) == Running()
    announce_proxy(tmp_path, server.url)
    SidecarFile(tmp_path)([Child("trainer", [], essential=False)])
    assert find_running(wanted, None, None) == Running(server.url, sidecars=frozenset({"trainer"}))
    engines = [{"url": "http://e:1", "ok": True}]
    server.on("GET", "/status", {"version": "0", "started": 1.0, "models": {"m": "m@1"}, "engines": engines})
    assert find_running(wanted, None, None) == Running(server.url, ("http://e:1",), "m", frozenset({"trainer"}))
