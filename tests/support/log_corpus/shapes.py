"""The shapes in which programs write their logs, as functions of known runs. Made by hand from the programs' public formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from tests.support.log_corpus.runs import Known, Message

Row = dict[str, Any]
Write = TypeVar("Write", bound=Callable[[Sequence[Known]], Any])


class Shape(NamedTuple):
    form: str
    write: Callable[[Sequence[Known]], Any]
    """→ rows, which become JSON lines; or one value, which becomes one JSON text."""
    rewards: int = 1
    """Rewards of a run."""
    single: bool = False
    """A file holds one run."""


SHAPES: dict[str, Shape] = {}


def shape(form: str, rewards: int = 1, *, single: bool = False) -> Callable[[Write], Write]:
    def keep(write: Write) -> Write:
        SHAPES[write.__name__] = Shape(form, write, rewards, single)
        return write

    return keep


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def args(call: Row) -> Any:
    return json.loads(call["function"]["arguments"])


def blocks(m: Message, text: str = "text") -> list[Row]:
    return [{"type": text, "text": m["content"]}] if m.get("content") else []


# --- rows of conversations


@shape("openai")
def openai_messages(runs: Sequence[Known]) -> list[Row]:
    return [
        {"id": f"m-{r.name}", "task": r.name, "messages": r.messages, "tools": r.tools, "reward": r.reward}
        for r in runs
    ]


@shape("openai")
def openai_list(runs: Sequence[Known]) -> Any:
    return tuple({"messages": r.messages, "metadata": {"task": r.name}, "rewards": {"right": r.reward}} for r in runs)


@shape("openai", 0)
def openai_fine_tuning(runs: Sequence[Known]) -> list[Row]:
    return [{"messages": r.messages, "tools": r.tools, "parallel_tool_calls": True} for r in runs]


@shape("openai", 0)
def bare_lists(runs: Sequence[Known]) -> list[Any]:
    return [r.messages for r in runs]


@shape("openai")
def openai_text_columns(runs: Sequence[Known]) -> list[Row]:
    return [
        {"messages": json.dumps(r.messages), "tools": json.dumps(r.tools), "reward": str(r.reward), "at": iso(r.at(0))}
        for r in runs
    ]


def anthropic(m: Message) -> Message:
    if m["role"] == "tool":
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": m["tool_call_id"], "content": m["content"]}],
        }
    calls = [
        {"type": "tool_use", "id": c["id"], "name": c["function"]["name"], "input": args(c)}
        for c in m.get("tool_calls", ())
    ]
    return {"role": m["role"], "content": [*blocks(m), *calls]}


@shape("openai")
def anthropic_messages(runs: Sequence[Known]) -> list[Row]:
    return [{"messages": [anthropic(m) for m in r.messages], "reward": r.reward} for r in runs]


@shape("art")
def art_lines(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "trajectories": [
                {
                    "messages_and_choices": [choice(m) for m in r.messages],
                    "reward": r.reward,
                    "tools": r.tools,
                    "metadata": {"scenario_id": r.name},
                }
            ],
            "exceptions": [],
        }
        for r in runs
    ]


def choice(m: Message) -> Row:
    return {"finish_reason": "stop", "index": 0, "message": m, "logprobs": None} if m["role"] == "assistant" else m


@shape("sharegpt", 0)
def sharegpt(runs: Sequence[Known]) -> Any:
    names = {"user": "human", "assistant": "gpt", "system": "system", "tool": "observation"}

    def item(m: Message) -> Row:
        if m.get("tool_calls") and not m["content"]:
            calls = [{"name": c["function"]["name"], "arguments": args(c)} for c in m["tool_calls"]]
            return {"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0])}
        return {
            "from": names[m["role"]],
            "value": m["content"],
            **({"tool_calls": m["tool_calls"]} if m.get("tool_calls") else {}),
        }

    return tuple(
        {"id": r.name, "conversations": [item(m) for m in r.messages], "tools": json.dumps(r.tools)} for r in runs
    )


@shape("preference", 2)
def openai_preference(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "input": {"messages": r.messages[:-1], "tools": r.tools},
            "preferred_output": [r.messages[-1]],
            "non_preferred_output": [{"role": "assistant", "content": "no"}],
        }
        for r in runs
    ]


@shape("preference", 2)
def trl_preference(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "prompt": r.messages[:-1],
            "chosen": r.messages[-1:],
            "rejected": [{"role": "assistant", "content": "no"}],
            "score_chosen": 9.0,
            "score_rejected": 2,
        }
        for r in runs
    ]


@shape("verifiers", 2)
def verifiers_results(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "example_id": n,
            "prompt": r.messages[: r.replies[0]],
            "completion": r.messages[r.replies[0] :],
            "task": r.name,
            "reward": r.reward,
            "answer": "x",
            "exact": 1.0,
            "generation_ms": 12.0,
        }
        for n, r in enumerate(runs)
    ]


@shape("verifiers")
def verifiers_columns(runs: Sequence[Known]) -> Any:
    return {
        "prompt": [r.messages[: r.replies[0]] for r in runs],
        "completion": [r.messages[r.replies[0] :] for r in runs],
        "reward": [r.reward for r in runs],
        "task": [r.name for r in runs],
    }


@shape("verifiers", 2)
def trl_grpo_log(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "step": 3,
            "prompt": r.messages[: r.replies[0]],
            "completion": r.messages[r.replies[0] :],
            "format_reward": 1.0,
            "right": r.reward,
            "advantage": 0.1,
        }
        for r in runs
    ]


# --- requests and responses


def completion(r: Known, n: int, reply: Message) -> Row:
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return {
        "id": f"c{n}",
        "object": "chat.completion",
        "created": int(r.at(n)),
        "model": "m",
        "choices": [choice(reply)],
        "usage": usage,
    }


@shape("request", 1)
def request_response(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "episode": f"rr-{r.name}",
            "reward": r.reward if n == 0 else None,
            "request": {"model": "m", "messages": sent, "tools": r.tools},
            "response": completion(r, n, reply),
        }
        for r in runs
        for n, (sent, reply) in enumerate(r.calls)
    ]


@shape("openai_batch", 0)
def openai_batch(runs: Sequence[Known]) -> list[Row]:
    rows: list[Row] = []
    for r in runs:
        for n, (sent, reply) in enumerate(r.calls):
            rows.append(
                {
                    "custom_id": f"{r.name}-{n}",
                    "method": "POST",
                    "url": "/v1/chat/completions",
                    "body": {"model": "m", "messages": sent},
                }
            )
            rows.append(
                {
                    "id": "b",
                    "custom_id": f"{r.name}-{n}",
                    "response": {"status_code": 200, "body": completion(r, n, reply)},
                    "error": None,
                }
            )
    return rows


def litellm_row(r: Known, n: int, sent: list[Message], reply: Message) -> Row:
    return {
        "id": f"l{n}",
        "trace_id": f"t-{r.name}",
        "call_type": "acompletion",
        "status": "success",
        "model": "m",
        "messages": sent,
        "response": completion(r, n, reply),
        "startTime": r.at(n),
        "endTime": r.at(n) + 2,
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "request_tags": ["prod"],
        "metadata": {},
    }


@shape("litellm", 0)
def litellm_standard(runs: Sequence[Known]) -> list[Row]:
    return [litellm_row(r, n, *call) for r in runs for n, call in enumerate(r.calls)]


@shape("litellm", 0)
def litellm_spend_logs(runs: Sequence[Known]) -> Any:
    made = []
    for r in runs:
        for n, (sent, reply) in enumerate(r.calls):
            row = litellm_row(r, n, sent, reply)
            row |= {
                "request_id": f"{r.name}{n}",
                "session_id": f"t-{r.name}",
                "startTime": iso(r.at(n)),
                "endTime": iso(r.at(n) + 1),
            }
            made.append(
                {k: v for k, v in row.items() if k not in ("id", "trace_id")}
                | {"messages": json.dumps(sent), "response": json.dumps(row["response"])}
            )
    return tuple(made)


# --- traces


def observation(r: Known, n: int, sent: Any, output: Any) -> Row:
    return {
        "id": f"{r.name}-o{n}",
        "traceId": f"tr-{r.name}",
        "type": "GENERATION",
        "name": "chat",
        "startTime": iso(r.at(n)),
        "endTime": iso(r.at(n) + 1),
        "model": "m",
        "input": sent,
        "output": output,
        "usageDetails": {"input": 20, "output": 5},
    }


def langfuse(
    runs: Sequence[Known], spell: Callable[[Known, list[Message], Message], tuple[Any, Any]]
) -> Iterator[tuple[Known, list[Row]]]:
    for r in runs:
        yield r, [observation(r, n, *spell(r, *call)) for n, call in enumerate(r.calls)]


def trace(r: Known) -> Row:
    return {
        "id": f"tr-{r.name}",
        "name": r.name,
        "timestamp": iso(r.at(0)),
        "tags": ["prod"],
        "scores": [{"id": "s", "name": "reward", "value": r.reward, "dataType": "NUMERIC", "observationId": None}],
    }


def openai_io(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
    return {"messages": sent, "tools": r.tools}, reply


@shape("langfuse", single=True)
def langfuse_download(runs: Sequence[Known]) -> Any:
    ((r, rows),) = langfuse(runs, lambda r, s, m: tuple(map(json.dumps, openai_io(r, s, m))))  # type: ignore[arg-type, return-value]
    return {"trace": trace(r) | {"observations": []}, "observations": rows}


@shape("langfuse", single=True)
def langfuse_download_flat(runs: Sequence[Known]) -> Any:
    ((r, rows),) = langfuse(runs, openai_io)
    return trace(r) | {"observations": rows}


@shape("langfuse", 2)
def langfuse_observations(runs: Sequence[Known]) -> Any:
    rows: list[Row] = []
    for r, found in langfuse(runs, openai_io):
        rows += found
        rows.append({"id": "s", "traceId": f"tr-{r.name}", "name": "reward", "value": r.reward, "dataType": "NUMERIC"})
        rows.append(
            {
                "id": "t",
                "traceId": f"tr-{r.name}",
                "observationId": found[0]["id"],
                "name": "tone",
                "value": 1,
                "dataType": "BOOLEAN",
            }
        )
    return {"data": rows, "meta": {"page": 1}}


@shape("langfuse", 0)
def langfuse_export(runs: Sequence[Known]) -> list[Row]:
    names = {
        "traceId": "trace_id",
        "startTime": "start_time",
        "endTime": "end_time",
        "usageDetails": "usage_details",
        "model": "provided_model_name",
    }
    return [{names.get(k, k): v for k, v in row.items()} for _, rows in langfuse(runs, openai_io) for row in rows]


@shape("langfuse")
def langfuse_tables(runs: Sequence[Known]) -> list[Row]:
    """Three tables of the export to a bucket, one behind the other: scores, traces, observations."""
    rows: list[Row] = []
    for r in runs:
        rows.append(
            {"id": "s", "trace_id": f"tr-{r.name}", "name": "reward", "value": r.reward, "data_type": "NUMERIC"}
        )
    for r in runs:
        own = {k: v for k, v in trace(r).items() if k != "scores"}
        rows.append(own | {"bookmarked": False, "public": False, "user_id": "u"})
    exported: list[Row] = langfuse_export(runs)
    return rows + exported


def langchain_message(m: Message) -> Row:
    kinds = {"user": "human", "assistant": "ai", "system": "system", "tool": "tool"}
    more = {"tool_calls": m["tool_calls"]} if m.get("tool_calls") else {}
    return {
        "type": kinds[m["role"]],
        "content": m["content"] or "",
        "additional_kwargs": more,
        "response_metadata": {},
        **({"tool_call_id": m["tool_call_id"]} if m["role"] == "tool" else {}),
    }


@shape("langfuse")
def langfuse_langchain(runs: Sequence[Known]) -> Any:
    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        defined = [{"role": "tool", "content": t} for t in r.tools]
        kept = [
            m
            | {"content": m["content"] or "", "additional_kwargs": {"tool_calls": m["tool_calls"]}, "tool_calls": None}
            if m.get("tool_calls")
            else m
            for m in sent
        ]
        extra = {"tool_calls": reply["tool_calls"]} if reply.get("tool_calls") else {}
        return [*kept, *defined], {"role": "assistant", "content": reply["content"] or "", "additional_kwargs": extra}

    return tuple(trace(r) | {"observations": rows} for r, rows in langfuse(runs, spell))


@shape("langfuse")
def langfuse_langgraph(runs: Sequence[Known]) -> Any:
    def native(m: Message) -> Row:
        calls = [
            {"id": c["id"], "name": c["function"]["name"], "args": args(c), "type": "tool_call"}
            for c in m.get("tool_calls", ())
        ]
        return langchain_message(m) | {"additional_kwargs": {}, "tool_calls": calls}

    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        return [[native(m) for m in sent]], {
            "generations": [[{"text": reply["content"] or "", "message": native(reply)}]]
        }

    return tuple(
        trace(r)
        | {
            "observations": [
                {**rows[0], "id": "g", "type": "CHAIN", "input": {}, "output": {}},
                *[o | {"parentObservationId": "g"} for o in rows],
            ]
        }
        for r, rows in langfuse(runs, spell)
    )


@shape("langfuse")
def langfuse_vercel(runs: Sequence[Known]) -> Any:
    def part(m: Message) -> Message:
        if m["role"] == "tool":
            return {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": m["tool_call_id"],
                        "toolName": "weather",
                        "output": {"type": "text", "value": m["content"]},
                    }
                ],
            }
        calls = [
            {"type": "tool-call", "toolCallId": c["id"], "toolName": c["function"]["name"], "input": args(c)}
            for c in m.get("tool_calls", ())
        ]
        return {"role": m["role"], "content": m["content"] if m["role"] == "system" else [*blocks(m), *calls]}

    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        calls = [
            {"toolCallId": c["id"], "toolName": c["function"]["name"], "args": c["function"]["arguments"]}
            for c in reply.get("tool_calls", ())
        ]
        return {"messages": [part(m) for m in sent]}, {
            "role": "assistant",
            "content": reply["content"] or "",
            "toolCalls": calls,
        }

    return tuple(trace(r) | {"observations": rows} for r, rows in langfuse(runs, spell))


def otel_parts(m: Message) -> Row:
    if m["role"] == "tool":
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": m["tool_call_id"], "response": m["content"]}],
        }
    calls = [
        {"type": "tool_call", "id": c["id"], "name": c["function"]["name"], "arguments": args(c)}
        for c in m.get("tool_calls", ())
    ]
    texts = [{"type": "text", "content": m["content"]}] if m.get("content") else []
    return {"role": m["role"], "parts": [*texts, *calls]}


@shape("langfuse")
def langfuse_otel(runs: Sequence[Known]) -> Any:
    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        return [otel_parts(m) for m in sent], [otel_parts(reply) | {"finish_reason": "stop"}]

    return tuple(trace(r) | {"observations": rows} for r, rows in langfuse(runs, spell))


def items(messages: Sequence[Message]) -> list[Row]:
    made: list[Row] = []
    for m in messages:
        if m["role"] == "tool":
            made.append({"type": "function_call_output", "call_id": m["tool_call_id"], "output": m["content"]})
            continue
        if m.get("content"):
            kind = "output_text" if m["role"] == "assistant" else "input_text"
            made.append({"type": "message", "role": m["role"], "content": blocks(m, kind)})
        made += [
            {
                "type": "function_call",
                "call_id": c["id"],
                "name": c["function"]["name"],
                "arguments": c["function"]["arguments"],
            }
            for c in m.get("tool_calls", ())
        ]
    return made


@shape("langfuse")
def langfuse_responses(runs: Sequence[Known]) -> Any:
    return tuple(
        trace(r) | {"observations": rows} for r, rows in langfuse(runs, lambda _, s, m: (items(s), items([m])))
    )


def gemini(m: Message) -> Row:
    if m["role"] == "tool":
        return {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "response": {"result": m["content"]}}}],
        }
    calls = [{"functionCall": {"name": c["function"]["name"], "args": args(c)}} for c in m.get("tool_calls", ())]
    return {
        "role": "model" if m["role"] == "assistant" else "user",
        "parts": [*([{"text": m["content"]}] if m["content"] else []), *calls],
    }


@shape("langfuse")
def langfuse_gemini(runs: Sequence[Known]) -> Any:
    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        system = [m["content"] for m in sent if m["role"] == "system"]
        asked: Row = {"contents": [gemini(m) for m in sent if m["role"] != "system"]}
        if system:
            asked["config"] = {"systemInstruction": system[0]}
        return asked, {"candidates": [{"content": gemini(reply), "finishReason": "STOP"}], "usageMetadata": {}}

    return tuple(trace(r) | {"observations": rows} for r, rows in langfuse(runs, spell))


def inference(m: Message) -> Row:
    made: Row = {"message.role": m["role"]}
    if m.get("content") is not None:
        made["message.content"] = m["content"]
    if m.get("tool_calls"):
        made["message.tool_calls"] = [
            {
                "tool_call.id": c["id"],
                "tool_call.function.name": c["function"]["name"],
                "tool_call.function.arguments": c["function"]["arguments"],
            }
            for c in m["tool_calls"]
        ]
    if m.get("tool_call_id"):
        made["message.tool_call_id"] = m["tool_call_id"]
    return made


def flat(messages: Sequence[Message], prefix: str) -> Row:
    made: Row = {}
    for i, m in enumerate(messages):
        for name, value in inference(m).items():
            if name == "message.tool_calls":
                made |= {
                    f"{prefix}.{i}.message.tool_calls.{n}.{part}": text
                    for n, call in enumerate(value)
                    for part, text in call.items()
                }
            else:
                made[f"{prefix}.{i}.{name}"] = value
    return made


@shape("phoenix")
def phoenix_rows(runs: Sequence[Known]) -> list[Row]:
    rows: list[Row] = []
    for r in runs:
        rows.append(
            {
                "name": r.name,
                "span_kind": "AGENT",
                "parent_id": None,
                "context.trace_id": f"p-{r.name}",
                "context.span_id": "root",
                "annotations": [{"name": "reward", "result": {"score": r.reward}}],
            }
        )
        for n, (sent, reply) in enumerate(r.calls):
            rows.append(
                {
                    "name": "llm",
                    "span_kind": "LLM",
                    "parent_id": "root",
                    "start_time": iso(r.at(n)),
                    "end_time": iso(r.at(n) + 1),
                    "context.trace_id": f"p-{r.name}",
                    "context.span_id": f"s{n}",
                    "attributes.llm.model_name": "m",
                    "attributes.llm.input_messages": [inference(m) for m in sent],
                    "attributes.llm.output_messages": [inference(reply)],
                    "attributes.llm.token_count.prompt": 20,
                }
            )
    return rows


@shape("phoenix")
def phoenix_annotations(runs: Sequence[Known]) -> list[Row]:
    """Scores as rows of their own, which name their span."""
    rows: list[Row] = []
    for n, r in enumerate(runs):
        spans = [{k: v for k, v in row.items() if k != "annotations"} for row in phoenix_rows([r])]
        ids = ("context.span_id", "parent_id")
        rows += [{k: f"{v}-{n}" if k in ids and v else v for k, v in row.items()} for row in spans]
        told = {"name": "reward", "annotator_kind": "CODE", "result": {"label": None, "score": r.reward}}
        rows.append({"id": "a", "span_id": f"root-{n}", **told})
    return rows


@shape("phoenix", 0)
def phoenix_table(runs: Sequence[Known]) -> Any:
    """As pandas writes a table of spans."""
    rows = [row for row in phoenix_rows(runs) if row["span_kind"] == "LLM"]
    return {name: {str(n): row[name] for n, row in enumerate(rows)} for name in rows[0]}


@shape("phoenix", 0)
def phoenix_twice(runs: Sequence[Known]) -> Any:
    """Two instruments: a span of LangChain's around a span of OpenAI's, both of kind LLM."""
    rows = []
    for r in runs:
        for n, (sent, reply) in enumerate(r.calls):
            told = {
                "openinference.span.kind": "LLM",
                "llm.model_name": "m",
                **flat(sent, "llm.input_messages"),
                **flat([reply], "llm.output_messages"),
            }
            for span, parent in ((f"out{n}", None), (f"in{n}", f"out{n}")):
                rows.append(
                    {
                        "name": "chat",
                        "context": {"trace_id": f"p-{r.name}", "span_id": span},
                        "span_kind": "LLM",
                        "parent_id": parent,
                        "start_time": iso(r.at(n)),
                        "attributes": told,
                    }
                )
    return {"data": rows, "next_cursor": None}


def attributes(told: Row) -> list[Row]:
    def value(v: Any) -> Row:
        return (
            {"intValue": str(v)}
            if isinstance(v, int)
            else {"doubleValue": v}
            if isinstance(v, float)
            else {"stringValue": v if isinstance(v, str) else json.dumps(v)}
        )

    return [{"key": k, "value": value(v)} for k, v in told.items()]


def otlp(
    runs: Sequence[Known],
    spell: Callable[[Known, list[Message], Message], tuple[Row, list[Row]]],
    *,
    scored: bool = True,
) -> Row:
    spans = []
    for r in runs:
        for n, call in enumerate(r.calls):
            told, events = spell(r, *call)
            if scored and n == 0:
                events = [
                    *events,
                    {
                        "name": "gen_ai.evaluation.result",
                        "attributes": attributes(
                            {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": r.reward}
                        ),
                    },
                ]
            spans.append({"traceId": r.name.encode().hex().ljust(32, "0"), "spanId": f"{n + 1:016x}", "parentSpanId": "f" * 16, "name": "chat m", "startTimeUnixNano": str(int(r.at(n) * 1e9)), "endTimeUnixNano": str(int((r.at(n) + 1) * 1e9)),
                          "attributes": attributes({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 5, **told}), "events": events})  # fmt: skip
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


@shape("otel")
def otel_attributes(runs: Sequence[Known]) -> Any:
    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Row, list[Row]]:
        system = [m for m in sent if m["role"] == "system"]
        told: Row = {
            "gen_ai.input.messages": [otel_parts(m) for m in sent if m["role"] != "system"],
            "gen_ai.output.messages": [otel_parts(reply)],
        }
        return told | (
            {"gen_ai.system_instructions": [{"type": "text", "content": system[0]["content"]}]} if system else {}
        ), []

    return otlp(runs, spell)


@shape("otel")
def otel_events(runs: Sequence[Known]) -> Any:
    def event(m: Message, *, last: bool = False) -> Row:
        told = (
            {"message": m}
            if last
            else {("id" if k == "tool_call_id" else k): v for k, v in m.items() if v is not None and k != "role"}
        )
        return {"name": "gen_ai.choice" if last else f"gen_ai.{m['role']}.message", "attributes": attributes(told)}

    return otlp(runs, lambda _, sent, reply: ({}, [*map(event, sent), event(reply, last=True)]))


@shape("otel")
def otel_numbers(runs: Sequence[Known]) -> list[Any]:
    def numbered(messages: Sequence[Message], prefix: str) -> Row:
        made: Row = {}
        for i, m in enumerate(messages):
            made |= {f"{prefix}.{i}.{k}": v for k, v in m.items() if isinstance(v, str)}
            for n, c in enumerate(m.get("tool_calls", ())):
                made |= {
                    f"{prefix}.{i}.tool_calls.{n}.{k}": v
                    for k, v in (
                        ("id", c["id"]),
                        ("name", c["function"]["name"]),
                        ("arguments", c["function"]["arguments"]),
                    )
                }
        return made

    return [
        otlp([r], lambda _, s, m: ({**numbered(s, "gen_ai.prompt"), **numbered([m], "gen_ai.completion")}, []))
        for r in runs
    ]


@shape("otel")
def otel_inference(runs: Sequence[Known]) -> Any:
    return otlp(
        runs,
        lambda _, s, m: (
            {"openinference.span.kind": "LLM", **flat(s, "llm.input_messages"), **flat([m], "llm.output_messages")},
            [],
        ),
    )


@shape("otel")
def otel_log_records(runs: Sequence[Known]) -> list[Any]:
    """The spans, and their messages as log records."""
    told = json.loads(json.dumps(otel_events(runs)))
    spans = [span for part in told["resourceSpans"] for scope in part["scopeSpans"] for span in scope["spans"]]
    records = []
    for span in spans:
        for event in span.pop("events"):
            scored = event["name"] == "gen_ai.evaluation.result"
            said = (
                {"attributes": event["attributes"]}
                if scored
                else {"body": {"kvlistValue": {"values": event["attributes"]}}}
            )
            ids = {"traceId": span["traceId"], "spanId": span["spanId"], "timeUnixNano": span["startTimeUnixNano"]}
            records.append({"eventName": event["name"], **ids, **said})
    return [told, {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}]


@shape("otel", 0)
def otel_jaeger(runs: Sequence[Known]) -> Any:
    """What Jaeger's page downloads."""
    rows = []
    for r in runs:
        spans = []
        for n, (sent, reply) in enumerate(r.calls):
            said = {"gen_ai.input.messages": sent, "gen_ai.output.messages": [reply], "gen_ai.operation.name": "chat"}
            tags = [{"key": k, "type": "string", "value": json.dumps(v)} for k, v in said.items()]
            at = int(r.at(n) * 1e6)
            spans.append({"traceID": r.name, "spanID": f"s{n}", "operationName": "chat", "references": [], "tags": tags, "startTime": at, "duration": 5})  # fmt: skip
        rows.append({"traceID": r.name, "spans": spans, "processes": {}})
    return {"data": rows, "total": 0}


@shape("otel", 0)
def otel_vercel(runs: Sequence[Known]) -> Any:
    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Row, list[Row]]:
        calls = [
            {"toolCallId": c["id"], "toolName": c["function"]["name"], "input": c["function"]["arguments"]}
            for c in reply.get("tool_calls", ())
        ]
        told = {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.prompt.messages": sent,
            "ai.response.text": reply["content"] or "",
        }
        return told | ({"ai.response.toolCalls": calls} if calls else {}), []

    return otlp(runs, spell, scored=False)


def langsmith_run(r: Known, n: int, inputs: Any, outputs: Any) -> Row:
    return {
        "id": f"{r.name}-{n}",
        "trace_id": f"ls-{r.name}",
        "parent_run_id": f"ls-{r.name}",
        "run_type": "llm",
        "name": "ChatOpenAI",
        "start_time": iso(r.at(n)),
        "end_time": iso(r.at(n) + 1),
        "inputs": inputs,
        "outputs": outputs,
        "extra": {"metadata": {"ls_model_name": "m"}},
        "prompt_tokens": 20,
        "completion_tokens": 5,
    }


@shape("langsmith")
def langsmith_langchain(runs: Sequence[Known]) -> list[Row]:
    def lc(m: Message) -> Row:
        names = {"user": "HumanMessage", "assistant": "AIMessage", "system": "SystemMessage", "tool": "ToolMessage"}
        calls = [
            {"id": c["id"], "name": c["function"]["name"], "args": args(c), "type": "tool_call"}
            for c in m.get("tool_calls", ())
        ]
        kwargs = {
            "content": m["content"] or "",
            "type": langchain_message(m)["type"],
            **({"tool_calls": calls} if calls else {}),
            **({"tool_call_id": m["tool_call_id"]} if m["role"] == "tool" else {}),
        }
        return {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", names[m["role"]]],
            "kwargs": kwargs,
        }

    rows: list[Row] = []
    for r in runs:
        rows.append(
            {
                "id": f"ls-{r.name}",
                "trace_id": f"ls-{r.name}",
                "run_type": "chain",
                "name": r.name,
                "inputs": {},
                "outputs": {},
                "feedback_stats": {"reward": {"n": 1, "avg": r.reward}},
            }
        )
        rows += [
            langsmith_run(
                r,
                n,
                {"messages": [[lc(m) for m in sent]]},
                {"generations": [[{"text": reply["content"] or "", "message": lc(reply)}]]},
            )
            for n, (sent, reply) in enumerate(r.calls)
        ]
    return rows


@shape("langsmith")
def langsmith_feedback(runs: Sequence[Known]) -> list[Row]:
    """Feedback as rows of its own, which name their run."""
    bare = [{k: v for k, v in row.items() if k != "feedback_stats"} for row in langsmith_langchain(runs)]
    return [*bare, *({"id": "f", "run_id": f"ls-{r.name}", "key": "reward", "score": r.reward} for r in runs)]


@shape("langsmith", 0)
def langsmith_openai(runs: Sequence[Known]) -> Any:
    return tuple(
        {
            "id": f"ls-{r.name}",
            "trace_id": f"ls-{r.name}",
            "run_type": "chain",
            "name": r.name,
            "child_runs": [
                langsmith_run(r, n, {"messages": sent, "model": "m", "tools": r.tools}, completion(r, n, reply))
                for n, (sent, reply) in enumerate(r.calls)
            ],
        }
        for r in runs
    )


# --- rollouts and sessions


@shape("nemo_gym")
def nemo_gym(runs: Sequence[Known]) -> list[Row]:
    return [
        {
            "responses_create_params": {
                "input": items(r.messages[: r.replies[0]]),
                "tools": [{"type": "function", **t["function"]} for t in r.tools],
            },
            "response": {
                "model": "m",
                "output": items(r.messages[r.replies[0] :]),
                "usage": {"input_tokens": 20, "output_tokens": 5},
            },
            "reward": r.reward,
        }
        for r in runs
    ]


@shape("atif", single=True)
def atif(runs: Sequence[Known]) -> Any:
    (r,) = runs
    steps: list[Row] = []
    sides = {"user": "user", "assistant": "agent", "system": "system"}
    for m in r.messages:
        if m["role"] == "tool":
            steps[-1].setdefault("observation", {"results": []})["results"].append(
                {"source_call_id": m["tool_call_id"], "content": m["content"]}
            )
            continue
        calls = [
            {"tool_call_id": c["id"], "function_name": c["function"]["name"], "arguments": args(c)}
            for c in m.get("tool_calls", ())
        ]
        metrics = {"metrics": {"prompt_tokens": 20, "completion_tokens": 5}} if m["role"] == "assistant" else {}
        steps.append(
            {
                "step_id": len(steps) + 1,
                "timestamp": iso(r.at(len(steps))),
                "source": sides[m["role"]],
                "message": m["content"] or "",
                **({"tool_calls": calls} if calls else {}),
                **metrics,
            }
        )
    return {
        "schema_version": "ATIF-v1.4",
        "session_id": f"h-{r.name}",
        "agent": {"name": "terminus", "version": "2", "model_name": "m"},
        "steps": steps,
        "extra": {"reward": r.reward},
    }


@shape("tau_bench")
def tau_bench(runs: Sequence[Known]) -> Any:
    return tuple(
        {"task_id": n, "reward": r.reward, "info": {"task": {"user_id": "u"}}, "traj": r.messages, "trial": 0}
        for n, r in enumerate(runs)
    )


@shape("tau_bench")
def tau2_bench(runs: Sequence[Known]) -> Any:
    def own(m: Message) -> Message:
        if m["role"] == "tool":
            return {
                "role": "tool",
                "id": m["tool_call_id"],
                "content": m["content"],
                "requestor": "assistant",
                "error": False,
            }
        calls = [
            {"id": c["id"], "name": c["function"]["name"], "arguments": args(c), "requestor": "assistant"}
            for c in m.get("tool_calls", ())
        ]
        return {
            "role": m["role"],
            "content": m["content"],
            "tool_calls": calls or None,
            "cost": 0.1,
            "usage": {"prompt_tokens": 20, "completion_tokens": 5},
        }

    simulations = [
        {
            "id": f"s{n}",
            "task_id": str(n),
            "trial": 0,
            "start_time": iso(r.at(0)),
            "reward_info": {"reward": r.reward},
            "messages": [own(m) for m in r.messages],
        }
        for n, r in enumerate(runs)
    ]
    return {
        "timestamp": "x",
        "info": {"environment_info": {"domain_name": "airline"}, "agent_info": {"llm": "m"}},
        "tasks": [],
        "simulations": simulations,
    }


@shape("claude_code", 0)
def claude_code(runs: Sequence[Known]) -> list[Row]:
    rows: list[Row] = []
    for r in runs:
        rows.append({"type": "summary", "summary": r.name, "leafUuid": "x"})
        parent = None
        for n, m in enumerate(m for m in r.messages if m["role"] != "system"):
            told = anthropic(m)
            for k, block in enumerate(told["content"]):
                message = {"role": told["role"], "content": [block]}
                if told["role"] == "assistant":
                    message |= {
                        "id": f"msg-{r.name}-{n}",
                        "model": "m",
                        "usage": {"input_tokens": 20, "output_tokens": 5},
                    }
                rows.append(
                    {
                        "type": told["role"],
                        "uuid": f"{r.name}-{n}-{k}",
                        "parentUuid": parent,
                        "sessionId": f"cc-{r.name}",
                        "timestamp": iso(r.at(n)),
                        "cwd": "/w",
                        "message": message,
                    }
                )
                parent = f"{r.name}-{n}-{k}"
    return rows


@shape("codex", 0, single=True)
def codex(runs: Sequence[Known]) -> list[Row]:
    (r,) = runs
    lines: list[tuple[str, Row]] = [
        ("session_meta", {"id": f"cx-{r.name}", "cwd": "/w", "cli_version": "0.1"}),
        ("turn_context", {"model": "m"}),
    ]
    for m in r.messages:
        if m["role"] == "assistant":
            lines.append(
                (
                    "response_item",
                    {
                        "type": "reasoning",
                        "summary": [{"type": "summary_text", "text": "hm"}],
                        "encrypted_content": "x",
                    },
                )
            )
        lines += [("response_item", item) for item in items([m])]
        if m["role"] == "assistant":
            lines.append(
                (
                    "event_msg",
                    {"type": "token_count", "info": {"last_token_usage": {"input_tokens": 20, "output_tokens": 5}}},
                )
            )
    return [{"timestamp": iso(r.at(n)), "type": kind, "payload": payload} for n, (kind, payload) in enumerate(lines)]


@shape("claude_code", 0)
def claude_code_parallel(runs: Sequence[Known]) -> list[Row]:
    """Each call's answer hangs on its own block, and what follows on the last answer."""
    rows = claude_code(runs)
    asked = {
        block["id"]: row["uuid"]
        for row in rows
        for block in row.get("message", {}).get("content", ())
        if block["type"] == "tool_use"
    }
    for row in rows:
        for block in row.get("message", {}).get("content", ()):
            row["parentUuid"] = asked.get(block.get("tool_use_id"), row["parentUuid"])
    return rows


@shape("codex", 0, single=True)
def codex_rolled_back(runs: Sequence[Known]) -> list[Row]:
    """A turn that the user took back stands at the end."""
    rows = codex(runs)
    told = items([{"role": "user", "content": "wrong"}, {"role": "assistant", "content": "taken back"}])
    back = {"type": "thread_rolled_back", "num_turns": 1}
    more = [*(("response_item", item) for item in told), ("event_msg", back)]
    return rows + [{"timestamp": rows[-1]["timestamp"], "type": kind, "payload": payload} for kind, payload in more]


@shape("mini_swe_agent", single=True)
def mini_swe_agent(runs: Sequence[Known]) -> Any:
    (r,) = runs
    info = {"exit_status": "Submitted", "mini_version": "2.0", "config": {"model": {"model_name": "m"}}}
    return {
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": r.name,
        "info": info,
        "messages": [*r.messages, {"role": "exit", "content": "done"}],
        "reward": r.reward,
    }


@shape("phoenix")
def phoenix_command(runs: Sequence[Known]) -> Any:
    """As Phoenix' command line prints traces."""
    traces = []
    for r in runs:
        spans = []
        for row in phoenix_rows([r]):
            ids = {"trace_id": row["context.trace_id"], "span_id": row["context.span_id"]}
            told = {k.removeprefix("attributes."): v for k, v in row.items() if k.startswith("attributes.")}
            rest = {k: v for k, v in row.items() if not k.startswith(("attributes.", "context."))}
            spans.append({**rest, "context": ids, "attributes": told})
        traces.append({"traceId": f"p-{r.name}", "status": "OK", "duration": 1, "rootSpan": spans[0], "spans": spans})
    return tuple(traces)


@shape("langfuse")
def langfuse_vercel_calls(runs: Sequence[Known]) -> Any:
    """Replies as Langfuse takes them from the spans of Vercel's SDK: a text, or the calls by themselves."""

    def spell(r: Known, sent: list[Message], reply: Message) -> tuple[Any, Any]:
        calls = [
            {"toolCallType": "function", "toolCallId": c["id"], "toolName": c["function"]["name"], "args": args_text(c)}
            for c in reply.get("tool_calls", ())
        ]
        if not calls:
            return sent, reply["content"]
        return sent, {"text": reply["content"], "toolCalls": calls} if reply["content"] else json.dumps(calls)

    return tuple(trace(r) | {"observations": rows} for r, rows in langfuse(runs, spell))


def args_text(call: Row) -> str:
    return str(call["function"]["arguments"])
