"""Rows with a prompt and a completion: results of verifiers and prime-rl, and TRL's rows and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.inputs import messages_of, tool_of
from slipstream_chat.messages import with_ids
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping, parsed
from slipstream_imports.fields import ROW_FIELDS, described, numbers_in
from slipstream_imports.forms.datasets.openai import tools_in
from slipstream_imports.records import LogRun, Talk, Told, digest
from slipstream_imports.registry import each
from slipstream_imports.traces import usage_of

GATHERS_ROWS = False
LABEL_FIELDS = (
    "answer",
    "example_id",
    "step",
    "env_id",
    "info",
    "stop_condition",
    "rollout_id",
    "error",
    "is_completed",
    "is_truncated",
    "sampling_args",
)
TIME_FIELDS = ("timing", "generation_ms", "scoring_ms", "total_ms", "start_time", "token_usage", "usage")
READ_FIELDS = (
    *LABEL_FIELDS,
    *TIME_FIELDS,
    "completions",
    "label",
    "oai_tools",
    "tool_defs",
    "state",
    "trajectory",
    "advantage",
    "advantages",
    "prompt_ids",
    "completion_ids",
    "completion_mask",
    "completion_logprobs",
    "logprobs",
)


def is_one(row: Mapping[str, Value]) -> bool:
    return "prompt" in row and ("completion" in row or "completions" in row)


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    for own in _rows(row):
        yield _run(own, place)


def _rows(row: dict[str, Value]) -> Iterator[dict[str, Value]]:
    """One row each: of columns that hold all rollouts, and of a prompt with several completions."""
    completions = listed(row.get("completions", row.get("completion")))
    columns = isinstance(parsed(row["prompt"]), list) and all(
        isinstance(parsed(p), list | str) for p in listed(row["prompt"])
    )
    whole_columns = columns and all(isinstance(c, list) for c in completions)
    if not completions or not ("completions" in row or whole_columns):
        yield row
        return
    count = len(completions)
    for n, completion in enumerate(completions):
        own = {
            k: v[n] for k, v in row.items() if isinstance(v, list) and len(v) == count and k not in ("prompt", "tools")
        }
        prompt = listed(row["prompt"])[n] if columns and len(listed(row["prompt"])) == count else row["prompt"]
        rest = {k: v for k, v in row.items() if k not in own}
        if (named := mapping(row.get("metrics"))) and all(len(listed(v)) == count for v in named.values()):
            own["metrics"] = {k: listed(v)[n] for k, v in named.items()}
        if "rewards" in own:
            own["reward"] = own.pop("rewards")
        made = {k: v for k, v in {**rest, **own}.items() if k != "completions"}
        yield made | {"prompt": prompt, "completion": completion}


def _run(row: dict[str, Value], place: Place) -> LogRun:
    run = described(row, place, read=[*READ_FIELDS, *(k for k, v in row.items() if isinstance(v, bool | int | float))])
    prompt = messages_of(row["prompt"], "user", place)
    completion = messages_of(row["completion"], "assistant", place)
    if not prompt or not completion:
        raise Refused("a prompt and a completion are needed", "completion" if prompt else "prompt")
    example = first(row, "example_id", "task_id")
    if example is not None:
        run.task = f"{run.task or row.get('env_id') or 'example'}-{example}"
    run.task = run.task or f"prompt-{digest(prompt)}"
    run.metrics = {**numbers_in(row, (*ROW_FIELDS, *READ_FIELDS), place), **run.metrics}
    if run.reward is None and (label := row.get("label")) is not None:
        run.reward = float(label) if isinstance(label, bool) else place.score(label, "label")
    run.tags |= {k: v for k in LABEL_FIELDS if isinstance(v := row.get(k), str | int | float) and v != ""}
    for name in ("info", "state", "trajectory", "completion_ids", "completion_logprobs", "logprobs"):
        if row.get(name) not in (None, "", [], {}, "{}"):
            place.drop(f"field {name}", "an import takes text, rewards and tags")
    whole = with_ids([*prompt, *completion])
    tools = tools_in(row) or [tool_of(t) for t in listed(first(row, "oai_tools", "tool_defs"))] or None
    replies = [i for i in range(len(prompt), len(whole)) if whole[i]["role"] == "assistant"]
    run.talks = [Talk(whole, {i: Told() for i in replies}, tools)]
    if len(replies) == 1:
        told = run.talks[0].replies[replies[0]]
        took = first(row, "generation_ms") or first(mapping(row.get("timing")), "generation_ms")
        if isinstance(took, int | float):
            told.seconds = max(0.0, took) / 1000.0
        told.prompt_tokens, told.completion_tokens = usage_of(first(row, "token_usage", "usage"))
    return run
