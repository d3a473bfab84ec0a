from __future__ import annotations

from slipstream.engines.engine import NoAdapters
from slipstream_proxy.control.engines.replica import AdapterOutage, EngineReplica, same


def test_paths():
    assert same("/a/b/", "/a//b")
    assert same(None, "/a")  # an engine that does not tell
    assert not same("/a/b", "/a/c")
    assert same("/a/b", "/a/c", "/a/b")


def test_what_people_are_told_is_more_than_what_data_planes_are():
    engine = EngineReplica("http://e", ok=True, healthy=True, loaded={"m@1"})
    said = {"title": "", "answered": False, "error": None, "outage": None, "lacks": {}}
    assert engine.told() == {**engine.public(), **said}
    engine.outage = AdapterOutage(NoAdapters.NO_LORA, "start it again", since=7.0)
    assert engine.told()["outage"] == {
        "cause": "lora_off", "since": 7.0, "text": "LoRA is off there", "fix": "start it again",
    }  # fmt: skip
    assert "outage" not in engine.public()
