"""What another Slipstream exported is put back whole: episodes with their ids, tokens, log-probabilities, rewards and
lineage; adapters with their states. This is how a store moves (DuckDB → PostgreSQL): export there, import here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field, StringConstraints

from slipstream import contract as c
from slipstream.contract import KeyScope
from slipstream.shared.prefixes import whole_calls
from slipstream_proxy.control.api.http import Ctx, Routes, json_of, redaction_problems, reply
from slipstream_proxy.control.shared.problem import Problem
from slipstream_proxy.control.shared.threads import in_thread
from slipstream_proxy.json_types import JsonObject
from slipstream_proxy.redaction import Redaction, redaction_of
from slipstream_proxy.store.tables import schema

MAX_REQUEST_EPISODES = 256
"""Episodes of one request."""
API_ROUTES = Routes()

Count = Annotated[int, Field(ge=0, lt=2**31)]
Time = Annotated[float, Field(ge=0, le=253_402_300_799.0)]
Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Name = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]


class CallIn(c.CallRecord):
    number: Count
    at: Time
    seconds: Annotated[float, Field(ge=0, le=1e9)]
    dialect: Name
    model: Name
    adapter: Name | None
    trained: Name | None = None
    status: Annotated[int, Field(ge=0, lt=1000)]
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_ids: list[Count] | None = None
    completion_ids: list[list[Count]] | None = None
    logprobs: list[list[c.Finite]] | None = None


class EpisodeIn(c.EpisodeDetail):
    """A line of ``export?format=jsonl``."""

    key: Key
    task: c.Tag | None
    split: Literal["train", "eval"]  # type: ignore[assignment]
    tags: dict[c.Tag, c.Tag] = Field(default_factory=dict)
    model: Name
    adapter: Name | None
    state: Literal["open", "done"]  # type: ignore[assignment]
    started: Time
    ended: Time | None
    calls: Count
    prompt_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    completion_tokens: Annotated[int, Field(ge=0, lt=2**53)] = 0
    reward: c.Finite | None = None
    group: c.Id | None = None
    call_list: list[CallIn] = Field(default_factory=list)  # type: ignore[assignment]


class EpisodesIn(c.Model):
    """Lines of ``export?format=jsonl``."""

    episodes: list[EpisodeIn] = Field(min_length=1, max_length=MAX_REQUEST_EPISODES)


class BroughtIn(c.Model):
    adapters: int
    """New ones."""


def redacted_call(
    redaction: Redaction, request: JsonObject, answer: object, tags: dict[str, str]
) -> tuple[JsonObject, object, dict[str, str]]:
    """What ``proxy.redact`` leaves of a call. As in a request, letters stand in the text as they are."""
    texts = {n: json.dumps(x, ensure_ascii=False) for n, x in (("request", request), ("reply", answer))}
    with redaction_problems():
        after = redaction.texts(texts | {f"tag.{tag}": value for tag, value in tags.items()})
    try:
        request, answer = json.loads(after["request"]), json.loads(after["reply"])
    except ValueError as e:
        fix = "mend proxy.redact: request and reply are JSON, and stay JSON"
        raise Problem(422, "what proxy.redact returned is no JSON", field="body", fix=fix) from e
    return request, answer, {tag: c.tag_text(after[f"tag.{tag}"]) for tag in tags}


async def check(ctx: Ctx, bodies: Sequence[EpisodeIn], fields: Sequence[str]) -> list[EpisodeIn]:
    """Those that are new here, as they are stored. ``fields``: where each stands in the request.

    Raises ``Problem`` for a wrong one.
    """
    deps = ctx.deps
    if (redaction := redaction_of(deps.config)) is not None:
        bodies = [_renamed(redaction, body) for body in bodies]
    standing = await deps.ask(deps.store.standings.of, [(e.key, e.id) for e in bodies], deps.now())
    for body, field in zip(bodies, fields, strict=True):
        known = {call.id for call in body.call_list}
        if len({call.id for call in body.call_list if call.episode == body.id}) != len(body.call_list):
            text = "calls of another episode, or one twice"
            raise Problem(409, text, field=f"{field}.call_list", fix="send it as exported")
        if strange := next((c.prefix.call for c in body.call_list if c.prefix and c.prefix.call not in known), None):
            fix = "send all calls of the episode, as exported"
            text = f"a call begins with call {strange}, which is not here"
            raise Problem(409, text, field=f"{field}.call_list", fix=fix)
        if standing[body.key, body.id] == "gone":
            raise Problem(409, f"episode {body.id} is forgotten", field=f"{field}.id")
        if standing[body.key, body.id] == "known" and known - await deps.ask(
            deps.store.episodes.call_ids, body.key, body.id
        ):
            text = f"episode {body.id} is there with other calls"
            raise Problem(409, text, field=f"{field}.id", fix="import into a fresh store")
    return await as_stored(ctx, [body for body in bodies if standing[body.key, body.id] == "new"])


def _renamed(redaction: Redaction, body: EpisodeIn) -> EpisodeIn:
    """Under the name that it may have here."""
    if (name := redaction.id("episode", body.id)) == body.id:
        return body
    calls = [call.model_copy(update={"episode": name}) if call.episode == body.id else call for call in body.call_list]
    rewards = [reward.model_copy(update={"episode": name}) for reward in body.rewards]
    return body.model_copy(update={"id": name, "call_list": calls, "rewards": rewards})


async def as_stored(ctx: Ctx, bodies: list[EpisodeIn]) -> list[EpisodeIn]:
    """What ``proxy.redact`` leaves of them."""
    redaction = redaction_of(ctx.deps.config)
    if redaction is None:
        return bodies
    return [await in_thread(_redacted_episode, redaction, body) for body in bodies]


def _redacted_episode(redaction: Redaction, body: EpisodeIn) -> EpisodeIn:
    """A call that was changed loses its tokens, which say the same in other signs. So do the others, which may share
    its words.
    """
    tags, calls, changed = body.tags, list[c.CallRecord](), False
    for call in whole_calls(body.call_list):
        before: JsonObject = {"messages": call.messages, "tools": call.tools}
        said, answer, tags = redacted_call(redaction, before, call.reply, tags)
        if (said, answer) != (before, call.reply):
            changed, marks = True, {"trainable": False, "untrainable_reason": "redacted"}
            call = call.model_copy(update={k: said[k] for k in before} | {"reply": answer} | marks)
        with redaction_problems():
            rest = {
                name: redaction.tree(f"call.{name}", getattr(call, name)) for name in ("sampling", "error", "model")
            }
        call = call.model_copy(update=rest)
        calls.append(call)
    if changed:
        bare = {"prompt_ids": None, "completion_ids": None, "logprobs": None}
        calls = [call.model_copy(update=bare) for call in calls]
    with redaction_problems():
        rewards = [_redacted_reward(redaction, reward) for reward in body.rewards]
        model, error = redaction.text("model", body.model), redaction.tree("call.error", body.error)
    task = body.task and redaction.name("task", body.task)
    tags = {redaction.name("tag_name", name): value for name, value in tags.items()}
    names = {"task": task, "tags": tags, "model": model, "error": error}
    return body.model_copy(update={"call_list": calls, "rewards": rewards, **names})


def _redacted_reward(redaction: Redaction, reward: c.Reward) -> c.Reward:
    """As ``redaction.redacted_body`` does with one that is posted."""
    reason = redaction.texts({"reward.reason": reward.reason})["reward.reason"] if reward.reason else reward.reason
    names = {tag: redaction.name(f"reward.{tag}", getattr(reward, tag)) for tag in ("name", "source")}
    key = reward.key and redaction.id("reward.key", reward.key)
    meta = redaction.tree("reward.meta", reward.meta)
    return reward.model_copy(update={"reason": reason, "key": key, "meta": meta, **names})


def change_of(body: EpisodeIn) -> JsonObject:
    # as text: a transcript may hold numbers and letters that the spool's own JSON has no way to write
    text = json_of(body).decode()
    days = sorted({schema.day_of(call.at) for call in body.call_list})
    return {"key": body.key, "episode": body.id, "days": days, "text": text}


@API_ROUTES.add("POST", "/import/episode", (KeyScope.ADMIN,), body=EpisodeIn, result=c.Imported, errors=(409,))
async def post_episode(ctx: Ctx) -> web.StreamResponse:
    """Restore an exported episode. A repeat changes nothing."""
    body: EpisodeIn = ctx.body
    if not (new := await check(ctx, [body], ["body"])):
        return reply(c.Imported(episode=body.id, calls=0, state="there"))
    await ctx.deps.mutate("episode", change_of(new[0]))
    return reply(c.Imported(episode=body.id, calls=len(body.call_list)))


@API_ROUTES.add("POST", "/import/episodes", (KeyScope.ADMIN,), body=EpisodesIn, result=c.ImportedMany, errors=(409,))
async def post_episodes(ctx: Ctx) -> web.StreamResponse:
    """Restore up to 256 exported episodes at once, all or none. A repeat changes nothing.

    All of them are checked before the first is kept; the last one's commit is waited for, which comes after the
    others'.
    """
    body: EpisodesIn = ctx.body
    if len({(e.key, e.id) for e in body.episodes}) != len(body.episodes):
        raise Problem(409, "the list has an episode twice", field="body.episodes", fix="send each once")
    new = await check(ctx, body.episodes, [f"body.episodes.{n}" for n in range(len(body.episodes))])
    await ctx.deps.mutate_all([("episode", change_of(e)) for e in new])
    fresh = {(e.key, e.id) for e in new}
    found = [
        c.Imported(episode=e.id, calls=len(e.call_list))
        if (e.key, e.id) in fresh
        else c.Imported(episode=e.id, calls=0, state="there")
        for e in body.episodes
    ]
    return reply(c.ImportedMany(episodes=found))


@API_ROUTES.add("POST", "/import/adapters", (KeyScope.ADMIN,), body=c.AdapterList, result=BroughtIn, errors=(409,))
async def post_adapters(ctx: Ctx) -> web.StreamResponse:
    """Import the adapters of another store, as GET adapters returns them. A repeat changes nothing.

    States are taken as they are: the live one is loaded before any call is sent to it. Those that are here already
    stay as they are.
    """
    models = ctx.deps.rollout.registry.models
    body: c.AdapterList = ctx.body
    strange = [a.name for a in body.adapters if a.model not in models or a.name != f"{a.model}@{a.version}"]
    if strange:
        text = f"{strange[0]} is no adapter of a trained model"
        raise Problem(409, text, field="body.adapters", fix=f"trained models: {', '.join(models)}")
    return reply(BroughtIn(adapters=await ctx.deps.rollout.registrar.bring_in(body.adapters)))
