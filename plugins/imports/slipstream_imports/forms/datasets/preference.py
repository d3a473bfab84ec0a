"""Pairs for DPO, of OpenAI and of TRL: two episodes of one task, the preferred one with the higher reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from slipstream_chat.inputs import messages_of
from slipstream_chat.messages import with_ids
from slipstream_chat.report import Place, Refused, Value
from slipstream_chat.values import first, mapping
from slipstream_imports.fields import described
from slipstream_imports.forms.datasets.openai import tools_in
from slipstream_imports.records import LogRun, Talk, Told, digest
from slipstream_imports.registry import each

GATHERS_ROWS = False
PREFERENCE_SIDES = (
    ("chosen", ("chosen", "preferred_output"), ("chosen_reward", "score_chosen", "chosen_score", "chosen_rating"), 1.0),
    (
        "rejected",
        ("rejected", "non_preferred_output"),
        ("rejected_reward", "score_rejected", "rejected_score", "rejected_rating"),
        0.0,
    ),
)
READ_FIELDS = [name for _, columns, scores, _ in PREFERENCE_SIDES for name in (*columns, *scores)]
OWN_FIELDS = ("key", "chosen_episode", "rejected_episode", "input")


def is_one(row: Mapping[str, Value]) -> bool:
    return ("chosen" in row and "rejected" in row) or ("preferred_output" in row and "non_preferred_output" in row)


@each
def runs(row: dict[str, Value], place: Place) -> Iterator[LogRun]:
    frame = mapping(row.get("input"))
    prompt = messages_of(first(row, "prompt", "conversations"), "user", place) or messages_of(
        frame.get("messages"), "user", place
    )
    tools = tools_in(frame or row)
    sides = [messages_of(first(row, *columns), "assistant", place) for _, columns, _, _ in PREFERENCE_SIDES]
    if not prompt:  # both sides are whole conversations
        shared = 0
        while shared < min(map(len, sides)) - 1 and sides[0][shared] == sides[1][shared]:
            shared += 1
        prompt, sides = sides[0][:shared], [side[shared:] for side in sides]
        if not prompt:
            raise Refused("no prompt: chosen and rejected have no common beginning", "prompt")
    name = digest(prompt)
    for (side, _, scores, default), messages in zip(PREFERENCE_SIDES, sides, strict=True):
        run = described(row, place, read=[*READ_FIELDS, *OWN_FIELDS])
        run.id = run.id and f"{run.id}-{side}"
        run.task = run.task or f"pair-{name}"
        scored = next((name for name in scores if row.get(name) is not None), None)
        run.reward = default if scored is None else place.number(row[scored], scored)
        whole = with_ids([*prompt, *messages] if messages[: len(prompt)] != prompt else messages)
        replies = {i: Told() for i in range(len(prompt), len(whole)) if whole[i]["role"] == "assistant"}
        run.talks = [Talk(whole, replies, tools)]
        yield run
