"""OpenAI's batches: the input file has the requests, the output file the responses. Both are needed, in one import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from slipstream_chat.report import Place, Refused, Report, Value
from slipstream_chat.values import mapping
from slipstream_imports.forms.traces.request import asked, body_of
from slipstream_imports.records import LogRun
from slipstream_imports.registry import guarded
from slipstream_imports.rows import LogRow

GATHERS_ROWS = True


def is_one(row: Mapping[str, Value]) -> bool:
    return "custom_id" in row and ("body" in row or "response" in row or "error" in row)


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    """A run for each answer, named by its ``custom_id``."""
    requests: dict[str, LogRow] = {}
    responses: dict[str, LogRow] = {}
    for row in rows:
        known = requests if "body" in row.value else responses
        name = str(row.value.get("custom_id"))
        if name in known:
            report.refuse(row.where, f"custom_id: {name} stands twice")
        known.setdefault(name, row)
        if isinstance(row.value.get("body"), Mapping) and isinstance(row.value.get("response"), Mapping):
            responses.setdefault(name, row)
    for name, row in responses.items():
        place = Place(report, row.where)
        with guarded(place):
            if name not in requests:
                raise Refused(
                    "its request is missing: give the batch's input file, too (import input.jsonl output.jsonl)"
                )
            if row.value.get("error"):
                raise Refused(f"the request failed: {mapping(row.value['error']).get('message')}", "error")
            call = asked(
                body_of(requests[name].value["body"], "body"), body_of(row.value.get("response"), "response"), place
            )
            ident = row.value.get("id")
            run = LogRun(place.where, f"batch-{ident}-{name}" if ident else None, tags={"custom_id": name})
            run.model, run.share, run.file, run.row = call.told.model, row.share, row.file, row.number
            run.calls = [call]
            yield run
    for name in requests.keys() - responses.keys():
        report.refuse(requests[name].where, "the request's answer is missing: import the batch's output file with it")
