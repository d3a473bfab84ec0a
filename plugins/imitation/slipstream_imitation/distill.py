"""``slipstream distill``: stored runs, of an external model or of any other, become an adapter of your own model.

What was said is rendered by the own model's chat template, call by call (``batch.dataset.rendered``). Calls that go on
with each other become one sequence, in which the replies alone count. TRL's trainers do the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from slipstream.config import Config
from slipstream.contract import THUMBS_REWARD, CallRecord, EpisodeDetail, EpisodeState, Reward, Split, TrainedOn
from slipstream.errors import StartError
from slipstream.shared.hub import check_own_code
from slipstream.shared.prefixes import whole_calls
from slipstream_chat.inputs import chat_of, tool_of
from slipstream_chat.report import Place, Report
from slipstream_imitation.teaching import Method, TaughtRow
from slipstream_trainer.batch.dataset import Unrendered, read_rows, rendered
from slipstream_trainer.batch.rows import Sample, merge_chains

if TYPE_CHECKING:
    from pydantic import JsonValue
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)


@dataclass(slots=True)
class TaughtLine:
    """A conversation as the own model reads and says it. ``said``: 1 for each token that it says."""

    ids: list[int]
    said: list[int]


@dataclass(slots=True)
class TaughtRun:
    """What an episode has to teach."""

    name: str
    group: str
    reward: float | None
    thumbs: dict[str | None, float]
    """Call → the latest thumb about it. None: about the whole run."""
    samples: list[Sample]
    edits: dict[str, tuple[TaughtLine, TaughtLine]]
    """Call → what a person wrote, and the reply that it replaces."""

    def of_people(self, call: str) -> bool | None:
        """Whether people say that what ``call`` says now is good. A thumb down is not outvoted by one that is up."""
        if call in self.edits:
            return True
        thumbs = [self.thumbs[about] for about in (call, None) if about in self.thumbs]
        return min(thumbs) > 0 if thumbs else None

    @property
    def imitated(self) -> list[TaughtLine]:
        """With the replies alone that no thumb down is about."""
        liked = {s.call for s in self.samples if self.of_people(s.call) is not False}
        return lines_of(self.samples, liked)


@dataclass(slots=True)
class Material:
    """What is trained on. A part is what one run, or two, teach: held out as a whole."""

    parts: list[list[TaughtRow]] = field(default_factory=list)
    taught: list[TaughtRun] = field(default_factory=list)
    """The runs that are used."""
    pairs: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → runs."""
    calls_left_out: Counter[str] = field(default_factory=Counter)
    """Reason → calls of runs."""

    @property
    def runs(self) -> int:
        return len(self.taught)


class RunReader:
    """Rows of ``slipstream export`` as runs."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, ends: Iterable[int], budget: int, teacher: str | None
    ) -> None:
        self.tokenizer, self.ends, self.budget, self.teacher = tokenizer, set(ends), budget, teacher
        self.calls_left_out: Counter[str] = Counter()

    def run(self, episode: EpisodeDetail) -> TaughtRun:
        calls = whole_calls(episode.call_list)
        written = edits_of(calls, episode.rewards)
        samples: list[Sample] = []
        edits: dict[str, tuple[TaughtLine, TaughtLine]] = {}
        for call in calls:
            try:
                prompt, reply = self._rendered(call, None)
                if call.id in written:
                    before = TaughtLine([*prompt, *reply], [0] * len(prompt) + [1] * len(reply))
                    prompt, reply = self._rendered(call, written[call.id])
                    edits[call.id] = TaughtLine([*prompt, *reply], [0] * len(prompt) + [1] * len(reply)), before
            except Unrendered as why:
                self.calls_left_out[str(why)] += 1
                continue
            samples.append(_sample(episode, call, prompt, reply))
        thumbs = {r.call: r.value for r in sorted(episode.rewards, key=lambda r: r.at) if r.name == THUMBS_REWARD}
        alone = episode.task or episode.id
        return TaughtRun(
            f"{episode.key}/{episode.id}",
            episode.group or f"{episode.key}/{alone}",
            episode.reward,
            thumbs,
            samples,
            edits,
        )

    def _rendered(self, call: CallRecord, written: str | None) -> tuple[list[int], list[int]]:
        if call.outcome != "ok" or not call.reply or not call.messages:
            raise Unrendered("failed")
        if call.untrainable_reason == "redacted":
            raise Unrendered("redacted")
        if self.teacher is not None and call.model != self.teacher:
            raise Unrendered("other_model")
        place = Place(Report(), call.id)
        messages = chat_of(call.messages, "user", place)
        said = chat_of(call.reply[:1] if written is None else [written], "assistant", place)
        if len(said) != 1:
            raise Unrendered("template")
        tools = [tool_of(t) for t in call.tools]
        prompt, reply = rendered(self.tokenizer, messages, said[0], tools, self.ends, call.template_switches)
        if len(prompt) + len(reply) > self.budget:
            raise Unrendered("too_long")
        return prompt, reply


def edits_of(calls: Sequence[CallRecord], rewards: Sequence[Reward]) -> dict[str, str]:
    """Call → the latest reply that a person wrote in its place."""
    known, found = [c.id for c in calls if c.outcome == "ok" and c.reply], {}
    for reward in sorted(rewards, key=lambda r: r.at):
        text = reward.meta.get("edited")
        call = reward.call or reward.meta.get("edited_call") or (known[-1] if known else None)
        if isinstance(text, str) and text.strip() and call in known:
            found[str(call)] = text
    return found


def _sample(episode: EpisodeDetail, call: CallRecord, prompt: list[int], reply: list[int]) -> Sample:
    ids, said = np.array(prompt, dtype=np.int32), np.array(reply, dtype=np.int32)
    nothing = np.zeros(0, dtype=np.float32)
    return Sample("", "task", episode.id, call.id, call.number, 0, ids, said, nothing, 0.0)


def lines_of(samples: Sequence[Sample], taught: Collection[str] | None = None) -> list[TaughtLine]:
    """The fewest sequences that hold all replies. ``taught``: the calls whose replies count; None: all."""
    found = []
    for chain in merge_chains(samples):
        on = [samples[i] for i in chain.samples]
        longest = max(on, key=lambda s: len(s.prompt_P) + len(s.completion_C))
        line = TaughtLine([*longest.prompt_P.tolist(), *longest.completion_C.tolist()], [])
        line.said = [0] * len(line.ids)
        for s in on:
            if taught is None or s.call in taught:
                begin = len(s.prompt_P)
                line.said[begin : begin + len(s.completion_C)] = [1] * len(s.completion_C)
        if any(line.said):
            found.append(line)
    return found


def episodes_of(path: Path) -> Iterator[EpisodeDetail]:
    """Raises ``StartError`` for what ``slipstream export`` did not write."""
    for number, row in enumerate(read_rows(path), 1):
        try:
            yield EpisodeDetail.model_validate(row)
        except ValidationError as e:
            first = e.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise StartError(
                f"{path}:{number}: {where}: {first['msg']}; give what `slipstream export --format jsonl` wrote"
            ) from e


def lesson_of(episodes: Iterable[EpisodeDetail], reader: RunReader, method: Method, least: float | None) -> Material:
    """``least``: the reward from which on a run is good; None: by comparison with the others."""
    lesson, runs = Material(pairs=method == "dpo"), []
    for episode in episodes:
        if why := _unfit(episode):
            lesson.left_out[why] += 1
            continue
        run = reader.run(episode)
        if run.samples:
            runs.append(run)
        else:
            lesson.left_out["nothing_to_learn"] += 1
    {"sft": _imitate, "dpo": _prefer, "kto": _label}[method](runs, least, lesson)
    lesson.calls_left_out += reader.calls_left_out
    return lesson


def _unfit(episode: EpisodeDetail) -> str | None:
    if episode.split == Split.EVAL:
        return "eval"
    return "open" if episode.state == EpisodeState.OPEN else None


def _imitate(runs: list[TaughtRun], least: float | None, lesson: Material) -> None:
    """The good runs: those of at least ``least``. Without it: runs without a reward, and the best of each group if
    above zero.
    """
    best: dict[str, float] = {}
    for run in runs:
        best[run.group] = max(best.get(run.group, 0.0), run.reward or 0.0)
    for run in runs:
        if why := _not_good(run, least, best[run.group]):
            lesson.left_out[why] += 1
        else:
            lesson.taught.append(run)
            lesson.parts.append([{"ids": line.ids, "said": line.said} for line in run.imitated])
            lesson.calls_left_out["thumbs_down"] += sum(run.of_people(s.call) is False for s in run.samples)


def _not_good(run: TaughtRun, least: float | None, best: float) -> str | None:
    if not run.imitated:
        return "thumbs_down"
    if least is not None:
        return "no_reward" if run.reward is None else "low_reward" if run.reward < least else None
    return "not_chosen" if run.reward is not None and (run.reward < best or run.reward <= 0) else None


def _prefer(runs: list[TaughtRun], least: float | None, lesson: Material) -> None:
    """Edits, and within each group the best run against the worst, the second best against the second worst, and so
    on, while their rewards differ. With ``least``, what is preferred has at least that reward.
    """
    groups: dict[str, list[TaughtRun]] = {}
    for run in runs:
        if run.edits:
            lesson.taught.append(run)
            lesson.parts.append([_pair(good, bad) for good, bad in run.edits.values()])
        elif run.reward is None:
            lesson.left_out["no_reward"] += 1
        else:
            groups.setdefault(run.group, []).append(run)
    for group in groups.values():
        group.sort(key=lambda r: r.reward or 0.0, reverse=True)
        used = 0
        for good, bad in zip(group[: len(group) // 2], reversed(group), strict=False):
            better = (good.reward or 0.0) > (bad.reward or 0.0)
            if better and good.imitated and (least is None or (good.reward or 0.0) >= least):
                lesson.parts.append([_pair(_longest(good.imitated), _longest(lines_of(bad.samples)))])
                lesson.taught += (good, bad)
                used += 2
        if why := "alone" if len(group) == 1 else "equal_rewards" if not used else "in_no_pair":
            lesson.left_out[why] += len(group) - used
    lesson.left_out = +lesson.left_out


def _longest(lines: Sequence[TaughtLine]) -> TaughtLine:
    return max(lines, key=lambda line: len(line.ids))


def _pair(good: TaughtLine, bad: TaughtLine) -> TaughtRow:
    return {"ids": good.ids, "said": good.said, "bad_ids": bad.ids, "bad_said": bad.said}


def _label(runs: list[TaughtRun], least: float | None, lesson: Material) -> None:
    """Each run is good or bad: by its thumb, else by its reward (``least``, or the mean of all rewards). So is each
    call that has a thumb of its own. What a person wrote is good, and what it replaces is bad.
    """
    rewards = [run.reward for run in runs if run.reward is not None]
    limit = least if least is not None else sum(rewards) / max(1, len(rewards))
    for run in runs:
        part: list[TaughtRow] = [
            {"ids": line.ids, "said": line.said, "good": line is better}
            for better, bad in run.edits.values()
            for line in (better, bad)
        ]
        by_reward = None if run.reward is None or run.edits else run.reward >= limit
        said = {s.call: run.of_people(s.call) for s in run.samples if s.call not in run.edits}
        labels = {call: by_reward if good is None else good for call, good in said.items()}
        for good in (True, False):
            lines = lines_of(run.samples, {call for call, label in labels.items() if label is good})
            part += [{"ids": line.ids, "said": line.said, "good": good} for line in lines]
        if part:
            lesson.taught.append(run)
            lesson.parts.append(part)
        else:
            lesson.left_out["no_reward"] += 1
    found = {row["good"] for part in lesson.parts for row in part}
    if len(found) == 1:
        raise StartError(
            f"all {lesson.runs} runs are {'good' if True in found else 'bad'}: kto needs both; set --min-reward, or "
            "use --method sft"
        )


LEFT_OUT = {
    "eval": "evaluation runs are never trained on",
    "open": "not ended yet",
    "nothing_to_learn": "no call of theirs could be used (see below)",
    "thumbs_down": "a person gave a thumb down",
    "no_reward": "no reward",
    "low_reward": "a reward below --min-reward",
    "not_chosen": "another run of their task has a higher reward, or theirs is not above zero",
    "alone": "the only run of their task, so there is nothing to prefer it to",
    "equal_rewards": "all runs of their task have the same reward, so none is preferred",
    "in_no_pair": "in the middle of their task's runs, so in no pair",
    "failed": "failed, or without a reply",
    "redacted": "proxy.redact changed their text, and what it put there would be imitated",
    "other_model": "another model answered",
    "template": "the chat template does not write the reply after its prompt",
    "not_text": "pictures or sound",
    "too_long": "longer than trainer.token_budget",
}


def told(lesson: Material) -> Iterator[str]:
    """For people: what is used, and why the rest is not."""
    rows = sum(map(len, lesson.parts))
    yield f"{lesson.runs} runs are used: {rows} {'pairs' if lesson.pairs else 'sequences'}"
    for what, counts in (("runs", lesson.left_out), ("calls", lesson.calls_left_out)):
        for why, count in counts.most_common():
            yield f"  {count} {what} are left out: {LEFT_OUT[why]}"


def distill(
    config: Config,
    source: Path,
    *,
    method: Method = "sft",
    least: float | None = None,
    teacher: str | None = None,
    epochs: float | None = None,
    dry_run: bool = False,
    out: str | Path | None = None,
    url: str | None = None,
    key: str | None = None,
) -> dict[str, object]:
    """Train on what ``slipstream export`` wrote to ``source``. Returns figures.

    ``least``: the reward from which on a run is good. ``teacher``: only what this model answered. ``out``: the
    adapter's folder; None: the next version, which is registered at the proxy. Raises ``StartError`` where nothing can
    be trained.
    """
    from slipstream_imitation.teaching import teach
    from slipstream_trainer.model.adapter_files import save_adapter
    from slipstream_trainer.model.policy import check_lora, load_policy, model_path
    from slipstream_trainer.run.export_training import publish_adapter

    check_lora(config)
    if out is not None and Path(out).exists():
        raise StartError(f"--out {out} is there already: adapters are immutable")
    reader = RunReader(*_speech(model_path(config)), config.trainer.token_budget, teacher)
    lesson = lesson_of(episodes_of(source), reader, method, least)
    figures: dict[str, object] = {
        "method": method,
        "runs": lesson.runs,
        "rows": sum(map(len, lesson.parts)),
        "left_out": dict(lesson.left_out),
        "calls_left_out": dict(lesson.calls_left_out),
    }
    if not lesson.parts:
        whose = f" of {teacher}" if teacher else ""
        said = "; ".join(map(str.strip, told(lesson)))
        raise StartError(f"no run{whose} can be trained on by {method}: {said}")
    for line in told(lesson):
        log.info("%s", line)
    if dry_run:
        return figures
    mode = "frugal" if config.trainer.mode == "frugal" else "merged"  # padded rows need no trees
    plain = config.model_copy(update={"trainer": config.trainer.model_copy(update={"mode": mode})})
    model, tokenizer = load_policy(plain)
    learned = teach(plain, model, getattr(tokenizer, "tokenizer", tokenizer), lesson.parts, method, epochs)
    meta: dict[str, JsonValue] = {"distilled_from": teacher or "stored runs", "method": method, "runs": lesson.runs}
    names = (run.name.partition("/") for run in lesson.taught)
    episodes = [TrainedOn(key=key_id, episode=episode) for key_id, _, episode in names]
    adapter = publish_adapter(
        config, partial(save_adapter, model), Path(out) if out else None, None, url, key, {**meta, **learned}, episodes
    )
    return figures | learned | {"adapter": adapter}


def _speech(path: str) -> tuple[PreTrainedTokenizerBase, set[int]]:
    """The model's tokenizer, and the ids that end its turn. Raises ``StartError`` if it has no chat template."""
    from transformers import GenerationConfig

    from slipstream_trainer.model.policy import load_tokenizer

    check_own_code(path)
    try:
        tokenizer = load_tokenizer(path)
    except (OSError, ValueError) as e:
        raise StartError(f"the model {path} can't be loaded: {type(e).__name__}: {e}") from e
    if not tokenizer.chat_template:
        raise StartError(f"{path} has no chat template, so it can't read a conversation: name an instruct model")
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        ends = None
    return tokenizer, {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
