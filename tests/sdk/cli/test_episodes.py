from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.server import Reply, Seen, Server

from slipstream.cli import main
from slipstream.cli.common import text_width

EPISODE = {
    "id": "e1", "key": "-", "task": "t1", "split": "train", "model": "inbox", "adapter": "inbox@2", "state": "done", "started": 1e9, "ended": 1e9,
    "calls": 2, "reward": 0.5,
}  # fmt: skip
CALL = {
    "id": "c1", "episode": "e1", "number": 0, "at": 1e9, "seconds": 0.1, "dialect": "chat", "model": "inbox", "adapter": "inbox@2", "status": 200,
    "outcome": "ok", "trainable": False, "untrainable_reason": "top_k", "prompt_tokens": 12, "completion_tokens": 3,
    "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "wo ist Grüße?"}, {"role": "tool", "content": "x" * 1000}],
    "reply": [{"role": "assistant", "content": "hier"}],
}  # fmt: skip

AFTER = CALL | {"id": "c2", "number": 1, "extends": "c1"}


def test_a_list(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on(
        "GET", "/episodes", {"episodes": [EPISODE, EPISODE | {"id": "e2", "task": None, "reward": None}], "next": None}
    )
    assert (
        main(["episodes", "--url", server.url, "--task", "t1", "--reward-min", "0", "--tag", "user=7", "--limit", "2"])
        == 0
    )
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["episode", "task", "adapter", "arm", "outcome", "reward", "age"]
    assert first.split()[:6] == ["e1", "t1", "inbox@2", "live", "done", "0.500"] and first.endswith(" d")
    assert second.split()[:2] == ["e2", "-"]
    assert server.seen[0].query == {
        "limit": ["2"],
        "count": ["1"],
        "task": ["t1"],
        "reward_min": ["0.0"],
        "tag.user": ["7"],
    }
    where = ["--where", "task=t1", "--where", "reward_min=0", "--where", "tag.user=7", "--limit", "2"]
    assert main(["episodes", "--url", server.url, *where]) == 0
    assert server.seen[1].query == server.seen[0].query, "another way to say it"
    assert main(["episodes", "--url", server.url, "--json"]) == 0
    assert json.loads("{" + capsys.readouterr().out.partition("{")[2])["episodes"][0]["id"] == "e1"


FAILED = EPISODE | {"id": "bad", "reward": None, "error": "400: tools must not be empty"}


def test_a_failed_run_stands_as_failed_with_its_error(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    others = [FAILED | {"id": f"bad{i}", "error": f"{500 + i}: away"} for i in range(7)]
    server.on("GET", "/episodes", {"episodes": [EPISODE, FAILED, FAILED, *others], "next": None})
    assert main(["episodes", "--url", server.url, "--where", "outcome=error"]) == 0
    assert server.seen[0].query["outcome"] == ["error"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[4] for line in lines[1:11]] == ["done", *["failed"] * 9]
    assert lines[11] == "2 failed, and count in no mean: 400: tools must not be empty"
    assert lines[-1] == "3 other errors: `slipstream episodes --where outcome=failed --json`"
    server.on("GET", "/episodes/bad", FAILED | {"call_list": [], "rewards": []})
    assert main(["episodes", "bad", "--url", server.url]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "  failed  adapter" in first
    assert second == "  failed, and counts in no mean, group or trial: 400: tools must not be empty"


def test_it_says_how_many_more_there_are_and_shows_all(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def page(seen: Seen) -> Reply:
        start, limit = int(seen.query.get("cursor", ["0"])[0]), int(seen.query["limit"][0])
        many = [EPISODE | {"id": f"e{i}"} for i in range(start, min(5038, start + limit))]
        after = start + limit
        total = 5038 if "count" in seen.query else None
        return Reply({"episodes": many, "next": str(after) if after < 5038 else None, "total": total})

    server.routes["GET", "/episodes"] = page
    assert main(["episodes", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (32, "30 of 5,038, --all")
    assert main(["episodes", "--limit", "2500", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1]) == (2502, "2,500 of 5,038, --all")
    assert main(["episodes", "--all", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5039
    assert len({line.split()[0] for line in lines[1:]}) == 5038


@pytest.mark.parametrize("columns", [80, 100, 132])
def test_the_list_fits_the_terminal(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = {
        "task": "find-1a2b3c4d",
        "tags": {"task-text": "Find the mail in which Dana\nasks for 部署部署 a refund " * 3},
    }
    rows = [long, {"id": "ep-01kx5j3v0000000000000000ab"}, {"adapter": "support-agent@12", "arm": "candidate"}, {}]
    rows += [{"id": "x" * 128, "split": "eval", "adapter": "a" * 64}]
    server.on("GET", "/episodes", {"episodes": [EPISODE | row for row in rows], "next": None})
    assert main(["episodes", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(rows)
    assert max(map(text_width, lines)) <= columns
    assert "Find the mail"[:11] in lines[1] and "find-1a2b" not in lines[1]
    monkeypatch.delenv("COLUMNS")
    assert main(["episodes", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("x" * 128 + " "), "to a file or a program it is whole"


def test_one_whole(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    reward = {"episode": "e1", "name": "judge", "value": 0.25, "source": "judge", "at": 1e9, "reason": "vague"}
    server.on("GET", "/episodes/e1", EPISODE | {"call_list": [CALL, AFTER], "rewards": [reward]})
    assert main(["episodes", "e1", "--url", server.url]) == 0
    out = capsys.readouterr().out
    assert out.startswith("episode e1  task t1  train  done  adapter inbox@2\n")
    assert "  reward judge = 0.25 by judge " in out
    assert "vague" in out
    assert "  call 0  ok 200  12+3 tokens  begins a conversation  not trained on: top_k\n" in out
    assert "  call 1  ok 200  12+3 tokens  goes on with call 0  not trained on: top_k\n" in out
    assert "    user       wo ist Grüße?\n" in out
    assert "    assistant  hier\n" in out
    assert out.count("wo ist Grüße?") == 1, "what a call goes on with is not said again"
    assert max(map(len, out.splitlines())) <= 120
    assert main(["episodes", "e1", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["call_list"][0]["id"] == "c1"


def test_what_a_user_said_and_what_it_changed(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"episode": "e1", "name": "words", "value": 0, "source": "user", "at": 1e9, "reason": "kürzer"}
    words = {"meta": {"words": "kürzer", "taught": {"c2": -0.256}}, "call": "c2"}
    later = said | {"meta": {"words": "so"}, "name": "thumbs", "value": -1}
    trained, unused = AFTER | {"trainable": True}, later | {"call": "c1"}
    server.on("GET", "/episodes/e1", EPISODE | {"call_list": [CALL, trained], "rewards": [said | words, later, unused]})
    assert main(["episodes", "e1", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("  words by user about call 1 ") and lines[1].endswith("  (call 1 -0.26 nats a token)")
    assert lines[2].strip() == "kürzer"
    assert lines[3].startswith("  words by user about the run ")
    assert lines[3].endswith("  thumbs -1  (not trained on yet)")
    assert lines[5].endswith("  thumbs -1  (trains nothing, see the calls)")
    counts = later | {"name": "reward", "meta": {"words": 37}}
    server.on("GET", "/episodes/e1", EPISODE | {"split": "eval", "call_list": [trained], "rewards": [later, counts]})
    assert main(["episodes", "e1", "--url", server.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("  (never trained on: an evaluation run)") and lines[3].startswith("  reward reward = -1 ")


def test_feedback(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("POST", "/episodes/e1/feedback", {"stored": True, "known": True})
    assert main(["feedback", "e1", "the other Dana", "--call", "c1", "--thumb", "down", "--url", server.url]) == 0
    assert capsys.readouterr().out == "kept\n"
    sent = {"text": "the other Dana", "reply": None, "thumb": "down", "call": "c1", "key": None, "source": None}
    assert server.seen[0].json == sent
    assert main(["feedback", "e1", "--url", server.url]) == 2
    assert "it says nothing; give text, reply (a better one) or thumb" in capsys.readouterr().err


def test_forgetting(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("DELETE", "/episodes/e1", {"id": "e1", "adapters": ["inbox@1", "inbox@2"]})
    server.on("DELETE", "/episodes/e2", {"id": "e2", "adapters": [], "exports": ["export-1"]})
    assert main(["episodes", "e1", "--delete", "--url", server.url]) == 0
    assert main(["episodes", "e2", "--delete", "--url", server.url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "forgotten; trained on it: inbox@1, inbox@2",
        "forgotten; trained on it: nothing; still contained in: export-1",
    ]
    assert main(["episodes", "e1", "--delete", "--json", "--url", server.url]) == 0
    gone = {"id": "e1", "adapters": ["inbox@1", "inbox@2"], "made_from": [], "cases": [], "exports": [], "anew": []}
    assert json.loads(capsys.readouterr().out) == gone | {"steps": []}
    server.seen.clear()
    assert main(["episodes", "--delete", "--url", server.url]) == 2
    assert server.seen == []
    assert "which" in capsys.readouterr().err


def test_a_tag_without_a_value_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["episodes", "--where", "taks=t", "--url", server.url]) == 2
    assert "--where taks=t: write NAME=VALUE, NAME one of task, split" in capsys.readouterr().err
    assert main(["episodes", "--where", "since=soon", "--url", server.url]) == 2
    assert "--where since=soon: write an age" in capsys.readouterr().err
    assert main(["episodes", "--where", "task=a", "--task", "b", "--url", server.url]) == 2
    assert "--where task=a: task is given twice" in capsys.readouterr().err
    assert main(["episodes", "--where", "tag.a=b", "--tag", "a=c", "--url", server.url]) == 2
    assert "the tag a is given twice" in capsys.readouterr().err
    assert main(["episodes", "--where", "reward_min=x", "--url", server.url]) == 2
    assert "--where reward_min=x: 'x' is no number" in capsys.readouterr().err
    assert main(["episodes", "--tag", "user", "--url", server.url]) == 2
    assert capsys.readouterr().err == "slipstream episodes: --tag user: write KEY=VALUE\n"


def test_what_a_change_of_a_set_left_out_is_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*argv: str, **more: object) -> tuple[int, str, str]:
        kept = {"name": "s", "version": 2, "cases": 1, "changed": 1.0} | dict(more.pop("set", {}))  # type: ignore[call-overload]
        server.on("POST", "/cases/s", {"set": kept, "changed": 0} | more)
        return main(["cases", "add", "s", *argv, "--url", server.url]), *capsys.readouterr()

    none = {"version": 0, "cases": 0}
    assert told("e1", "e9", changed=1, unknown=["e9"]) == (
        1,
        "s, version 2: 1 cases (1 in this change)\n",
        "no such episode: e9\n",
    )
    code, out, err = told("e8", "e9", set=none, unknown=["e8", "e9"])
    assert (code, out) == (1, "") and err.splitlines()[1] == "no such episode: e8, e9"
    code, out, err = told("--tag", "team=x", set=none)
    assert (code, out) == (1, "") and "no episode that has ended, with a call, matches the filters" in err
    assert told("e1") == (0, "s, version 2: 1 cases (0 in this change)\n", "")
    waits = "s: the store has no change yet, and takes 250 in a moment\n"
    assert told("e1", set={"version": 1, "cases": 0}, changed=250, coming=250) == (0, waits, "")
    assert main(["cases", "add", "bad name", "e1", "--url", server.url]) == 2
    assert "SET 'bad name': letters, digits" in capsys.readouterr().err
    assert (
        main(["cases", "export", "nosuch", "--out", "x.jsonl", "--url", server.url]) == 1
        and not Path("x.jsonl").exists()
    )


@pytest.mark.parametrize("named", ["run-one", "run-one…77", "run-one-a", "run-one-abc-77"])
def test_an_id_that_a_table_has_cut_opens_its_episode(
    server: Server, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    whole = EPISODE | {"id": "run-one-abc-77"}
    server.on("GET", "/episodes", {"episodes": [whole, EPISODE | {"id": "other"}], "next": None})
    server.on("GET", "/episodes/run-one-abc-77", whole | {"call_list": [], "rewards": []})
    assert main(["episodes", named, "--url", server.url]) == 0
    assert "episode run-one-abc-77" in capsys.readouterr().out
    asked = [seen.path for seen in server.seen if seen.path.endswith("/run-one-abc-77")]
    assert len(asked) == 1, "it is asked for once"


def test_several_ids_that_begin_alike_are_named(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/episodes", {"episodes": [EPISODE | {"id": f"run-{n}"} for n in range(3)], "next": None})
    assert main(["episodes", "run-", "--url", server.url]) == 2
    assert "3 of the newest episodes" in capsys.readouterr().err
    assert main(["episodes", "nobody", "--url", server.url]) == 1
    assert "no GET /episodes/nobody here" in capsys.readouterr().err
