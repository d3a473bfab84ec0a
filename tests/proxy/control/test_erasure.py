from __future__ import annotations

from tests.support.leases import group_of
from tests.support.plane import until

from slipstream_proxy.control.storage.spool_eraser import BLANK_KIND, blank, instead
from slipstream_proxy.log.records import Kind, mark_of
from slipstream_proxy.log.segments import encode, read_segment
from slipstream_proxy.store.values import Position

GONE = {("-", mark_of("gone"))}


def call(episode: str, text: bytes, key: str = "-") -> bytes:
    head = {"id": "c" * 26, "key": key, "episode": episode, "at": 5.0, "seconds": 0.5}
    return encode(Kind.CALL, head, b'{"messages": "' + text + b'"}', text * 3)


def reward(episode: str, reason: str) -> bytes:
    data = {"key": "-", "episode": episode, "reward": {"value": 1.0, "reason": reason}}
    return encode(Kind.MUTATION, {"id": "m" * 26, "op": "reward", "at": 6.0, "data": data})


def test_only_what_is_forgotten_and_stored_is_blanked(tmp_path):
    parts = [
        call("gone", b"SECRET"),
        call("kept", b"OTHER"),
        reward("gone", "SECRET"),
        call("gone", b"SECRET", key="k2"),
        call("gone", b"LATE"),
    ]
    path = tmp_path / "data0-00000001.seg"
    path.write_bytes(b"".join(parts))
    before = list(read_segment(path))
    assert blank(tmp_path, {"data0": Position(1, before[3].end)}, GONE) == 2
    after = list(read_segment(path))
    assert read_segment(path).torn is None
    assert [f.end for f in after] == [f.end for f in before]
    assert [f.head.get("op") for f in after] == [BLANK_KIND, None, BLANK_KIND, None, None]
    assert [(f.head["id"], f.head["at"]) for f in after[::2][:2]] == [("c" * 26, 5.5), ("m" * 26, 6.0)]
    assert (after[1], after[3], after[4]) == (before[1], before[3], before[4])
    assert path.read_bytes().count(b"SECRET") == 4  # the other key's
    assert blank(tmp_path, {}, GONE) == 0


def test_a_frame_that_is_too_short_is_left(tmp_path):
    path = tmp_path / "a-00000001.seg"
    path.write_bytes(reward("gone", ""))
    frame = next(read_segment(path))
    assert instead(frame, 20, GONE) is None
    start, spaces = instead(frame, 300, GONE)
    assert len(start) + spaces == 300


async def test_a_deleted_episode_is_nowhere_in_the_folder(make_plane):
    """While the segments that it stands in are still being written to; and a store that is filled from them does not know it."""
    plane = await make_plane()
    for episode in ("gone", "kept"):
        for turn in range(3):
            await plane.call(episode, text=f"SECRET-{episode} {turn}")
        await plane.seen(episode)
        await plane.ask("POST", f"/episodes/{episode}/rewards", {"value": 1.0, "reason": f"SECRET-{episode}"})
    assert (await plane.ask("DELETE", "/episodes/gone"))[0] == 200
    await plane.deps.forgetter.erase()
    files = [p for p in plane.config.root.rglob("*") if p.is_file()]
    assert [p.name for p in files if b"SECRET-gone" in p.read_bytes()] == []
    assert any(b"SECRET-kept" in p.read_bytes() for p in files if p.suffix == ".seg")
    await plane.call("kept", text="more")
    await plane.again()
    assert (await plane.seen("kept"))["calls"] == 4
    assert (await plane.ask("GET", "/episodes/gone"))[0] == 404
    assert plane.deps.ingester.stats.unreadable == plane.deps.ingester.stats.torn == 0


async def test_what_a_judge_noted_of_other_runs_quotes_no_forgotten_one(make_plane):
    """Neither in the store nor in a segment that is still being written to."""
    plane = await make_plane(groups={"size": 2}, judge={"model": "openai/m"})
    names = await group_of(plane, "t1", [None, None])
    leased = await until(lambda: _judged(plane))
    scores = [{"episode": name, "value": 0.5, "reason": "better than SECRET"} for name in names]
    path = f"/groups/{leased['groups'][0]['id']}/scores"
    assert (await plane.ask("POST", path, {"lease": leased["lease"], "scores": scores}))[0] == 200
    assert (await plane.ask("POST", "/cases/some", {"episodes": names}))[0] == 200
    assert (await plane.ask("DELETE", f"/episodes/{names[0]}"))[0] == 200
    await plane.deps.forgetter.erase()
    files = [p for p in plane.config.root.rglob("*") if p.is_file()]
    assert [p.name for p in files if b"SECRET" in p.read_bytes()] == []
    assert [r["value"] for r in (await plane.seen(names[1]))["rewards"]] == [0.5]


async def _judged(plane) -> dict | None:
    return (await plane.ask("POST", "/groups/lease", {"worker": "j"}, scopes=["judge"]))[1]


def test_a_note_of_a_run_that_was_read_in_a_window_goes_with_any_run(tmp_path):
    """The record does not say which runs were shown beside it."""
    said = {"episode": "kept", "value": 0.5, "reason": "SECRET", "meta": {"mode": "window"}}
    data = {
        "group": "g",
        "key": "-",
        "scores": {"lease": "l", "scores": [said, {**said, "meta": {"mode": "absolute"}}]},
    }
    path = tmp_path / "a-00000001.seg"
    path.write_bytes(encode(Kind.MUTATION, {"id": "m" * 26, "op": "scores", "at": 6.0, "data": data}))
    assert blank(tmp_path, {"a": Position(1, path.stat().st_size)}, GONE) == 1
    (frame,) = read_segment(path)
    assert [s["reason"] for s in frame.head["data"]["scores"]["scores"]] == ["", "SECRET"]
