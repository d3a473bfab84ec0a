from __future__ import annotations

from tests.support.plane import until

from slipstream_proxy.log.records import mark_of


async def test_a_label_takes_a_case_from_the_queue_and_stands_in_the_audit_log(plane):
    for name in ("a", "b"):
        await plane.call(name, done=True)
        await until(lambda name=name: _done(plane, name))
    _, queue = await plane.ask("GET", "/labels/queue")
    assert [c["episode"]["id"] for c in queue["cases"]] == ["b", "a"]
    label = {"value": 0.0, "source": "human", "reason": "rude", "meta": {"edited": "With pleasure."}}
    assert (await plane.ask("POST", "/episodes/a/rewards", label))[0] == 200
    _, queue = await plane.ask("GET", "/labels/queue")
    assert ([c["episode"]["id"] for c in queue["cases"]], queue["labelled"]) == (["b"], 1)
    _, page = await plane.ask("GET", "/audit", params={"action": "label"})
    (entry,) = page["entries"]
    assert (entry["target"], entry["detail"]) == ("a", {"name": "reward", "value": 0.0, "key": "-", "edited": True})
    assert "rude" not in str(page) and "pleasure" not in str(page)
    assert (await plane.seen("a"))["reward"] == 0.0
    # an agent's own reward is no label
    await plane.ask("POST", "/episodes/b/rewards", {"value": 1.0})
    assert (await plane.ask("GET", "/audit", params={"action": "label"}))[1]["entries"] == [entry]


async def _done(plane, name: str) -> bool:
    return (await plane.seen(name))["state"] == "done"


async def test_forgetting_stands_in_the_audit_log(plane):
    await plane.call("a", done=True)
    await plane.seen("a")
    assert (await plane.ask("DELETE", "/episodes/a"))[0] == 200
    assert (await plane.ask("DELETE", "/episodes/nothing"))[0] == 404
    _, page = await plane.ask("GET", "/audit")
    assert [(e["action"], e["target"]) for e in page["entries"]] == [("delete", mark_of("a"))]


async def test_notes_on_the_time_axis(plane):
    status, body = await plane.ask("POST", "/annotations", {"text": "new prompt", "at": 1000.0})
    assert (status, body["annotations"][0]["text"]) == (200, "new prompt")
    await plane.ask("POST", "/annotations", {"text": "new tools", "at": 2000.0})
    await plane.ask(
        "POST",
        "/training/events",
        {"kind": "promote", "at": 1500.0, "data": {"adapter": "tiny@1", "reason": "by hand"}},
    )
    _, found = await plane.ask("GET", "/annotations")
    assert [(a["kind"], a["text"]) for a in found["annotations"]] == [
        ("annotation", "new prompt"),
        ("promote", "tiny@1: by hand"),
        ("annotation", "new tools"),
    ]
    _, found = await plane.ask("GET", "/annotations", params={"since": "1200", "until": "1800"})
    assert [a["kind"] for a in found["annotations"]] == ["promote"]
    assert (await plane.ask("POST", "/annotations", {"text": ""}))[1]["error"]["field"] == "body.text"


async def test_who_may_see_the_audit_log(plane):
    for scopes, status in ((["inference"], 403), (["grade"], 403), (["viewer"], 200), (["admin"], 200)):
        assert (await plane.ask("GET", "/audit", scopes=scopes))[0] == status
    for query in ("limit=0", "since=x", "action=%20"):
        assert (await plane.ask("GET", f"/audit?{query}"))[0] == 422
    assert (await plane.ask("GET", "/audit?cursor=!!"))[0] == 404
