"""The forms of log that can be read. A new one is a module in ``forms`` and a line here."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from slipstream.shared.functions import module_in
from slipstream_chat.report import Place, Refused, Report, Value
from slipstream_imports.records import LogRun
from slipstream_imports.rows import LogRow

FORM_MODULES = {
    "slipstream": "what `slipstream export` wrote",
    "art": "trajectories of OpenPipe ART",
    "otel": "OpenTelemetry spans with GenAI attributes",
    "phoenix": "spans of Phoenix and OpenInference",
    "langsmith": "runs of LangSmith",
    "langfuse": "traces, observations and scores of Langfuse",
    "litellm": "LiteLLM's standard log and spend logs",
    "claude_code": "session files of Claude Code",
    "codex": "session files of Codex",
    "atif": "trajectories of Harbor (ATIF)",
    "nemo_gym": "rollouts of NeMo Gym",
    "mini_swe_agent": "trajectories of mini-swe-agent",
    "tau_bench": "results of tau-bench and tau2-bench",
    "openai_batch": "input and output files of OpenAI's batches",
    "preference": "DPO pairs of OpenAI and TRL",
    "verifiers": "results of verifiers and prime-rl, prompt-completion rows of TRL",
    "sharegpt": "ShareGPT conversations",
    "request": "rows with a request and its response",
    "openai": "conversations with messages, as for fine-tuning",
}
"""Name → what it is. A row is of the first that claims it."""


class Form(Protocol):
    """What each module in ``forms`` has. ``GATHERS_ROWS``: rows that no form claims belong to the run before them."""

    GATHERS_ROWS: bool

    def is_one(self, row: Mapping[str, Value]) -> bool:
        """Whether a row is of this form."""

    def runs(self, rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
        """The episodes of rows that follow each other."""


FORM_ROOMS = ("datasets", "rollouts", "traces")


@functools.cache
def form_of(name: str) -> Form:
    """The module of a form, in whatever room it lies."""
    return importlib.import_module(module_in("slipstream_imports.forms", FORM_ROOMS, name))


def detected(row: Mapping[str, Value]) -> str | None:
    """The form of a row; None: no form claims it."""
    return next((name for name in FORM_MODULES if form_of(name).is_one(row)), None)


ReadRow = Callable[[dict[str, Value], Place], Iterable[LogRun]]
"""The runs that a row says. Raises ``Refused``."""
ReadRows = Callable[[Iterable[LogRow], Report], Iterator[LogRun]]


def each(read: ReadRow) -> ReadRows:
    """A form's ``runs``, where rows stand for themselves. A row that cannot be read is told to the report."""

    def runs(rows: Iterable[LogRow], report: Report) -> Iterator[LogRun]:
        for row in rows:
            place = Place(report, row.where)
            found: list[LogRun] = []
            with guarded(place):
                found = list(read(row.value, place))
            for run in found:
                run.share, run.file, run.row = row.share, row.file, row.number
            yield from found

    return runs


@contextlib.contextmanager
def guarded(place: Place) -> Iterator[None]:
    """What cannot be read in here is told to the report, and no more. A row that is refused is counted once."""
    report = place.report
    before = report.dropped.copy(), report.converted.copy(), report.first.copy()
    try:
        yield
        return
    except Refused as e:
        report.refuse(place.where, e)
    except RecursionError:
        report.refuse(place.where, "its values are nested too deeply")
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as e:
        report.refuse(place.where, f"it is not as its form has it: {e!r:.200}")
    report.dropped, report.converted, report.first = before
