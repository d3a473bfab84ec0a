"""Pairs for DPO."""

from __future__ import annotations

from tests.support.logs import ASK, END, read, replied

BAD = {"role": "assistant", "content": "no"}


def test_whole_conversations_share_a_beginning(tmp_path):
    bodies, _ = read(tmp_path, {"chosen": [ASK, END], "rejected": [ASK, BAD]})
    assert [(replied(b)[0]["content"], b["reward"]) for b in bodies] == [("done", 1.0), ("no", 0.0)]
    assert bodies[0]["task"] == bodies[1]["task"] and bodies[0]["id"] != bodies[1]["id"]


def test_texts_and_scores(tmp_path):
    bodies, report = read(
        tmp_path, {"prompt": "hi", "chosen": "done", "rejected": "no", "score_chosen": 8, "score_rejected": 2.5}
    )
    assert [b["reward"] for b in bodies] == [8.0, 2.5] and report.clean
    assert "no prompt" in read(tmp_path, {"chosen": "a", "rejected": "b"})[1].refused[0]
