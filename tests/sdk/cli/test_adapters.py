from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.replayed import recorded
from tests.support.server import Server

from slipstream.cli import main
from slipstream.config import Config
from slipstream_replay.cases import json_line
from slipstream_trainer.run import export_training

ADAPTER = {
    "name": "inbox@1",
    "model": "inbox",
    "version": 1,
    "state": "live",
    "created": 1e9,
    "path": "inbox@1",
    "step": 0,
    "episodes": 3,
}
REFUSED = ADAPTER | {"name": "inbox@2", "version": 2, "state": "refused", "reason": "rank 64 is above 16", "step": None}


def test_a_list(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER, REFUSED], "live": {"inbox": "inbox@1"}})
    for args in ([], ["list"]):
        assert main(["adapters", "--url", server.url, *args]) == 0
        live, header, first, second = capsys.readouterr().out.splitlines()
        assert live == "inbox: new episodes get inbox@1"
        assert header.startswith("adapter  state")
        assert first.split()[:5] == ["inbox@1", "live", "0", "-", "3"]
        assert second.split()[:4] == ["inbox@2", "refused", "-", "-"]
        assert second.endswith("rank 64 is above 16")
    assert main(["adapters", "--url", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["live"] == {"inbox": "inbox@1"}


@pytest.mark.parametrize("held_out", [True, False])
def test_the_list_has_each_versions_reward_and_fits_a_terminal(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, held_out: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = REFUSED | {"name": f"a-long-model-name-{'x' * 40}@2", "reason": "rank 64 is above 16, " * 9}
    server.on("GET", "/adapters", {"adapters": [ADAPTER, long], "live": {}})
    point = {"adapter": "inbox@1", "version": 1, "start": 1.0, "end": 2.0, "n": 9, "success": 1.0}
    point |= {"success_low": 0.7, "success_high": 1.0}
    points = [point | {"series": "live", "mean": 0.5, "low": 0.25, "high": 0.75}]
    points += [point | {"series": "held-out", "mean": 0.89, "low": 0.6, "high": 0.97}] if held_out else []
    server.on("GET", "/learning", {"points": points, "success_from": 0.5})
    assert main(["adapters", "--url", server.url]) == 0
    header, first, second, note = capsys.readouterr().out.splitlines()
    assert header.split() == ["adapter", "state", "step", "reward", "open", "age", "why"]
    assert ("0.89 (0.60 to 0.97)" if held_out else "0.50 (0.25 to 0.75)") in first
    assert max(map(len, (header, first, second, note))) <= 80 and second.endswith("…")
    assert note.startswith(f"reward: the mean of {'held-out' if held_out else 'live'} runs (95 % interval)")


def test_the_list_takes_the_runs_that_more_versions_have(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER], "live": {}})
    point = {"start": 1.0, "end": 2.0, "n": 9, "success": 1.0, "success_low": 0.7, "success_high": 1.0}
    point |= {"mean": 0.5, "low": 0.25, "high": 0.75}
    points = [point | {"adapter": f"inbox@{v}", "version": v, "series": "live"} for v in (1, 2, 3)]
    points += [points[2] | {"series": "held-out"}]
    server.on("GET", "/learning", {"points": points, "success_from": 0.5})
    assert main(["adapters", "--url", server.url]) == 0
    assert "reward: the mean of live runs" in capsys.readouterr().out


def test_who_gets_a_canary(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    gate = {"gets": "1% of new runs get inbox@2 (stage 1 of 2)"}
    tried = ADAPTER | {"name": "inbox@2", "version": 2, "state": "candidate", "gate": gate}
    server.on("GET", "/adapters", {"adapters": [ADAPTER, tried], "live": {"inbox": "inbox@1"}})
    assert main(["adapters", "--url", server.url]) == 0
    assert capsys.readouterr().out.startswith(f"inbox: new episodes get inbox@1, but {gate['gets']}\n")


def test_those_since(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER, REFUSED | {"created": 2e9}], "live": {}})
    assert main(["adapters", "list", "--since", "2026-05-01", "--json", "--url", server.url]) == 0
    assert [a["name"] for a in json.loads(capsys.readouterr().out)["adapters"]] == ["inbox@2"]
    assert main(["adapters", "--since", "lately", "--url", server.url]) == 2
    assert "--since lately: write an age" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["promote", "demote", "freeze", "unfreeze"])
def test_the_gate_by_hand_says_what_will_happen_before_it_does(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    effect = {"adapter": "inbox@1", "action": action, "says": ["The trial of inbox@2 ends.", "New runs get it."]}
    server.on("GET", "/adapters/inbox@1/effect", effect)
    server.on("POST", f"/adapters/inbox@1/{action}", ADAPTER)
    said = "The trial of inbox@2 ends.\nNew runs get it.\n"
    assert main(["adapters", "--url", server.url, action, "inbox@1", "--dry-run"]) == 0
    assert capsys.readouterr().out == said and [r.method for r in server.seen] == ["GET"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    assert main(["adapters", "--url", server.url, action, "inbox@1"]) == 1
    assert capsys.readouterr().out == said and [r.method for r in server.seen] == ["GET", "GET"]
    assert main(["adapters", "--url", server.url, action, "inbox@1", "--reason", "I say so", "--yes"]) == 0
    assert capsys.readouterr().out == said + "inbox@1: live\n"
    assert server.seen[-1].json == {"reason": "I say so"}
    assert main(["adapters", "--json", "--url", server.url, action, "inbox@1"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "inbox@1"


def test_push(server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    server.on("GET", "/adapters", {"adapters": [ADAPTER], "live": {}})
    source = tmp_path / "adapters" / "inbox@1"
    source.mkdir(parents=True)
    (source / "adapter_config.json").write_text("{}")
    common = ["adapters", "--url", server.url, "--set", f"adapters.dir={source.parent}"]
    assert main([*common, "push", "1", "--to", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/out/inbox@1\n"
    assert (tmp_path / "out/inbox@1/README.md").is_file()
    assert main([*common, "push", "1", "--to", str(tmp_path / "out")]) == 1
    assert "is there already" in capsys.readouterr().err


@pytest.fixture
def trained(server: Server) -> Server:
    """Three versions, each made from the one before, of a batch each; ``e2`` was forgotten."""
    made = [
        ADAPTER | {"name": f"inbox@{n}", "version": n, "batches": [f"b{n}"], "parent": f"inbox@{n - 1}"}
        for n in (1, 2, 3)
    ]
    server.on("GET", "/adapters", {"adapters": made, "live": {"inbox": "inbox@3"}})
    for n in (1, 2, 3):
        links = [{"episode": f"e{k}", "key": "-", "group": "g"} for k in (n, n + 1)]
        server.on(
            "GET",
            f"/batches/b{n}",
            {"id": f"b{n}", "model": "inbox", "state": "trained", "created": 1.0, "groups": ["g"], "episodes": links},
        )
    for n in (1, 3, 4):
        lineage = [{"batch": f"b{k}", "outcome": "trained", "adapter": f"inbox@{k}"} for k in (n - 1, n) if 0 < k < 4]
        server.on("GET", f"/episodes/e{n}", json.loads(json_line(recorded(f"e{n}"))) | {"lineage": lineage})
    Path("slipstream.toml").write_text("data_dir = 'data'\n[engine]\nname = 'inbox'\n")
    return server


def test_a_version_is_trained_anew_without_some_episodes(
    trained: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str | None, list[str]]] = []

    def train(config: Config, *, from_export: Path, **_: object) -> int:
        seen.append((config.trainer.init_adapter, [json.loads(x)["id"] for x in from_export.read_text().splitlines()]))
        return 0

    monkeypatch.setattr(export_training, "train", train)
    argv = ["adapters", "retrain", "--offline", "--url", trained.url]
    assert main([*argv, "--without", "e3"]) == 2  # first trained into the second version: what was before it is needed
    assert "inbox@1: the files of the version before inbox@2 are gone" in capsys.readouterr().err
    Path("data/adapters/inbox@1").mkdir(parents=True)
    assert main([*argv, "--without", "e3"]) == 0
    assert seen == [(str(Path("data/adapters/inbox@1").resolve()), ["e4"])]
    said = capsys.readouterr().out
    assert said == "inbox@2 to inbox@3 anew from inbox@1: 1 episodes of 2 batches (1 left out, 1 forgotten)\n"
    assert main([*argv, "1", "--dry-run", "--json"]) == 0 and len(seen) == 1
    assert json.loads(capsys.readouterr().out) == {
        "first": "inbox@1", "last": "inbox@3", "start": "the base model", "batches": ["b1", "b2", "b3"], "episodes": 3, "left_out": [],
        "forgotten": 1,
    }  # fmt: skip
    assert main(argv) == 2 and "give a version, or --without" in capsys.readouterr().err


def test_the_running_trainer_trains_anew(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"adapters": ["inbox@2", "inbox@3"], "start": "inbox@1", "groups": 2, "passes": 2, "episodes": 5, "corrected": 0,
            "left_out": {"named": 1}}  # fmt: skip
    server.on("POST", "/training/anew", plan)
    argv = ["adapters", "retrain", "--url", server.url]
    assert main([*argv, "--without", "e3", "--dry-run"]) == 0
    assert server.seen[-1].json == {"adapter": None, "without": ["e3"], "dry_run": True}
    assert capsys.readouterr().out == (
        "inbox@2, inbox@3 would be taken back; new runs get inbox@1, and training goes on from it\n"
        "2 groups of 5 episodes would be trained on anew, 1 left out (named)\n"
    )


def test_a_replay_for_people(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    pair = {"set": "s", "episode": "e1", "key": "-", "call": 2, "question": "tool calls", "candidate": 0.25, "control": 1.0,
            "prompt": "task", "candidate_reply": "no\x1b", "control_reply": "yes"}  # fmt: skip
    question = {"set": "s", "question": "tool calls", "verdict": "worse", "cases": 40, "candidate": 0.5, "control": 0.9,
                "visible": 0.1, "evidence": 999.0, "threshold": 600.0}  # fmt: skip
    replay = {"outcome": "refused", "reason": "worse", "control": "inbox", "questions": [question], "tokens": 1200}
    server.on(
        "GET",
        "/adapters/inbox@2/replay",
        {"adapter": "inbox@2", "replay": replay, "worst": [pair], "limits": "Steps alone."},
    )
    assert main(["adapters", "replay", "inbox@2", "--url", server.url]) == 0
    said = capsys.readouterr().out
    assert "inbox@2: refused (worse); 1,200 tokens" in said and "\x1b" not in said and said.endswith("Steps alone.\n")
    assert "e1, call 2 (s, tool calls): 0.25 against 1.00" in said
    server.on("GET", "/adapters/inbox@1/replay", {"adapter": "inbox@1", "replay": None})
    assert main(["adapters", "replay", "inbox@1", "--url", server.url]) == 0
    assert "was not replayed" in capsys.readouterr().out
