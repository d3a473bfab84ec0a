"""Trajectories of mini-swe-agent, with the text of commands and with tool calls."""

from __future__ import annotations

import pytest
from tests.support.logs import USE, read, replied

INFO = {
    "exit_status": "Submitted", "submission": "diff", "model_stats": {"instance_cost": 0.25, "api_calls": 2},
    "mini_version": "2.0", "config": {"model": {"model_name": "openai/gpt-5.6"}},
}  # fmt: skip
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
ASKED = [{"role": "system", "content": "s"}, {"role": "user", "content": "fix it"}]
LAST = {"role": "assistant", "content": "done", "extra": {"response": {"model": "gpt-5.6-x", "usage": USAGE}}}


@pytest.mark.parametrize(
    "step",
    [
        [{"role": "assistant", "content": "```bash\nls\n```"}, {"role": "user", "content": "x"}],
        [{**USE, "extra": {"timestamp": 1770000000.5}}, {"role": "tool", "tool_call_id": "c1", "content": "x"}],
    ],
)
def test_instance_and_model_are_kept(tmp_path, step):
    told = [*ASKED, *step, LAST, {"role": "exit", "content": "diff"}]
    row = {"trajectory_format": "mini-swe-agent-1.1", "instance_id": "django__django-1", "info": INFO, "messages": told}
    (body,), report = read(tmp_path, row)
    assert (body["task"], body["model"]) == ("django__django-1", "openai/gpt-5.6")
    assert body["tags"] == {
        "instance_id": "django__django-1", "exit_status": "Submitted", "mini_version": "2.0", "cost": "0.25",
    }  # fmt: skip
    assert len(replied(body)) == 2 and body["messages"][-1]["content"] == "done"
    assert body["replies"][1] == {"message": 4, "model": "gpt-5.6-x", **USAGE}
    assert [what for what, _ in report.dropped] == ["field info.submission"]


def test_a_run_without_an_instance_has_its_file(tmp_path):
    (body,), report = read(tmp_path, {"info": {"mini_version": "1.0"}, "messages": [*ASKED, LAST], "more": 1})
    assert body["task"] is None and [what for what, _ in report.dropped] == ["field more"]
