"""Causes between a scored group and a step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from slipstream.config import Config
from slipstream.contract import FunnelLine
from slipstream.engines import DEFAULT_ENGINE, ENGINE_OBJECTS
from slipstream.shared.hub import quantised_as
from slipstream_proxy.control.status.causes.surroundings import (
    BLOCKS,
    REMARK,
    SLOWS,
    SOON_S,
    Surroundings,
    in_the_file,
    is_in_trouble,
    sidecar_lines,
)
from slipstream_proxy.dialects.untrainable import TRUST_ADVICE, UntrainableReason, find_reason
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural, span
from slipstream_proxy.store.write.batches import LEAST_RUNS, MUCH_LONGER

Reason = UntrainableReason
_FIELDS: dict[str, tuple[str, ...]] = {
    Reason.TEMPERATURE_0: ("temperature",),
    Reason.PENALTIES: ("presence_penalty", "frequency_penalty", "repetition_penalty"),
}
"""Reason → the fields that it is about."""
_EXPLORED = {
    "siblings": "calls get siblings, which train",
    "temperature": "runs are sampled at a temperature, and train",
}
SHAPED_CAUSES = frozenset(
    (
        *(*_FIELDS, Reason.MIN_TOKENS, Reason.IGNORE_EOS, Reason.LOGIT_BIAS, Reason.STRUCTURED, Reason.FORCED_TOOL),
        *(Reason.RESTRICTED, Reason.ENGINE_SAMPLING, Reason.ENGINE_OPTIONS, Reason.WATERMARK, Reason.THINKING_BUDGET),
    )
)
"""Reasons that lie in how the reply was sampled: its siblings are sampled otherwise."""


def fix_untrainable(reason: str, own: Mapping[str, float] | None = None, model: str = "<name>") -> str:
    """What to change so that such calls train. ``own``: what the engine samples with where a call says nothing."""
    if reason == Reason.ENGINE_SAMPLING or any(name in (own or ()) for name in _FIELDS.get(reason, ())):
        return f"{DEFAULT_ENGINE.neutral_fix}; or {in_the_file(model)}, {TRUST_ADVICE}"
    of_an_engine = {text: fix for engine in ENGINE_OBJECTS.values() for text, fix in engine.fixes.items()}
    if reason in of_an_engine:
        return of_an_engine[reason]
    found = find_reason(reason)
    return found.fix if found is not None else "docs/capture.md lists the reasons"


MOST_AGED_SHARE = 0.25
"""Of the calls of the latest steps, above which a person is told that they were too old to train on."""
ENGINE_GAP = 0.08
"""Nats a token. bf16 on both sides is 0.001 to 0.05; an engine whose graphs were wrong had 0.1 to 1.5."""
GUARDS_ADVICE = "see the lines above, and the docs on the trainer's guards (max_ratio, max_engine_kl)"


def untrainable_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    recent = counts.recent
    never = counts.trained_calls <= sum(counts.untrainable.values())
    stuck = 0 < recent.trained <= recent.untrainable and (never or not counts.ready)
    many = 2 * recent.untrainable > recent.trained
    for reason, count in counts.untrainable.items():
        text = f"{plural(count, 'call', 'calls')} can't be trained on: {reason}"
        if reason == Reason.ENGINE_SAMPLING and around.sampling is not None and around.sampling.known:
            text += ", which the proxy did not know yet when it answered them"
            fix = "nothing to do: the proxy knows it now, and further calls train"
            yield FunnelLine(stage="untrainable", cause=reason[:80], count=count, text=text, fix=fix, severity=REMARK)
            continue
        own = around.sampling.values if around.sampling else {}
        fix = fix_untrainable(reason, own, around.config.model_name)
        severity = BLOCKS if stuck else SLOWS if many else REMARK
        explores = {
            name: route
            for name, route in around.config.models.items()
            if (route.explore is not None and reason in _FIELDS)
            or (route.explore == "siblings" and reason in SHAPED_CAUSES)
        }
        if explores:
            gives = (
                f"{name}: {route.explore_share:.0%} of such {_EXPLORED[str(route.explore)]}"
                for name, route in explores.items()
            )
            whole = explores.keys() >= {around.config.model_name, *around.config.models}
            fix = f"nothing to do where explore is set (model {', '.join(gives)})" + ("" if whole else f"; else {fix}")
            severity = REMARK if whole else severity
        yield FunnelLine(stage="untrainable", cause=reason[:80], count=count, text=text, fix=fix, severity=severity)


def ready_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    need, patience = around.pace
    teaching, runs, since, words, early, heard = counts.teaching
    ready = counts.ready - words - early
    if around.config.trainer.algorithm == "sft":  # imitation compares nothing: every group counts
        teaching, runs = ready, LEAST_RUNS
    waits = patience if runs >= LEAST_RUNS else MUCH_LONGER * patience
    waited = around.now - (around.now if since is None else since)
    few = teaching + heard // LEAST_RUNS < need and not (teaching + words and waited >= waits)
    if words + early:
        text = f"{plural(words + early, 'piece of feedback waits', 'pieces of feedback wait')}: "
        text += f"{early} until the run is over" if early else ""
        text += ", " if early and words else ""
        if words and few:
            text += f"{words} for more of them (a step takes one of a run; {LEAST_RUNS} count as a group, and {need} "
            text += "groups are a step) or "
            text += span(waits - waited)
        elif words:
            text += f"{words} ready: {_then(counts, around)}"
        yield FunnelLine(stage="ready", cause="words", count=words + early, text=text)
    if ready and few:
        text = f"{plural(ready, 'group', 'groups')} complete and scored, {need} needed for a step"
        if need > around.config.trainer.min_groups:
            text += ", because many runs are several versions old when they end"
        if teaching < ready:
            text += f"; of them {plural(teaching, 'has', 'have')} runs that differ in reward, and only such count"
        fix = "a step is taken sooner with fewer groups if trainer.min_groups or trainer.max_wait is lower"
        if since is not None:
            why = f", because they have fewer than {LEAST_RUNS} runs ({runs})" if runs < LEAST_RUNS else ""
            left = span(waits - waited)
            text += f"; fewer are taken in {left}, when the first of them has waited {span(waits)}{why}"
        yield FunnelLine(stage="ready", cause="too_few", count=ready, text=text, fix=fix)
    elif ready:
        text = f"{plural(teaching, 'group is', 'groups are')} ready: {_then(counts, around)}"
        if flat := ready - teaching:
            text += (
                f"; {plural(flat, 'more teaches', 'more teach')} nothing: all {'its' if flat == 1 else 'their'} runs "
            )
            text += "got the same reward"
        yield FunnelLine(stage="ready", cause="ready", count=teaching, text=text)
    elif not (counts.leased or counts.again.left or words):
        text = f"0 groups complete and scored, {need} needed for a step"
        yield FunnelLine(stage="ready", cause="none", count=0, text=text)
    yield from _stored(counts)


def _then(counts: FunnelCounts, around: Surroundings) -> str:
    """What comes of that which is ready."""
    if 0 < counts.recent.trained <= counts.recent.untrainable:
        return "the trainer drops what holds no call that can be trained on, as none of the latest can"
    if counts.leased:
        return "the trainer takes them after the batch that it has"
    if around.paused is not None:
        return "they wait until training is resumed"
    if not around.schedule.open:
        return "they wait for the trainer's schedule"
    if around.slots:
        return "the trainer takes them once the version that it made has a slot in the engine"
    if around.replayed:
        return f"the trainer goes a few steps on, and takes the rest once {around.replayed[0].name} is decided"
    return "they wait for the trainer" if around.trainer_away else "the trainer takes them next"


def _stored(counts: FunnelCounts) -> Iterator[FunnelLine]:
    """What is trained on again, and what could be."""
    again = counts.again
    if again.left:
        done = f"{again.passes - again.left} of {plural(again.passes, 'pass is', 'passes are')} done"
        text = f"training on stored groups: {done}, {plural(again.groups, 'group waits', 'groups wait')}"
        text += "; newer groups go first" if counts.ready else ""
        fix = "wait; `slipstream train --from-store --stop` ends it"
        yield FunnelLine(stage="ready", cause="again", count=again.left, text=text, fix=fix)
    if counts.corrected:
        have = plural(counts.corrected, "group has", "groups have")
        text = (
            f"{have} other rewards by now than it was trained with"
            if counts.corrected == 1
            else (f"{have} other rewards by now than they were trained with")
        )
        fix = "`slipstream train --from-store` trains on them with the new ones"
        yield FunnelLine(stage="ready", cause="corrected", count=counts.corrected, text=text, fix=fix)


def _waiting_trainers(around: Surroundings) -> Iterator[FunnelLine]:
    for one in around.learners:
        if waiting := one.waiting:
            waits = plural(len(waiting), "trainer waits", "trainers wait")
            where = ", ".join(w.place for w in waiting)
            text = f"{waits} ({where}): {one.worker} at {one.place} learns for {one.model}"
            fix = "none is needed if it is a reserve: it goes on when that one has ended; else stop one of them"
            yield FunnelLine(stage="trainer", cause="waits", count=len(waiting), text=text, fix=fix)


def trainer_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    yield from sidecar_lines("trainer", around, BLOCKS)
    yield from _waiting_trainers(around)
    if around.paused is not None:
        text = f"training is paused by {around.paused}"
        fix = "slipstream resume"
        yield FunnelLine(stage="trainer", cause="paused", count=1, text=text, fix=fix, severity=BLOCKS)
    elif not around.schedule.open:
        wait = max(1.0, around.schedule.at - around.now)
        at = time.strftime("%a %H:%M", time.localtime(around.schedule.at)) if wait > SOON_S else f"in {span(wait)}"
        text = f"the trainer's schedule is closed: {around.schedule.why}. It goes on {at}"
        text += " at the earliest" if around.config.trainer.schedule.idle is not None else ""
        fix = "wait: groups are kept until then, however old they become; or change trainer.schedule or the quota"
        yield FunnelLine(stage="trainer", cause="schedule", count=round(wait), text=text, fix=fix, severity=BLOCKS)
    if counts.leased:
        doing = "with the trainer" if is_in_trouble("trainer", around) else "being trained on"
        text = f"{plural(counts.leased, 'group is', 'groups are')} {doing}"
        yield FunnelLine(stage="trainer", cause="training", count=counts.leased, text=text)
    elif around.trainer_away and not around.slots and not is_in_trouble("trainer", around):
        text = f"the trainer has not asked for work for {span(around.trainer_silence)}"
        if not around.trainer_came:
            text = f"no trainer has asked for work yet, {span(around.trainer_silence)} after the proxy's start"
        fix = "start `slipstream trainer` (or `slipstream up`), and see its log"
        silence = round(around.trainer_silence)
        yield FunnelLine(stage="trainer", cause="away", count=silence, text=text, fix=fix, severity=BLOCKS)
    if counts.last_skipped is not None:
        text = f"the trainer skipped its latest batch: {counts.last_skipped.reason}"
        tells = "see that the reward tells good runs of a task from bad ones"
        fix = tells if counts.last_skipped.equal else GUARDS_ADVICE
        yield FunnelLine(stage="trainer", cause="skipped", count=1, text=text, fix=fix, severity=SLOWS)


def step_lines(counts: FunnelCounts, around: Surroundings) -> Iterator[FunnelLine]:
    small = [kl for kl in counts.kls if kl < 1]
    if counts.kls and len(small) == len(counts.kls):
        latest = plural(len(small), "step", "steps")
        text = f"the latest {latest} hardly changed the policy (KL below a hundredth of a full step's)"
        fix: str | None = 'set trainer.learning_rate = "auto", or raise it'
        if around.config.trainer.learning_rate == "auto":
            text, fix = f"{text}: the learning rate rises by itself; the step events name the cause", None
        severity = SLOWS if fix else REMARK
        yield FunnelLine(stage="step", cause="small_kl", count=len(small), text=text, fix=fix, severity=severity)
    old, handed = counts.aged
    if old > MOST_AGED_SHARE * handed:
        text = f"{old} of {plural(handed, 'call', 'calls')} of the latest steps were too old to train on: "
        text += f"more than {around.config.trainer.max_staleness} versions went live while their groups filled"
        fix = "raise trainer.max_wait and trainer.min_groups, so that versions come more slowly, or run a task's runs "
        fix += "close together"
        yield FunnelLine(stage="step", cause="aged", count=old, text=text, fix=fix, severity=SLOWS)
    if (gap := counts.engine_gap) is not None and gap > ENGINE_GAP:
        text = (
            f"the engine's log-probabilities are {gap:.2g} nats a token away from the trainer's with the same weights "
            f"(up to {ENGINE_GAP} is usual): the trainer learns from tokens that the model would not choose"
        )
        fix = _closer(around.config)
        yield FunnelLine(stage="step", cause="engine_gap", count=round(1000 * gap), text=text, fix=fix, severity=SLOWS)


def _closer(config: Config) -> str:
    """What brings engine and trainer together."""
    goes_on = "training goes on, slower, with the weight of such tokens capped (trainer.is_max)"
    if config.trainer.quantize == "4bit":
        free = 'set trainer.quantize = "none" if the GPU has room for it'
        return f"the trainer rounds the base to 4 bits: {free}; else {goes_on}"
    if config.engine.model and (kind := quantised_as(config.engine.model)):
        rounds = f"the engine's model is stored as {kind}, and it rounds what the trainer does not"
        return f"{rounds}: serve the unquantised model if the GPU has room for it; else {goes_on}"
    fix = (
        "load the same model in engine and trainer (name, revision, no quantisation), and start vLLM without a "
        "--compilation-config or --kv-cache-dtype of your own"
    )
    formats = config.engine.dtype, config.trainer.dtype
    if "auto" in formats or formats[0] != formats[1]:
        named = "engine.dtype is {}, trainer.dtype is {}".format(*formats)
        fix = f"compute in one number format in engine and trainer ({named}); {fix}"
    return fix
