"""Every method of the client, once: its arguments, the request they make, and the type of its result.

``Client`` and ``AsyncClient`` (sessions.py) both take their methods from here, so the two can't differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from pydantic import BaseModel, ValidationError

from slipstream import contract as c
from slipstream.client.ask import Ask, model, nothing, part, query
from slipstream.errors import ApiError, Unavailable
from slipstream.models import read_model
from slipstream.shared.prefixes import whole_group

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class LeasedBatch:
    """The trainer's work: ``table`` has ``contract.BATCH_COLUMNS``, a row per sampled choice.

    Hold it until ``until``.
    """

    id: str
    lease: str
    until: float
    packed: pa.Table
    """As it came: prompts of long runs in deltas (``prefix_row``)."""

    @property
    def table(self) -> pa.Table:
        """With every prompt whole, put together again each time."""
        from slipstream.shared.tables import whole_prompts

        return whole_prompts(self.packed)


class _Parked(BaseModel):
    groups: list[c.Group]


def _batch(response: httpx.Response) -> LeasedBatch | None:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    import pyarrow as pa

    try:
        table = pa.ipc.open_stream(response.content).read_all()
        h = response.headers
        return LeasedBatch(h["x-slipstream-batch"], h["x-slipstream-lease"], float(h["x-slipstream-until"]), table)
    except (KeyError, ValueError, IndexError, OSError, pa.ArrowException) as e:
        raise Unavailable(f"{response.url} answered with a broken batch: {e!r}") from e


def _groups(response: httpx.Response) -> c.GroupLease | None:
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    lease = model(c.GroupLease)(response)
    return lease.model_copy(update={"groups": [whole_group(group) for group in lease.groups]})


def _events(response: httpx.Response) -> list[c.Event]:
    try:
        # only \n ends a line of NDJSON: U+2028 and such may stand in a string
        return [read_model(c.Event, line) for line in response.content.split(b"\n") if line.strip()]
    except ValidationError as e:
        raise ApiError(response.status_code, f"{response.url} returned something that is not a valid event: {e}") from e


# --- episodes ---


def episodes(**filters: Any) -> Ask[c.EpisodePage]:
    """Filters: task, split, adapter, state, outcome, model, kind, tags, reward_min, reward_max, since, until, cursor,
    limit; ``count``: say the ``total``.
    """
    return Ask("GET", "/episodes", model(c.EpisodePage), params=query(filters))


def episode_page(
    id: str,
    *,
    tokens: bool = False,
    form: c.Form = "auto",
    calls_from: int = 0,
    calls: int | None = None,
    of_key: str | None = None,
) -> Ask[c.EpisodeDetail]:
    """An episode with a page of its calls, in the form asked for. ``next_call`` says where the next page begins.

    ``of_key``: the key that made it, because several may use one id.
    """
    params = {"tokens": int(tokens), "form": form, "calls_from": calls_from, "calls": calls, "key": of_key}
    return Ask("GET", f"/episodes/{part(id)}", model(c.EpisodeDetail), params=query(params))


def add_reward(episode: str, reward: c.RewardIn, *, of_key: str | None = None) -> Ask[c.RewardAck]:
    """``of_key``: the key that made the episode, where it is another one's."""
    where = f"/episodes/{part(episode)}/rewards"
    return Ask("POST", where, model(c.RewardAck), reward, params=query({"key": of_key}))


def add_feedback(episode: str, said: c.FeedbackIn, *, of_key: str | None = None) -> Ask[c.RewardAck]:
    """``of_key``: the key that made the episode, where it is another one's."""
    where = f"/episodes/{part(episode)}/feedback"
    return Ask("POST", where, model(c.RewardAck), said, params=query({"key": of_key}))


def done(episode: str) -> Ask[None]:
    return Ask("POST", f"/episodes/{part(episode)}/done", nothing, c.DoneIn())


def delete(episode: str) -> Ask[c.Deleted]:
    return Ask("DELETE", f"/episodes/{part(episode)}", model(c.Deleted))


def forget(which: c.ForgetIn) -> Ask[c.ForgetOut]:
    """Forget many episodes at once; ask again while ``more`` is true."""
    return Ask("POST", "/forget", model(c.ForgetOut), which)


# --- sets of cases ---


def case_sets() -> Ask[c.CaseSets]:
    return Ask("GET", "/cases", model(c.CaseSets))


def case_page(name: str, *, version: int | None = None, after: str = "", whole: bool = False) -> Ask[c.CasePage]:
    """A page of a set's cases. ``whole``: with each episode's calls and tokens. ``version`` None: the newest."""
    params = query({"version": version, "after": after or None, "whole": int(whole)})
    return Ask("GET", f"/cases/{part(name)}", model(c.CasePage), params=params)


def add_cases(name: str, which: c.CasesIn, **filters: Any) -> Ask[c.CasesChanged]:
    """Filters as those of ``episodes``."""
    return Ask("POST", f"/cases/{part(name)}", model(c.CasesChanged), which, params=query(filters))


def import_cases(name: str, episodes: list[dict[str, Any]]) -> Ask[c.CasesChanged]:
    """Up to 256 episodes as they were exported become cases. Nothing is trained on them."""
    return Ask("POST", f"/cases/{part(name)}/import", model(c.CasesChanged), {"episodes": episodes})


def remove_cases(name: str, which: c.CasesRemoved) -> Ask[c.CasesChanged]:
    return Ask("POST", f"/cases/{part(name)}/remove", model(c.CasesChanged), which)


def drop_cases(name: str) -> Ask[c.CaseSet]:
    """Deletes a set with all its versions."""
    return Ask("DELETE", f"/cases/{part(name)}", model(c.CaseSet))


# --- the judge's work ---


def lease_groups(wanted: c.GroupLeaseIn) -> Ask[c.GroupLease | None]:
    return Ask("POST", "/groups/lease", _groups, wanted)


def post_scores(group: str, scores: c.ScoresIn) -> Ask[None]:
    return Ask("POST", f"/groups/{part(group)}/scores", nothing, scores)


def begin_rerun(rerun: c.RerunIn) -> Ask[None]:
    """Stored groups are about to be scored again: for the audit log."""
    return Ask("POST", "/judge/reruns", nothing, rerun)


def report_judge(report: c.JudgeReport) -> Ask[c.JudgeBacklog]:
    """How a copy of the judge stands. → The judge's queue."""
    return Ask("POST", "/judge/report", model(c.JudgeBacklog), report)


def parked() -> Ask[list[c.Group]]:
    """Groups that the judge gave up after ``judge.max_attempts`` failures."""
    return Ask("GET", "/groups/parked", lambda r: [whole_group(g) for g in model(_Parked)(r).groups])


def retry_group(group: str) -> Ask[None]:
    return Ask("POST", f"/groups/{part(group)}/retry", nothing)


def cache_get(key: str) -> Ask[dict[str, Any] | None]:
    """None: nothing is stored under ``key``."""
    return Ask("GET", f"/judge/cache/{part(key)}", lambda r: model(c.CacheEntry)(r).value, default=lambda: None)


def cache_put(key: str, value: dict[str, Any], group: str | None = None, lease: str | None = None) -> Ask[None]:
    return Ask(
        "PUT", f"/judge/cache/{part(key)}", nothing, c.CacheEntry(key=key, value=value, group=group, lease=lease)
    )


# --- the trainer's work ---


def batch(id: str) -> Ask[c.BatchDetail]:
    """A batch and its episodes."""
    return Ask("GET", f"/batches/{part(id)}", model(c.BatchDetail))


def lease_batch(wanted: c.BatchLeaseIn) -> Ask[LeasedBatch | None]:
    """None: there are not enough scored groups yet."""
    return Ask("POST", "/batches/lease", _batch, wanted)


def train_again(again: c.TrainAgainIn, **filters: Any) -> Ask[c.TrainAgain]:
    """Groups with such a run are trained on again. ``filters``: those of ``episodes``."""
    return Ask("POST", "/training/again", model(c.TrainAgain), again, params=query(filters))


def train_anew(anew: c.TrainAnewIn) -> Ask[c.TrainAnew]:
    """Versions are taken back, and what they were trained on is trained on anew, without some episodes."""
    return Ask("POST", "/training/anew", model(c.TrainAnew), anew)


def stop_training_again() -> Ask[c.TrainAgainStopped]:
    return Ask("DELETE", "/training/again", model(c.TrainAgainStopped))


def ack_batch(batch: str, ack: c.BatchAck) -> Ask[None]:
    return Ask("POST", f"/batches/{part(batch)}/ack", nothing, ack)


def tell_gaps(batch: str, gaps: c.BatchGaps) -> Ask[None]:
    return Ask("POST", f"/batches/{part(batch)}/gaps", nothing, gaps)


def release(worker: str) -> Ask[None]:
    """Gives back every lease of ``worker``."""
    return Ask("POST", "/leases/release", nothing, {"worker": worker})


def hold_engine(hold: c.HoldIn) -> Ask[c.Hold]:
    return Ask("POST", "/engine/hold", model(c.Hold), hold)


def release_engine(worker: str) -> Ask[c.EngineReleased]:
    return Ask("POST", "/engine/release", model(c.EngineReleased), c.EngineReleaseIn(worker=worker))


# --- adapters ---


def be_learner(wanted: c.LearnerIn) -> Ask[c.LearnerAnswer]:
    """Be the one trainer of a model, stay it, or wait for it."""
    return Ask("POST", "/learner", model(c.LearnerAnswer), wanted)


def claim_name(wanted: c.NameClaimIn) -> Ask[c.NameClaim]:
    """The name of a version that is about to be written. Nobody else gets it."""
    return Ask("POST", "/adapters/claim", model(c.NameClaim), wanted)


def add_adapter(adapter: c.AdapterIn) -> Ask[c.Adapter]:
    return Ask("POST", "/adapters", model(c.Adapter), adapter)


def try_adapter(adapter: c.AdapterTrialIn) -> Ask[c.AdapterTrial]:
    return Ask("POST", "/adapters/try", model(c.AdapterTrial), adapter)


def upload_adapter(adapter: c.AdapterIn, files: Mapping[str, Path]) -> Ask[c.Adapter]:
    """With its files, by their names: for a proxy that does not see this machine's folder. A weights file that is left
    out came in parts (``Client.upload_weights``).
    """
    return Ask("POST", "/adapters", model(c.Adapter), adapter, files=files)


def upload_trial(adapter: c.AdapterTrialIn, files: Mapping[str, Path]) -> Ask[c.AdapterTrial]:
    return Ask("POST", "/adapters/try", model(c.AdapterTrial), adapter, files=files)


def upload_state(sha256: str) -> Ask[c.UploadState]:
    return Ask("GET", f"/adapters/uploads/{sha256}", model(c.UploadState))


def upload_part(sha256: str, offset: int, part: bytes) -> Ask[c.UploadState]:
    return Ask("PUT", f"/adapters/uploads/{sha256}", model(c.UploadState), params={"offset": offset}, content=part)


def adapter_file(adapter: str, file: str) -> Ask[bytes]:
    """``adapter_config.json`` or ``adapter_model.safetensors`` of a version."""
    return Ask("GET", f"/adapters/{part(adapter)}/files/{file}", lambda r: r.content)


def adapters() -> Ask[c.AdapterList]:
    return Ask("GET", "/adapters", model(c.AdapterList))


def replay_of(adapter: str) -> Ask[c.ReplayShown]:
    """How a version did on recorded steps before anybody met it, with its worst cases."""
    return Ask("GET", f"/adapters/{part(adapter)}/replay", model(c.ReplayShown))


def _by_hand(action: c.Action, adapter: str, reason: str | None, group: str | None = None) -> Ask[c.Adapter]:
    body = c.GateIn(reason=reason, group=group).model_dump(exclude_none=True)
    return Ask("POST", f"/adapters/{part(adapter)}/{action}", model(c.Adapter), body)


def promote(adapter: str, reason: str | None = None, group: str | None = None) -> Ask[c.Adapter]:
    """Make it live, or give it back to one group of runs (``tag.NAME=VALUE``, ``task=NAME``)."""
    return _by_hand("promote", adapter, reason, group)


def demote(adapter: str, reason: str | None = None, group: str | None = None) -> Ask[c.Adapter]:
    """Take it back, or take it back for one group of runs."""
    return _by_hand("demote", adapter, reason, group)


def freeze(adapter: str, reason: str | None = None) -> Ask[c.Adapter]:
    """It is not accepted, and newer versions wait."""
    return _by_hand("freeze", adapter, reason)


def unfreeze(adapter: str, reason: str | None = None) -> Ask[c.Adapter]:
    """The gate decides on it again, and no guard freezes it."""
    return _by_hand("unfreeze", adapter, reason)


def keep_adapter(adapter: str, seconds: float = 60.0) -> Ask[c.Adapter]:
    """Load it, and keep it in the engines so long, though no run needs it. 0: no longer."""
    return Ask("POST", f"/adapters/{part(adapter)}/keep", model(c.Adapter), c.AdapterKeepIn(seconds=seconds))


def adapter_effect(adapter: str, action: c.Action, group: str | None = None) -> Ask[c.AdapterEffect]:
    """What one of these four would do. Nothing is changed."""
    params = query({"action": action, "group": group})
    return Ask("GET", f"/adapters/{part(adapter)}/effect", model(c.AdapterEffect), params=params)


# --- events, status, SQL ---


def post_event(event: c.Event) -> Ask[None]:
    return Ask("POST", "/training/events", nothing, event)


def events(after: int = 0) -> Ask[list[c.Event]]:
    return Ask("GET", "/training/events", _events, params={"after": after})


def status() -> Ask[c.Status]:
    return Ask("GET", "/status", model(c.Status))


def tenants() -> Ask[c.TenantList]:
    """For the operator: whom the proxy serves beside itself."""
    return Ask("GET", "/tenants", model(c.TenantList))


def cost(**filters: object) -> Ask[c.CostTable]:
    """What runs took. Filters: each (``adapter``, ``task``, ``tag.<name>``, …), key, model, task, split, tag, since,
    until.
    """
    return Ask("GET", "/cost", model(c.CostTable), params=query(filters))


def learning(**filters: object) -> Ask[c.Learning]:
    """Filters: by (adapter, time), each, model, task, split, arm, tag, since, until, bucket, success_from."""
    return Ask("GET", "/learning", model(c.Learning), params=query(filters))


def sql(query: str, limit: int = 1000) -> Ask[c.SqlResult]:
    return Ask("POST", "/sql", model(c.SqlResult), c.Sql(query=query, limit=limit))


# --- import and export ---


def restore_episode(episode: dict[str, Any]) -> Ask[c.Imported]:
    """Puts back an episode as ``export("jsonl")`` wrote it, with its ids and log-probabilities. Needs an admin key."""
    return Ask("POST", "/import/episode", model(c.Imported), episode)


def restore_episodes(episodes: list[dict[str, Any]]) -> Ask[c.ImportedMany]:
    """``restore_episode`` of up to 256 at once: all of them or none. Needs an admin key."""
    return Ask("POST", "/import/episodes", model(c.ImportedMany), {"episodes": episodes})


def restore_adapters(adapters: dict[str, Any]) -> Ask[None]:
    """Puts back adapters and their states, as ``adapters()`` returned them. Needs an admin key."""
    return Ask("POST", "/import/adapters", nothing, adapters)


def backup() -> Ask[None]:
    """A tar file, streamed: a client reads the response itself."""
    return Ask("GET", "/backup", nothing)


def export(format: str, filters: dict[str, Any]) -> Ask[None]:
    """The dataset is streamed: a client reads the response itself."""
    return Ask("GET", "/export", nothing, params=query(filters) | {"format": format})


# --- people ---


def audit(**filters: object) -> Ask[c.AuditPage]:
    """Filters: key, action, target, since, until, cursor, limit."""
    return Ask("GET", "/audit", model(c.AuditPage), params=query(filters))


def pause_training(reason: str | None = None) -> Ask[c.Paused]:
    return Ask("POST", "/training/pause", model(c.Paused), c.PauseIn(reason=reason))


def resume_training(reason: str | None = None) -> Ask[c.Paused]:
    return Ask("POST", "/training/resume", model(c.Paused), c.PauseIn(reason=reason))


def annotate(text: str, at: float | None = None, *, rewards_changed: bool = False) -> Ask[c.Annotations]:
    """``at``: seconds since the epoch; None: now. ``rewards_changed``: rewards mean something else from then on."""
    body = c.AnnotationIn(text=text, at=at, rewards_changed=rewards_changed)
    return Ask("POST", "/annotations", model(c.Annotations), body)
