"""OpenAI's batches."""

from __future__ import annotations

from tests.support.logs import ASK, END, replied, taken, written

ASKED = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [ASK]}}
DONE = {
    "id": "r",
    "custom_id": "a",
    "response": {"status_code": 200, "body": {"choices": [{"message": END}]}},
    "error": None,
}


def test_requests_and_answers_of_two_files(tmp_path):
    files = written(tmp_path, ASKED, name="in.jsonl"), written(tmp_path, DONE, name="out.jsonl")
    (body,), report = taken(*files)
    assert replied(body) == [END] and report.clean


def test_an_answer_without_its_request_says_what_to_do(tmp_path):
    for row in (DONE, ASKED):
        bodies, report = taken(written(tmp_path, row))
        assert not bodies and "is missing" in report.refused[0]
    failed = {**DONE, "response": None, "error": {"message": "expired"}}
    assert "expired" in taken(written(tmp_path, ASKED, failed))[1].refused[0]
