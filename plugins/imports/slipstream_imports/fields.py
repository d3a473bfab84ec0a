"""What rows say of an episode beside its messages: names, task, tags, rewards, times."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, parsed
from slipstream_imports.records import LogRun

IMPORTED_SPLITS = ("train", "eval")
ROW_FIELDS = frozenset(
    [
        "id",
        "episode",
        "task",
        "scenario_id",
        "split",
        "model",
        "at",
        "reward",
        "rewards",
        "metrics",
        "tags",
        "metadata",
        "messages",
        "messages_and_choices",
        "tools",
        "functions",
        "parallel_tool_calls",
        "request",
        "response",
        "prompt",
        "completion",
        "conversations",
        "group_index",
        "group_metadata",
        "additional_histories",
        "tool_choice",
    ]
)
"""Fields that ``described`` or the forms of rows read."""


def json_in(value: Value, field: str) -> Value:
    """What is written as JSON in a text column, read; the rest as it is. Raises ``Refused``."""
    if not isinstance(value, str):
        return value
    try:
        read: Value = json.loads(value)
    except (ValueError, RecursionError) as e:
        raise Refused(f"not JSON: {e}", field) from e
    return read


def names_in(value: Value, field: str) -> dict[str, Value]:
    """A mapping, whether it is written as JSON, as a struct or as Arrow's list of pairs. Raises ``Refused``."""
    value = json_in(value, field) if value else {}
    try:
        if isinstance(value, Mapping):
            return {str(k): v for k, v in value.items()}
        if not isinstance(value, list):
            raise TypeError
        return {str(k): v for k, v in value}
    except (TypeError, ValueError) as e:
        raise Refused("names and values are needed", field) from e


def labels_in(value: Value, field: str) -> dict[str, Value]:
    """Tags, of an object or of a list of words."""
    value = parsed(value)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return dict.fromkeys(value, "yes")
    if isinstance(value, str):
        return {value: "yes"} if value else {}
    return names_in(value, field)


def described(row: Mapping[str, Value], place: Place, *, read: Iterable[str] = ()) -> LogRun:
    """An episode without its talks. ``read``: more fields that the caller reads. Raises ``Refused``, naming a field."""
    metadata = names_in(row.get("metadata"), "metadata")
    ident, split = first(row, "id", "episode"), row.get("split") or "train"
    task = row.get("task") or row.get("scenario_id") or metadata.get("scenario_id") or metadata.get("task")
    if split not in IMPORTED_SPLITS:
        if split not in ("test", "validation", "dev", "val"):
            raise Refused(f"train or eval is needed, this is {split!r:.40}", "split")
        place.convert("split", f"{split} is read as eval")
        split = "eval"
    run = LogRun(
        place.where,
        None if ident in (None, "") else str(ident),
        None if task in (None, "") else _name(task),
        str(split),
    )
    model = row.get("model")
    run.model = model if isinstance(model, str) and model else None
    run.tags = {**metadata, **labels_in(row.get("tags"), "tags")}
    run.reward, run.metrics = rewards_in(row, place)
    if row.get("at") not in (None, ""):
        run.at = place.time(row["at"], "at")
        if run.at is None:
            raise Refused("a time is needed: ISO 8601, or seconds since the epoch", "at")
        if isinstance(row["at"], str):
            place.convert("at", "a date is read as seconds since the epoch")
    for name in row.keys() - ROW_FIELDS - set(read):
        if row[name] not in (None, "", [], {}):
            place.drop(f"field {name}", "an episode has no such field; put it under tags or metrics")
    return run


def _name(value: Value) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def rewards_in(row: Mapping[str, Value], place: Place) -> tuple[float | None, dict[str, float]]:
    """The reward, and the other ones by name. Raises ``Refused`` if the reward is none."""
    value = row.get("reward")
    reward = None if value is None else place.number(value, "reward")
    metrics: dict[str, float] = {}
    several = row.get("rewards")
    if isinstance(several, bool | int | float) and value is None:
        several = {"reward": several}
    for name, number in {**names_in(row.get("metrics"), "metrics"), **names_in(several, "rewards")}.items():
        if name == "reward" and reward is not None:
            continue
        read = place.score(number, f"metrics.{name}")
        if read is not None and name == "reward":
            reward = read
        elif read is not None:
            metrics[name] = read
    return reward, metrics


def numbers_in(row: Mapping[str, Value], known: Iterable[str], place: Place) -> dict[str, float]:
    """Columns that are numbers and no known field: rewards of their own."""
    found: dict[str, float] = {}
    for name in row.keys() - set(known):
        value = row[name]
        if isinstance(value, bool | int | float) and (read := place.score(value, name)) is not None:
            found[str(name)] = read
    return found
