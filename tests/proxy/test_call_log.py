from __future__ import annotations

import json
import logging
from types import SimpleNamespace

from slipstream.shared.log import setup_logging
from slipstream_proxy.data.call.observers.call_log import log_call


def ended(**more):
    """Of a call what its line is made of."""
    made = {
        "id": "0660cb35", "episode": SimpleNamespace(id="e1"), "key": SimpleNamespace(id="k1"), "dialect": SimpleNamespace(name="chat"), "started": 100.0, "first": 100.5,
        "pin": SimpleNamespace(adapter="tiny@1"), "target": SimpleNamespace(kind="trained"), "stream": True, "upstream": "http://engine", "tries": 1,
    }  # fmt: skip
    call = SimpleNamespace(**{**made, **more})
    call.asked = call.route = call.reply = call
    return call


def lines(monkeypatch, capsys, *calls):
    monkeypatch.setenv("SLIPSTREAM_LOG_FORMAT", "json")
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("slipstream_proxy").level
    try:
        setup_logging("debug")
        for call, status, outcome in calls:
            log_call(call, status, outcome)
    finally:
        root.handlers[:], level, own = before
        root.setLevel(level)
        logging.getLogger("slipstream_proxy").setLevel(own)
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line(monkeypatch, capsys):
    monkeypatch.setattr("slipstream_proxy.data.call.observers.call_log.time.time", lambda: 102.25)
    (line,) = lines(monkeypatch, capsys, (ended(), 200, "ok"))
    del line["at"]
    assert line == {
        "level": "debug", "part": "slipstream_proxy.data.call.observers.call_log", "message": "call", "request_id": "0660cb35", "episode": "e1", "key": "k1", "format": "chat",
        "adapter": "tiny@1", "status": 200, "outcome": "ok", "stream": True, "seconds": 2.25, "first_byte": 0.5, "upstream": "http://engine", "tries": 1,
    }  # fmt: skip


def test_what_a_refused_call_does_not_have_is_left_out(monkeypatch, capsys):
    refused = ended(
        episode=None, key=None, first=None, pin=None, target=SimpleNamespace(kind="base"), upstream="", tries=0
    )
    (line,) = lines(monkeypatch, capsys, (refused, 401, "error"))
    assert line["adapter"] == "base"
    assert not {"episode", "key", "first_byte", "upstream"} & set(line)
