from __future__ import annotations

import json

import pytest
from tests.support.server import Reply, Server

from slipstream.cli import main
from slipstream.cli.common import away_line
from slipstream.cli.data import forget
from slipstream.contract import name_of
from slipstream.contract.status import ErasingProxy

PATH = "/forget"


def answer(n: int, **kw: object) -> dict[str, object]:
    return {"forgotten": n, "adapters": [], **kw}


def test_ids_and_what_is_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on(
        "POST",
        PATH,
        answer(2, adapters=["m@10", "m@9"], made_from=["m@11"], exports=["export-1"], cases=["s"], unknown=["e3"]),
    )
    assert main(["forget", "e1", "e2", "e3", "--url", server.url]) == 0
    assert server.seen[0].json["episodes"] == ["e1", "e2", "e3"]
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "2 forgotten; adapters trained on them: m@10, m@9",
        "made from these: m@11",
        "train anew without them: slipstream adapters retrain m@9",
        "copies were removed from the case sets s",
        "still contained in: export-1",
    ]
    assert said.err.splitlines() == ["no such episode: e3"]


@pytest.mark.parametrize(
    ("dropped", "then"),
    [
        (True, ["the trainer drops it, and trains on the other groups again", "it discards the batch"]),
        (False, ["the next version is made from it", "the next version is made from it"]),
    ],
)
def test_steps_that_no_version_has_yet_are_named(server: Server, capsys, dropped: bool, then: list[str]) -> None:
    told = [("b1", 27), ("b2", None)]
    steps = [{"model": "m", "batch": batch, "step": step, "dropped": dropped} for batch, step in told]
    server.on("POST", PATH, answer(1, steps=steps))
    assert main(["forget", "e1", "--url", server.url]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "1 forgotten; adapters trained on them: no version yet"
    starts = ["step 27 of m is in no version yet", "the trainer has batch b2 of m"]
    assert [line.startswith(f"{s}: {t}") for line, s, t in zip(lines, starts, then, strict=True)] == [True, True]


def test_by_user_tag_and_key_until_there_are_no_more(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter([answer(2000, adapters=["m@1"], more=True), answer(5, adapters=["m@2"])])
    server.routes["POST", PATH] = lambda _: Reply(next(answers))
    assert (
        main(["forget", "--user", "ann", "--tag", "team=x", "--of-key", "k1", "--yes", "--json", "--url", server.url])
        == 0
    )
    asked = server.seen[0].json
    assert (asked["user"], asked["tags"], asked["key"], asked["episodes"]) == ("ann", {"team": "x"}, "k1", [])
    out = json.loads(capsys.readouterr().out)
    assert (out["forgotten"], out["adapters"]) == (2005, ["m@1", "m@2"])


def test_what_names_nothing_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", "--url", server.url]) == 2
    assert "give ids, --of-key, --tag or --user" in capsys.readouterr().err
    assert main(["forget", "--tag", "x", "--url", server.url]) == 2
    assert server.seen == []


def test_any_text_names_what_the_agent_tagged(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", PATH, answer(1))
    argv = ["forget", "my run 1", "run~2", "--user", "ann@example.com", "--tag", "team=a b", "--yes"]
    assert main([*argv, "--url", server.url]) == 0
    asked = server.seen[0].json
    assert asked["episodes"] == [name_of("my run 1"), "run~2"]
    assert (asked["user"], asked["tags"]) == ("ann@example.com", {"team": "a b"})
    assert main(["forget", "e1", "--of-key", "no key", "--url", server.url]) == 2
    assert "key: String should match" in capsys.readouterr().err


def test_only_unknown_ones_fail(server: Server) -> None:
    server.on("POST", PATH, answer(0, unknown=["e1"]))
    assert main(["forget", "e1", "--url", server.url]) == 1


def test_waiting_shows_each_step(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget, "POLL_INTERVAL_S", 0.0)
    status = {"version": "1", "started": 0.0, "models": {}}
    steps = [("waiting", 2, None), ("database", 2, "no room"), ("spool", 1, None), ("idle", 0, None), ("idle", 0, None)]
    server.on("POST", PATH, answer(2))
    others = iter([[], [], [], [("p2", False), ("p3", True)], [("p3", True)]])
    told = iter(
        status
        | {
            "forgetting": {
                "episodes": n,
                "step": s,
                "error": e,
                "elsewhere": [{"proxy": p, "episodes": 2, "away": away} for p, away in next(others)],
            }
        }
        for s, n, e in steps
    )
    server.routes["GET", "/status"] = lambda _: Reply(next(told))
    assert main(["forget", "e1", "e2", "--wait", "--url", server.url]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "2 in files: waits for more of them",
        "2 in files: the database is rewritten (no room; tried again)",
        "1 in files: the spool is written over",
        "2 in the spools of 1 other proxies",
        away_line(ErasingProxy(proxy="p3", episodes=2, away=True)),
    ]
