"""OpenPipe ART: a line of JSON is a group of runs of one task; in Parquet a row is a run, and its group a column."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

from slipstream_chat.report import Place, Refused, Report, Value
from slipstream_chat.values import listed, mapping
from slipstream_imports.fields import described, names_in
from slipstream_imports.forms.datasets.openai import talk_of
from slipstream_imports.records import LogRun, digest
from slipstream_imports.registry import each
from slipstream_imports.rows import LogRow

GATHERS_ROWS = False
UNREAD_FIELDS = ("logs", "exceptions", "group_index", "trajectories")


def is_one(row: Mapping[str, Value]) -> bool:
    return "trajectories" in row or row.get("group_index") is not None


def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
    return trajectories(_together(rows), report)


def _together(rows: Iterable[LogRow]) -> Iterator[LogRow]:
    """The rows of a group follow each other; they are given together, as ART's JSON lines have them."""
    for index, part in itertools.groupby(rows, lambda row: row.value.get("group_index")):
        if index is None:
            yield from part
            continue
        group = list(part)
        about = group[0].value.get("group_metadata")
        yield group[-1]._replace(value={"trajectories": [row.value for row in group], "metadata": about})


@each
def trajectories(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    """A run is an episode with its histories."""
    group = row["trajectories"]
    if not isinstance(group, list) or not all(isinstance(run, dict) for run in group):
        raise Refused("trajectories is no list of objects")
    name = digest("group", [run.get("messages_and_choices", run.get("messages")) for run in group])
    shared = names_in(row.get("metadata"), "metadata")
    for number, told in enumerate(group):
        run_place = Place(place.report, f"{place.where}: trajectory {number}")
        own = {**told, "metadata": {**shared, **names_in(told.get("metadata"), "metadata")}}
        run = described(own, run_place, read=UNREAD_FIELDS)
        run.task = run.task or f"group-{name}"
        run.talks = [talk_of(own, run_place)]
        run.talks += [talk_of({**own, **mapping(h)}, run_place) for h in listed(told.get("additional_histories"))]
        yield run
    if row.get("exceptions"):
        place.drop("exceptions", "runs that failed have no messages")
