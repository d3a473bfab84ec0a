"""Results of tau-bench (``traj``) and tau2-bench (``simulations``). What the user's side did with tools is left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.messages import Message, expand
from slipstream_chat.report import Place, Value
from slipstream_chat.values import first, listed, mapping, text_of
from slipstream_imports.records import LogRun, said
from slipstream_imports.registry import each
from slipstream_imports.traces import usage_of

GATHERS_ROWS = False


def is_one(row: Mapping[str, Value]) -> bool:
    return "task_id" in row and ("traj" in row or ("reward_info" in row and "messages" in row))


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    second, info = "traj" not in row, mapping(row.get("info"))
    domain = mapping(info.get("environment_info")).get("domain_name")
    agent = mapping(info.get("agent_info"))
    task = "-".join(text_of(v) for v in (domain, row["task_id"]) if v is not None)
    trial = row.get("trial")
    run = LogRun(place.where, f"tau-{row['id']}" if row.get("id") else None, f"tau-{task}")
    run.model = text_of(agent["llm"]) if agent.get("llm") else None
    run.tags = {
        "trial": trial,
        "ended": row.get("termination_reason"),
        "user": mapping(info.get("task")).get("user_id"),
    }
    told = mapping(row.get("reward_info")) if second else row
    value = told.get("reward")
    run.reward = None if value is None else place.number(value, "reward")
    for metric, number in mapping(told.get("reward_breakdown")).items():
        if (read := place.score(number, f"reward_breakdown.{metric}")) is not None:
            run.metrics[metric.lower()] = read
    run.at = place.time(first(row, "start_time"), "start_time")
    items = [mapping(m) for m in listed(row["messages"] if second else row["traj"])]
    messages: list[Message] = []
    about: list[Mapping[str, Value]] = []
    for item in items:
        for message in _seen(item, place):
            messages.append(message)
            about.append(item)
    talk = said(messages)
    if any(about[i].get("usage") for i in talk.replies):  # the greeting is the benchmark's own
        talk.replies = {i: t for i, t in talk.replies.items() if about[i].get("usage") or i > 0}
    for i, reply in talk.replies.items():
        reply.at = place.time(about[i].get("timestamp"), "timestamp")
        reply.prompt_tokens, reply.completion_tokens = usage_of(about[i].get("usage"))
    run.talks = [talk]
    yield run


def _seen(item: Mapping[str, Value], place: Place) -> list[Message]:
    """What the agent sees of a message."""
    role = item.get("role")
    if role == "tool" and item.get("requestor") == "user":
        place.drop("a tool's answer", "the user's side asked for it, the agent does not see it")
        return []
    own = {
        k: v
        for k, v in item.items()
        if k not in ("turn_idx", "timestamp", "cost", "usage", "raw_data", "requestor", "error", "id")
    }
    if role == "tool" and not own.get("tool_call_id"):
        own["tool_call_id"] = item.get("id")
    if role == "user" and own.pop("tool_calls", None):
        place.drop("a tool call", "the user's side made it, the agent does not see it")
        if not own.get("content"):
            return []
    if role == "user":
        own.pop("tool_calls", None)
    return expand(own, "user", place)
