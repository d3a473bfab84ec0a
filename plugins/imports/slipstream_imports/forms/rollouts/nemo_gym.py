"""Rollouts of NeMo Gym: a request of OpenAI's Responses, the response with all turns, and the verifier's reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.inputs import messages_of, of_items, tool_of
from slipstream_chat.messages import Message, expand, with_ids
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, listed, mapping, text_of
from slipstream_imports.fields import numbers_in, rewards_in
from slipstream_imports.records import LogRun, Talk, Told
from slipstream_imports.registry import each
from slipstream_imports.traces import usage_of

GATHERS_ROWS = False
KNOWN_FIELDS = (
    "responses_create_params",
    "response",
    "reward",
    "rewards",
    "metrics",
    "id",
    "uuid",
    "expected_answer",
    "verifier_metadata",
    "agent_ref",
)
INDEX_FIELDS = ("task_index", "rollout_index", "_task_index", "_rollout_index", "_ng_task_index", "_ng_rollout_index")
TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def is_one(row: Mapping[str, Value]) -> bool:
    return "responses_create_params" in row


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    asked, response = mapping(row["responses_create_params"]), mapping(row.get("response"))
    prompt: list[Message] = []
    if asked.get("instructions"):
        prompt += expand({"role": "system", "content": asked["instructions"]}, "system", place)
    given = asked.get("input")
    prompt += of_items(listed(given), place) if listed(given) else messages_of(given, "user", place)
    output = of_items(listed(response.get("output")), place)
    if not output:
        raise Refused("it has no output", "response")
    if any(mapping(item).get(n) for item in listed(response.get("output")) for n in TOKEN_FIELDS):
        place.drop("token ids and log-probabilities", "an import takes text")
    whole = with_ids([*prompt, *output])
    at, counts = place.time(response.get("created_at"), "created_at"), usage_of(response.get("usage"))
    model = first(response, "model") or asked.get("model")
    places = [i for i in range(len(prompt), len(whole)) if whole[i]["role"] == "assistant"]
    replies = {i: Told(at, model=text_of(model) if model else None) for i in places}
    if len(places) == 1:
        replies[places[0]].prompt_tokens, replies[places[0]].completion_tokens = counts
    agent = mapping(row.get("agent_ref")).get("name")
    index = next((row[n] for n in (*INDEX_FIELDS[::2], "id", "uuid") if row.get(n) is not None), None)
    rollout = next((row[n] for n in INDEX_FIELDS[1::2] if row.get(n) is not None), None)
    run = LogRun(
        place.where, task=None if index is None else "-".join(text_of(v) for v in (agent, index) if v is not None)
    )
    run.tags = {k: v for k, v in (("agent", agent), ("rollout", rollout)) if v is not None}
    run.id = f"nemo-{row['uuid']}" if row.get("uuid") else None
    run.reward, run.metrics = rewards_in(row, place)
    run.metrics |= numbers_in(row, (*KNOWN_FIELDS, *INDEX_FIELDS), place)
    run.talks = [Talk(whole, replies, [tool_of(t) for t in listed(asked.get("tools"))] or None)]
    yield run
