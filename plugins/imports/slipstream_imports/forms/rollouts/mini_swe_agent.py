"""Trajectories of mini-swe-agent: a file is one run on one instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.messages import Message, expand, with_ids
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping, text_of
from slipstream_imports.fields import rewards_in
from slipstream_imports.records import LogRun, Talk, Told
from slipstream_imports.registry import each
from slipstream_imports.traces import usage_of

GATHERS_ROWS = False
EXIT_ROLE = "exit"
"""The role of the program's own last word."""
READ_FIELDS = ("info", "messages", "trajectory_format", "instance_id", "reward", "rewards", "metrics")


def is_one(row: Mapping[str, Value]) -> bool:
    info = mapping(row.get("info"))
    own = str(row.get("trajectory_format") or "").startswith("mini-swe-agent") or "mini_version" in info
    return own and "messages" in row


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    info = mapping(row.get("info"))
    settings = mapping(mapping(info.get("config")).get("model"))
    instance = first(row, "instance_id") or info.get("instance_id")
    run = LogRun(place.where, task=text_of(instance) if instance else None)
    model = settings.get("model_name") or info.get("model_name")
    run.model = text_of(model) if model else None
    stats = mapping(info.get("model_stats"))
    run.tags = {name: info.get(name) for name in ("exit_status", "mini_version")}
    run.tags |= {"instance_id": instance, "cost": stats.get("instance_cost")}
    run.reward, run.metrics = rewards_in(row, place)
    if info.get("submission"):
        place.drop("field info.submission", "it stands in the last messages, too")
    for name in row.keys() - set(READ_FIELDS):
        if row[name] not in (None, "", [], {}):
            place.drop(f"field {name}", "an episode has no such field; put it under reward or metrics")
    run.talks = [_talk(listed(row.get("messages")), place)]
    yield run


def _talk(items: list[Value], place: Place) -> Talk:
    messages: list[Message] = []
    replies: dict[int, Told] = {}
    for item in map(mapping, items):
        if item.get("role") == EXIT_ROLE:
            continue
        extra = mapping(item.pop("extra", None))
        for message in expand(item, "user", place):
            if message["role"] == "assistant":
                response = mapping(extra.get("response"))
                at = place.time(first(extra, "timestamp") or item.get("timestamp"), "timestamp")
                model = response.get("model")
                counts = usage_of(response.get("usage"))
                replies[len(messages)] = Told(at, None, *counts, text_of(model) if model else None)
            messages.append(message)
    if not messages:
        raise Refused("a list that is not empty is needed", "messages")
    return Talk(with_ids(messages), replies)
