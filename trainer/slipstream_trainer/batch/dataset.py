"""What ``slipstream export`` writes as samples: with captured tokens, else by the chat template."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.contract import filter_of
from slipstream.errors import SlipstreamError, StartError
from slipstream.shared.chat_template import Message, chosen, for_template, tools_for_template
from slipstream.shared.tables import PackedPrompts
from slipstream_trainer.batch.rows import Ints, Sample, fault

NO_LOGPROBS = "no_logprobs"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a Parquet or JSON-lines export. Raises ``StartError`` with the line for what is neither."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            for part in pq.ParquetFile(path).iter_batches(256):
                yield from map(_from_columns, part.to_pylist())
            return
        with path.open() as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    try:
                        yield json.loads(text)
                    except (ValueError, RecursionError) as e:
                        raise StartError(f"{path}:{number}: not JSON: {e}") from e
    except OSError as e:
        raise StartError(f"{path}: {e}") from e


def _from_columns(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Parquet as the JSON lines have it."""
    row |= {k: json.loads(row[k]) for k in ("call_list", "messages") if isinstance(row.get(k), str)}
    for name in ("prompt_ids", "completion_ids", "logprobs"):
        for call, values in zip(row.get("call_list") or (), row.pop(name, None) or (), strict=False):
            call[name] = values
    return row


def _array(values: Any, dtype: type) -> np.ndarray[Any, np.dtype[Any]]:
    return np.array(values if values is not None else [], dtype=dtype)


def _prompts(calls: Sequence[dict[str, Any]]) -> list[Ints]:
    """Each call's whole prompt: in a long run it begins with an earlier call's (``contract.SharedPrefix``). Empty where
    that call is missing.
    """
    places = {call["id"]: n for n, call in enumerate(calls)}
    prefixes = [call.get("prefix") or {} for call in calls]
    return PackedPrompts(
        [
            _array(call.get("prompt_ids") if not p or p["call"] in places else [], np.int32)
            for call, p in zip(calls, prefixes, strict=True)
        ],
        [_array(next(iter(call.get("completion_ids") or []), []), np.int32) for call in calls],
        [places.get(p.get("call")) for p in prefixes],
        [p.get("tokens", 0) for p in prefixes],
    ).whole()


def _group_of(row: dict[str, Any], episode: str) -> str:
    """With which episodes it is compared: those of its group, else its key's others of its task."""
    alone = str(row.get("task") or episode)
    return str(row.get("group") or (f"{row['key']}/{alone}" if row.get("key") else alone))


def _captured(row: dict[str, Any], *, imitate: bool) -> Iterator[Sample]:
    """The calls of an episode that have their tokens. To ``imitate`` them it does not matter how they were sampled."""
    reward = row.get("reward")
    calls = row.get("call_list") or []
    for call, prompt in zip(calls, _prompts(calls), strict=True):
        completions, logprobs = call.get("completion_ids") or [], call.get("logprobs") or []
        for k, ids in enumerate(completions):
            lp = _array(logprobs[k] if k < len(logprobs) else [], np.float32)
            ok = (
                (imitate or bool(call.get("trainable", True)))
                and call.get("outcome", "ok") == "ok"
                and bool(len(prompt))
                and bool(ids)
            )
            temperature = (call.get("sampling") or {}).get("temperature")
            yield Sample(
                _group_of(row, row["id"]),
                "task",
                row["id"],
                call["id"],
                call.get("number", 0),
                k,
                prompt,
                _array(ids, np.int32),
                lp,
                float("nan") if reward is None else float(reward),
                1.0 if temperature is None or imitate else float(temperature),
                adapter=call.get("adapter") or "",
                trainable=ok,
                reason=None if ok else call.get("untrainable_reason") or "untrainable",
                key=str(row.get("key") or ""),
                filter=None if imitate else filter_of(call.get("sampling") or {}),
            )


class Unrendered(SlipstreamError):
    """A call that the model's chat template does not write as the model would read and say it. Its text is the reason's
    name.
    """


def rendered(
    tokenizer: Any,
    messages: Sequence[Message],
    reply: Message,
    tools: Sequence[object] | None,
    ends: Collection[int],
    switches: Mapping[str, object] | None = None,
) -> tuple[list[int], list[int]]:
    """(ids of the prompt, ids of the reply up to the end of its turn) of a call that has only its text.

    The prompt is what the engine would make of the same request (``shared.chat_template``). ``ends``: ids that end a
    turn. ``switches``: what else the request sets in the template. Raises ``Unrendered``.
    """
    *asked, said = _as_engine([*messages, reply], chosen(tokenizer.chat_template))
    known = tools_for_template(tools or []) or None

    def text(part: list[Message], *, ask: bool) -> str:
        set_there = {name: value for name, value in (switches or {}).items() if value is not None}
        given = {**set_there, "tools": known, "add_generation_prompt": ask, "tokenize": False}
        return str(tokenizer.apply_chat_template(part, **given))

    try:
        prompt, whole = text(asked, ask=True), text([*asked, said], ask=False)
    except Exception as e:  # a template may refuse anything, in its own words
        raise Unrendered("template") from e
    if not whole.startswith(prompt) or len(whole) == len(prompt):
        raise Unrendered("template")
    # in two parts, as an engine reads the one and samples the other
    read, found = (list(tokenizer(t, add_special_tokens=False)["input_ids"]) for t in (prompt, whole[len(prompt) :]))
    last = next((n for n in range(len(found), 0, -1) if found[n - 1] in ends), len(found))
    return read, found[:last]  # what the template writes after the turn is never sampled


def _as_engine(messages: Sequence[Message], template: str) -> list[Message]:
    """Raises ``Unrendered`` for pictures and sound."""
    made: list[Message] = for_template([dict(m) for m in messages], template, said=True)
    for message in made:
        parts = message.get("content")
        if isinstance(parts, list) and any(not isinstance(part, dict) or "text" not in part for part in parts):
            raise Unrendered("not_text")
    return made


def _by_template(row: dict[str, Any], tokenizer: Any) -> Iterator[Sample]:
    """Every assistant message after the conversation before it, as the model's own template renders them."""
    messages, tools = row["messages"], row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    name = str(row.get("episode") or row.get("id") or id(row))
    reward = row.get("reward")

    number = 0
    ends = {tokenizer.eos_token_id} - {None}
    for i, message in enumerate(messages):
        if i == 0 or message.get("role") != "assistant":
            continue
        try:
            prompt, reply = rendered(tokenizer, messages[:i], message, tools, ends, row.get("chat_template_kwargs"))
        except Unrendered:
            prompt, reply = [], []
        exact = bool(reply)
        said = _array(reply, np.int32)
        yield Sample(
            _group_of(row, name),
            "task",
            name,
            f"{name}-{number}",
            number,
            0,
            _array(prompt, np.int32),
            said,
            np.zeros(len(said), dtype=np.float32),
            float("nan") if reward is None else float(reward),
            trainable=exact,
            reason=None if exact else "template",
            key=str(row.get("key") or ""),
        )
        number += 1


def samples_of(rows: Iterable[dict[str, Any]], tokenizer: Any, *, sft: bool, vocab: int | None = None) -> list[Sample]:
    """GRPO takes captured tokens with their log-probabilities alone; SFT also what has only its text (an external
    model's, an import).

    What cannot be trained on says why, as in a leased batch. ``vocab``: ids must be below it.
    """
    out: list[Sample] = []
    for row in rows:
        found = list(_captured(row, imitate=sft))
        if sft and not any(s.trainable for s in found) and row.get("messages"):
            found = list(_by_template(row, tokenizer))
        for s in found:
            if s.trainable and (why := _why_not(s, vocab, sft=sft)):
                s.trainable, s.reason = False, why
        out += found
    return out


def _why_not(s: Sample, vocab: int | None, *, sft: bool) -> str | None:
    if not sft and not np.isfinite(s.reward):
        return "no_reward"
    if not sft and len(s.logprobs_C) != len(s.completion_C):
        return NO_LOGPROBS
    return fault(s, vocab, imitate=sft)


def choose(samples: Sequence[Sample]) -> int:
    """What SFT imitates: episodes without a reward (they were chosen by whoever exported them), else the best of
    each group, if above zero.

    The others become untrainable (``not_chosen``). Returns the episodes chosen.
    """
    best: dict[str, float] = {}
    for s in samples:
        if np.isfinite(s.reward):
            best[s.group] = max(best.get(s.group, 0.0), s.reward)
    chosen = set()
    for s in samples:
        s.advantage = 1.0
        if s.hint is not None:  # a user had something to say about it
            s.trainable, s.reason = False, s.reason or "not_chosen"
        if np.isfinite(s.reward) and (s.reward < best[s.group] or s.reward <= 0):
            s.trainable, s.reason = False, s.reason or "not_chosen"
        elif s.trainable:
            chosen.add(s.run)
    return len(chosen)


def group_batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Whole groups, ``size`` of them a batch, in the order in which they came."""
    groups: dict[str, list[Sample]] = {}
    for s in samples:
        groups.setdefault(s.group, []).append(s)
    every = list(groups.values())
    return [[s for g in every[i : i + size] for s in g] for i in range(0, len(every), size)]
