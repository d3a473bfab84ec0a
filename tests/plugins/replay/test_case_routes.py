from __future__ import annotations

import json

import pytest
from tests.support.plane import until

from slipstream.contract import EpisodeDetail
from slipstream_replay.cases import parts


async def filled(plane, count: int = 6) -> None:
    for n in range(count):
        await plane.call(f"e{n}", task=f"t{n % 3}", tags={"kind": "rare" if n == 0 else "usual", "user": f"u{n}"})
        await plane.seen(f"e{n}")
        await plane.ask("POST", f"/episodes/e{n}/rewards", {"value": n / 10})


async def members(plane, name: str = "s", **params) -> dict[str, float | None]:
    status, page = await plane.ask("GET", f"/cases/{name}", params=params)
    assert status == 200, page
    return {c["episode"]: c["reward"] for c in page["cases"]}


async def test_by_hand_by_filter_and_by_sample(plane):
    await filled(plane)
    status, body = await plane.ask("POST", "/cases/s", {"episodes": ["e1", "nobody"]})
    assert (status, body["set"]["version"], body["changed"], body["unknown"]) == (200, 1, 1, ["nobody"])
    _, body = await plane.ask("POST", "/cases/s", {}, params={"reward_min": 0.4, "tag": "kind:usual"})
    assert (body["set"]["cases"], body["changed"], body["found"], body["more"]) == (3, 2, 2, False)
    assert await members(plane) == {"e1": 0.1, "e4": 0.4, "e5": 0.5}
    assert await members(plane, version=1) == {"e1": 0.1}
    _, body = await plane.ask("POST", "/cases/rare", {"sample": 2, "by": "kind"})
    assert body["found"] == 6 and "e0" in await members(plane, "rare")  # one of each stratum
    _, again = await plane.ask("POST", "/cases/rare", {"sample": 2, "by": "kind"})
    assert (again["set"], again["changed"]) == (body["set"], 0)  # the same episodes: nothing is another
    _, body = await plane.ask("GET", "/cases")
    assert [(s["name"], s["cases"]) for s in body["sets"]] == [("rare", 2), ("s", 3)]


async def test_a_set_moves_to_another_store_and_is_trained_on_by_nobody(plane):
    await filled(plane, 2)
    await plane.ask("POST", "/cases/s", {"episodes": ["e0", "e1"]})
    _, page = await plane.ask("GET", "/cases/s", params={"whole": "1"})
    lines = [c["detail"] | {"id": f"from-there-{n}"} for n, c in enumerate(page["cases"])]
    for line in lines:
        line["call_list"] = [call | {"episode": line["id"]} for call in line["call_list"]]
    status, body = await plane.ask("POST", "/cases/moved/import", {"episodes": lines})
    assert (status, body["set"]["cases"], body["changed"]) == (200, 2, 2)
    _, again = await plane.ask("POST", "/cases/moved/import", {"episodes": lines})
    assert (again["set"], again["changed"]) == (body["set"], 0)
    twice = [*lines, *(line | {"reward": 9.0} for line in lines)]
    _, again = await plane.ask("POST", "/cases/moved/import", {"episodes": twice})
    assert (again["set"], again["changed"]) == (body["set"], 0), "each as it came first"
    assert [line["id"] for part in parts(map(EpisodeDetail.model_validate, twice)) for line in part] == [
        line["id"] for line in lines
    ]
    _, moved = await plane.ask("GET", "/cases/moved", params={"whole": "1"})
    assert [c["detail"]["call_list"][0]["prompt_ids"] for c in moved["cases"]] == [[1, 2, 3]] * 2
    assert {e["id"] for e in (await plane.ask("GET", "/episodes"))[1]["episodes"]} == {"e0", "e1"}


async def test_an_import_that_the_store_has_not_taken_yet_is_not_told_as_an_empty_set(plane, monkeypatch):
    await filled(plane, 2)
    mutations = plane.control.plugins.parts["replay"].cases.access.mutations
    put = mutations.put
    monkeypatch.setattr(mutations, "put", lambda op, data, **_: put(op, data, wait=0))
    _, body = await plane.ask("POST", "/cases/s", {"episodes": ["e0", "e1"]})
    assert (body["changed"], body["coming"]) == (2, 2)
    monkeypatch.undo()
    await until(lambda: plane.control.plugins.parts["replay"].cases.known("s"))
    _, body = await plane.ask("POST", "/cases/s", {"episodes": ["e0"]})
    assert (body["set"]["cases"], body["coming"]) == (2, 0)


def without_names(record: dict[str, str]) -> dict[str, str]:
    return {name: text.replace("Zoë", "someone").replace("zoe", "someone") for name, text in record.items()}


@pytest.mark.parametrize("path", ["/cases/moved/import", "/import/episodes"])
async def test_what_is_brought_is_redacted_before_it_is_stored(plane, path):
    plane.deps.config.proxy.redact = f"{__name__}:without_names"
    await filled(plane, 1)
    await plane.ask("POST", "/cases/s", {"episodes": ["e0"]})
    _, page = await plane.ask("GET", "/cases/s", params={"whole": "1"})
    lines = []
    for name, says, by in (("one", "hello", "ann"), ("two", "Zoë asks", "zoe")):
        line = page["cases"][0]["detail"] | {"id": name, "tags": {"by": by}}
        call = line["call_list"][0] | {"id": f"call-{name}", "episode": name}
        lines.append(line | {"call_list": [call | {"messages": [{"role": "user", "content": says}]}]})
    status, body = await plane.ask("POST", path, {"episodes": lines})
    assert status == 200, body
    if path.startswith("/cases"):
        found = {x["detail"]["id"]: x["detail"] for x in (await plane.ask("GET", "/cases/moved?whole=1"))[1]["cases"]}
    else:
        found = {n: (await plane.ask("GET", f"/episodes/{n}?tokens=true"))[1] for n in ("one", "two")}
    said = {n: (d["tags"]["by"], d["call_list"][0]["messages"][0]["content"]) for n, d in found.items()}
    assert said == {"one": ("ann", "hello"), "two": ("someone", "someone asks")}
    assert [found[n]["call_list"][0]["prompt_ids"] or None for n in ("one", "two")] == [[1, 2, 3], None]
    assert found["two"]["call_list"][0]["untrainable_reason"] == "redacted"


async def test_forgetting_reaches_every_copy(plane):
    await filled(plane, 3)
    await plane.ask("POST", "/cases/s", {"episodes": ["e0", "e1"]})
    line = (await plane.ask("GET", "/cases/s", params={"whole": "1"}))[1]["cases"][0]["detail"]
    line |= {"id": "only-a-case", "call_list": [], "tags": {"user": "ann"}}
    await plane.ask("POST", "/cases/s/import", {"episodes": [line]})
    _, gone = await plane.ask("POST", "/forget", {"user": "ann"})
    assert gone["forgotten"] == 1 and gone["cases"] == ["s"] and set(await members(plane)) == {"e0", "e1"}
    assert (await plane.ask("DELETE", "/episodes/e0"))[0] == 200
    assert set(await members(plane)) == set(await members(plane, version=1)) == {"e1"}
    lines = [line, line | {"id": "another"}]
    _, body = await plane.ask("POST", "/cases/other/import", {"episodes": lines})
    assert (body["forgotten"], body["changed"]) == (["only-a-case"], 1) and set(await members(plane, "other")) == {
        "another"
    }
    await plane.again()
    assert set(await members(plane)) == {"e1"}


async def test_removing_and_deleting(plane):
    await filled(plane, 2)
    await plane.ask("POST", "/cases/s", {"episodes": ["e0", "e1"]})
    _, body = await plane.ask("POST", "/cases/s/remove", {"episodes": ["e0", "e9"]})
    assert (body["set"]["cases"], body["unknown"]) == (1, ["e9"])
    assert set(await members(plane, version=1)) == {"e0", "e1"}
    status, said = await plane.ask("GET", "/cases/s", params={"version": 3})
    assert (status, said["error"]["fix"]) == (404, "its versions are 1 to 2")
    assert (await plane.ask("DELETE", "/cases/s"))[0] == 200
    for method, path, body in (
        ("GET", "/cases/s", None),
        ("DELETE", "/cases/s", None),
        ("POST", "/cases/s/remove", {"episodes": ["e1"]}),
    ):
        assert (await plane.ask(method, path, body))[0] == 404
    assert (await plane.seen("e0"))["reward"] == 0.0


async def test_an_episode_whose_calls_are_dropped_does_not_replace_its_copy(plane):
    await filled(plane, 1)
    await plane.ask("POST", "/cases/s", {"episodes": ["e0"]})
    archive = plane.deps.store.archive
    for day in archive.days():
        archive.drop(day)
    _, body = await plane.ask("POST", "/cases/s", {"episodes": ["e0"]})
    assert (body["changed"], body["dropped"], body["set"]["version"]) == (0, ["e0"], 1)
    _, page = await plane.ask("GET", "/cases/s", params={"whole": "1"})
    assert len(page["cases"][0]["detail"]["call_list"]) == 1


@pytest.mark.parametrize("scopes", [["inference"], ["reward", "judge"], ["viewer"]])
async def test_who_may(plane, scopes):
    await filled(plane, 1)
    status, said = await plane.ask("POST", "/cases/s", {"episodes": ["e0"]}, scopes=scopes)
    assert status == 403, said
    await plane.ask("POST", "/cases/s", {"episodes": ["e0"]})
    assert (await plane.ask("GET", "/cases/s", scopes=scopes))[0] == (200 if "viewer" in scopes else 403)
    _, entries = await plane.ask("GET", "/audit")
    assert ("cases add", "s") in {(e["action"], e["target"]) for e in entries["entries"]}


async def test_what_names_nothing_is_refused(plane):
    status, said = await plane.ask("POST", "/cases/s", {})
    assert (status, said["error"]["fix"]) == (422, "give episodes, a filter in the query, or sample")
    _, said = await plane.ask("POST", "/cases/s", {"episodes": ["nobody"]})
    assert (said["set"]["version"], said["unknown"]) == (0, ["nobody"])
    await filled(plane, 1)
    status, said = await plane.ask("POST", "/cases/s", {"sample": 1, "by": "customer"})
    assert (status, said["error"]["message"]) == (422, "none of 1 episodes has the tag customer")
    status, said = await plane.ask("POST", "/cases/auto-sample.m", {"episodes": ["e0"]})
    assert (status, said["error"]["message"]) == (422, "auto-sample.m fills itself")
    assert json.dumps((await plane.ask("GET", "/cases"))[1]) == '{"sets": []}'
