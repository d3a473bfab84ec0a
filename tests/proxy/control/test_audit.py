from __future__ import annotations

import json

from tests.support.plane import until

from slipstream_proxy.control.observe.audit import entry_of
from slipstream_proxy.keys import Keys, log_of


async def actions(plane) -> list[tuple]:
    _, page = await plane.ask("GET", "/audit")
    return [(e["action"], e["target"], e["name"]) for e in page["entries"]]


async def test_keys_that_are_made_and_revoked_stand_in_the_log(plane):
    keys = Keys(plane.config.keys_file)
    made, secret = keys.add("wall", ["viewer"])

    async def both():
        return len(await actions(plane)) == 2

    async def one():
        return await actions(plane)

    (first,) = await until(one)
    assert first[:2] == ("key_add", made) and first[2]
    assert keys.revoke(made)
    await until(both)
    assert (await actions(plane))[0][:2] == ("key_revoke", made)
    _, page = await plane.ask("GET", "/audit")
    assert page["entries"][1]["detail"] == {"name": "wall", "scopes": ["viewer"]}
    assert secret not in log_of(plane.config.keys_file).read_text()
    assert log_of(plane.config.keys_file).stat().st_mode & 0o077 == 0
    await plane.again()
    await until(both)


async def test_entries_name_the_key_that_was_used(plane):
    made, _ = Keys(plane.config.keys_file).add("ann", ["admin"])
    await plane.ask("POST", "/annotations", {"text": "new prompt"}, key=made, scopes=["admin"])
    await plane.ask("POST", "/annotations", {"text": "again"}, key="-", scopes=["admin"])
    assert [a for a in await actions(plane) if a[0] == "annotate"] == [
        ("annotate", "annotations", None),
        ("annotate", "annotations", "ann"),
    ]


def test_half_a_line_is_waited_for_and_nonsense_passed_over():
    said = {"at": 1.0, "by": "root", "action": "key_add", "key": "k", "detail": {}}
    line = json.dumps(said).encode()
    assert entry_of(line) is None
    made = entry_of(line + b"\n")
    assert made is not None and (made.action, made.target, made.name) == ("key_add", "k", "root")
    for broken in (b"{}\n", b"\n", b"nonsense\n", b"[1]\n"):
        assert entry_of(broken) is None
