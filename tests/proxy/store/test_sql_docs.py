"""docs/sql.md: every question has an answer, on either database, and the columns are those that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.records import NOW, call, group, mutation, reward

from slipstream.contract import Adapter
from slipstream_proxy.store.tables.schema import VIEW_NAMES

TEXT = (Path(__file__).parents[3] / "docs" / "sql.md").read_text()
QUESTIONS = re.findall(r"(?m)^(\d+)\. (.+)\n +`(select [^`]+)`$", TEXT)


def test_eleven_questions_and_their_answers(store):
    gone = Adapter(
        name="m@1", model="m", version=1, state="rolled_back", reason="worse than m", created=NOW, path="m@1"
    )
    failed = call("f", task="t", outcome="error", status=500, error="boom", at=NOW + 50)
    judged = [reward("t-0", 0.5, source="judge", name="judge"), reward("t-1", 0.5, source="judge", name="judge")]
    records = [*group("t", 4), failed, *judged, mutation("adapter", gone.model_dump(mode="json"))]
    store.ingest(records, {})
    assert [int(n) for n, _, _ in QUESTIONS] == list(range(1, 12))
    said = {int(n): store.sql(query, 100, 30.0) for n, _, query in QUESTIONS}
    assert said[1].rows == [["m", "train", 2.5, 4]]
    assert said[2].rows == [["t", 2.5, 5]]  # the episode without a reward is counted, and is no zero
    assert len(said[3].rows) == 5
    assert said[4].rows == [["error", 1]]
    assert said[5].rows == [["m", 0.5, 0.5, 5]]
    assert [row[1:] for row in said[6].rows] == [["f", 500, "error", "boom"]]
    assert said[7].rows == [["agent", "reward", 2.5, 4], ["judge", "judge", 0.5, 2]]
    assert said[8].rows == [[0.5, 1.5, 2]]
    assert said[9].rows == [["m", 15, 15]]
    assert said[10].rows == [["m@1", "rolled_back", "worse than m"]]
    assert [(number, kind, role) for number, kind, role, _ in said[11].rows][-1] == (0, "reply", "assistant")


def test_columns_are_as_told(store):
    for view in VIEW_NAMES:
        (told,) = re.findall(rf"(?m)^\| `{view}` \| (.+) \|$", TEXT)
        assert store.sql(f"select * from {view}", 1, 30.0).columns == re.findall(r"`(\w+)`", told), view


def test_each_message_stands_once(store):
    """Ten calls of a growing history: what a call repeats is not repeated in the view."""
    history: list[dict[str, object]] = [{"role": "system", "content": "be \u0000 brief"}]
    records = []
    for n in range(10):
        history = [*history, {"role": "user", "content": f"question {n}"}]
        answer: dict[str, object] = {"role": "assistant", "content": f"answer {n}"}
        records.append(
            call(
                "long", messages=history, prompt=[*range(5 * n + 5)], choices=[(answer, [900 + n], [-1.0])], at=NOW + n
            )
        )
        history = [*history, answer]
    store.ingest(records, {})
    query = "select number, kind, nth, role, message from messages order by number, kind, nth"
    rows = store.sql(query, 100, 30.0).rows
    assert [json.loads(row[4]) for row in rows] == history
    assert [row[3] for row in rows] == [m["role"] for m in history]
    assert rows[0][:3] == [0, "prompt", 1]
    assert rows[-1][:3] == [9, "reply", 1]
