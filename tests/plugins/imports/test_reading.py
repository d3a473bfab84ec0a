"""Files of every known form, with counts that the importer did not make; and any JSON at all."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.log_corpus.files import files
from tests.support.logs import ASK, END, read, taken

from slipstream_chat.report import Report
from slipstream_imports.registry import FORM_MODULES, form_of
from slipstream_imports.rows import LogRow
from slipstream_imports.upload import entry_of

CORPUS = list(files())


@pytest.mark.parametrize("file", CORPUS, ids=lambda f: f.name)
def test_all_that_a_file_holds_comes_in_or_is_told(tmp_path, file):
    path = tmp_path / file.name
    path.write_bytes(file.data)
    bodies, report = taken(path)
    assert (report.episodes, report.calls, report.tool_calls, report.rewards, len(report.refused)) == file.held
    json.dumps(bodies, allow_nan=False)


def test_each_form_has_files():
    assert {f.form for f in CORPUS} | {"slipstream"} == set(FORM_MODULES)
    assert len(CORPUS) >= 60


def test_forms_may_be_mixed_and_an_unknown_row_is_named(tmp_path):
    rows = (
        {"messages": [ASK, END]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"x": 1},
    )
    bodies, report = read(tmp_path, *rows)
    assert len(bodies) == 2
    assert report.refused[0].endswith("log.jsonl:3: no messages (nor request and response); its fields: x")


@pytest.mark.parametrize("letter", ["é", "í"])
def test_a_list_in_another_encoding_is_refused_at_its_line_and_nothing_is_guessed(tmp_path, letter: str):
    rows = [{"messages": [ASK, END]}, {"messages": [ASK, {"role": "assistant", "content": f"aqu{letter}"}]}]
    path = tmp_path / "log.json"
    path.write_bytes(json.dumps(rows, indent=1, ensure_ascii=False).encode("latin-1"))
    bodies, report = taken(path)
    assert len(bodies) == 1
    assert report.refused and f"byte {letter.encode('latin-1')[0]:#04x} is no UTF-8" in report.refused[0]
    assert report.refused[0].startswith(f"{path}:")


NAMES = [
    "id", "traceId", "type", "input", "output", "observations", "role", "content", "messages", "attributes", "llm.input_messages", "message.role",
    "span_kind", "context.trace_id", "spans", "resourceSpans", "key", "value", "stringValue", "intValue", "events", "name", "0", "parts", "trace",
    "run_type", "inputs", "outputs", "call_type", "response", "uuid", "message", "payload", "steps", "source", "traj", "task_id", "body", "custom_id",
    "chosen", "rejected", "prompt", "completion", "conversations", "from", "request", "reward", "tool_calls", "function", "arguments", "call_list",
    "trajectories", "scores", "responses_create_params", "schema_version", "usage", "metadata", "tags",
]  # fmt: skip
LEAF = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["GENERATION", "assistant", "user", "ATIF-v1", "llm", "[", '{"a": 1}', "message"])
)
JSON = st.recursive(
    LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=20,
)


@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6), max_size=3), st.sampled_from(list(FORM_MODULES))
)
def test_any_json_is_read_or_refused(rows, name):
    form, report = form_of(name), Report()
    for row in rows:
        form.is_one(row)
    for run in form.runs((LogRow(f"f:{n}", row, 1.0) for n, row in enumerate(rows)), report):
        if run.whole is None and (entry := entry_of(run, "t", report)) is not None:
            assert entry.bodies[0]["messages"] and json.dumps(entry.bodies)
