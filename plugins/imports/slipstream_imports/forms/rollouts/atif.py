"""Trajectories of Harbor, in its Agent Trajectory Interchange Format: a step is what one side did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.inputs import tool_of
from slipstream_chat.messages import Message, expand, with_ids
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping, text_of
from slipstream_imports.fields import rewards_in
from slipstream_imports.records import LogRun, Talk, Told
from slipstream_imports.registry import each
from slipstream_imports.traces import usage_of

GATHERS_ROWS = False
ROLE_BY_SOURCE = {"system": "system", "user": "user", "agent": "assistant"}
FRAME_FIELDS = ("trajectory", "atif")


def _framed(row: Mapping[str, Value]) -> dict[str, Value]:
    return next((mapping(row[f]) for f in FRAME_FIELDS if isinstance(row.get(f), Mapping)), dict(row))


def is_one(row: Mapping[str, Value]) -> bool:
    told = _framed(row)
    if str(told.get("schema_version") or "").upper().startswith("ATIF"):
        return True
    steps = told.get("steps")
    return (
        isinstance(steps, list)
        and bool(steps)
        and isinstance(steps[0], Mapping)
        and steps[0].get("source") in ROLE_BY_SOURCE
    )


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    told = _framed(row)
    extra, agent = mapping(told.get("extra")), mapping(told.get("agent"))
    ident = first(told, "session_id", "trajectory_id")
    run = LogRun(place.where, f"atif-{ident}" if ident else None, model=_text(agent.get("model_name")))
    run.tags = {"agent": _text(agent.get("name")), "agent_version": _text(agent.get("version"))}
    task = first(row, "task_name", "task_id", "task") or first(extra, "task_name", "task_id", "task", "instance_id")
    run.task = None if task is None else text_of(mapping(task).get("name") or mapping(task).get("path") or task)
    for source in (
        row,
        told,
        extra,
        mapping(mapping(told.get("final_metrics")).get("extra")),
        mapping(first(row, "verifier_result")),
        mapping(extra.get("verifier_result")),
    ):
        reward, metrics = rewards_in({k: v for k, v in source.items() if k in ("reward", "rewards")}, place)
        run.reward = reward if run.reward is None else run.reward
        run.metrics = {**metrics, **run.metrics}
    run.talks = [_talk(told, place)]
    run.talks += [_talk(mapping(t), place) for t in listed(told.get("subagent_trajectories"))]
    yield run


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) and value else None


def _talk(told: Mapping[str, Value], place: Place) -> Talk:
    messages: list[Message] = []
    replies: dict[int, Told] = {}
    model = mapping(told.get("agent")).get("model_name")
    tools = [tool_of(t) for t in listed(mapping(told.get("agent")).get("tool_definitions"))]
    for step in map(mapping, listed(told.get("steps"))):
        source = step.get("source")
        if source not in ROLE_BY_SOURCE:
            raise Refused(f"system, user or agent is needed, this is {source!r:.40}", "steps.source")
        said = {"role": ROLE_BY_SOURCE[str(source)], "content": step.get("message")}
        said |= {"reasoning_content": step.get("reasoning_content"), "tool_calls": step.get("tool_calls") or []}
        made = expand(said, "user", place)
        sampled = source == "agent" and step.get("llm_call_count") != 0 and not step.get("is_copied_context")
        if sampled and made:
            metrics = mapping(step.get("metrics"))
            at, counts = place.time(step.get("timestamp"), "timestamp"), usage_of(metrics)
            replies[len(messages)] = Told(at, None, *counts, _text(step.get("model_name")) or _text(model))
            if any(metrics.get(n) for n in ("completion_token_ids", "prompt_token_ids", "logprobs")):
                place.drop("token ids and log-probabilities", "an import takes text")
        messages += made
        messages += _observed(step, place)
    return Talk(with_ids(messages), replies, tools or None)


def _observed(step: Mapping[str, Value], place: Place) -> Iterator[Message]:
    for result in map(mapping, listed(mapping(step.get("observation")).get("results"))):
        content = result.get("content")
        if content is None and result.get("subagent_trajectory_ref"):
            content = ""
        ident = result.get("source_call_id")
        role = "tool" if ident or step.get("tool_calls") else "user"
        yield from expand(
            {"role": role, "content": content or "", **({"tool_call_id": ident} if ident else {})}, role, place
        )
