"""``slipstream judge show GROUP``: one judgement as it is stored, and the prompt that it came from."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from pydantic import JsonValue

from slipstream.client import AsyncClient
from slipstream.contract import ID_PATTERN, EpisodeDetail, Reward
from slipstream.errors import ConfigError
from slipstream.settings import JudgeConfig
from slipstream_judge.compare.rubric import Rubrics, rubric_hash
from slipstream_judge.text.excerpts import force
from slipstream_judge.text.prompt import Mode, build
from slipstream_judge.text.transcript import Transcript, common_prefix, read

SHARED_FIELDS = (
    *("model", "function", "prompt", "rubric", "mode", "compared_with"),
    *("tokens", "cost", "latency", "calls", "parts", "cached"),
)
"""What all runs of a judgement share of a score's ``meta``."""


@dataclass(slots=True)
class JudgedRun:
    """``score`` None: this run has no score of that name."""

    episode: str
    score: float | None
    votes: JsonValue = None
    spread: JsonValue = None
    reason: str = ""
    same_as: JsonValue = None


@dataclass(slots=True)
class PromptSummary:
    """The prompt as this configuration would build it. ``tokens``: estimated, of the transcripts."""

    distinct_runs: int
    shared_steps: int
    steps: int
    tokens: int
    shortened: bool
    rubric: str
    text: str


@dataclass(slots=True)
class Judgement:
    group: str
    task: str | None
    runs: list[JudgedRun]
    prompt: PromptSummary
    meta: dict[str, JsonValue] = field(default_factory=dict)


async def fetch(client: AsyncClient, group: str, judge: JudgeConfig, name: str) -> Judgement:
    """Raises ``ConfigError`` where the group is unknown, ``ApiError``."""
    found = await client.sql(f"SELECT id, key FROM episodes WHERE group_id = '{group}' ORDER BY started, id")  # checked
    if not found.rows:
        raise ConfigError(f"no episode is in a group {group}: `slipstream episodes` shows each episode's group")
    episodes = [await client.episode(str(episode), of_key=str(key)) for episode, key in found.rows]
    scores = {e.id: _latest(e, name) for e in episodes}
    task = episodes[0].task
    runs = [_run(e.id, scores[e.id]) for e in episodes]
    meta = next((s.meta for s in scores.values() if s is not None), {})
    modes: dict[str, Mode] = {"alike": "alike", "window": "window"}
    mode = modes.get(str(meta.get("mode")), "group" if len(episodes) > 1 else "absolute")
    count = meta.get("compared_with")
    earlier = count if isinstance(count, int) else 0
    summary = _summary([read(e.call_list) for e in episodes], judge, task, mode, earlier)
    return Judgement(group, task, runs, summary, {k: meta[k] for k in SHARED_FIELDS if k in meta})


def _latest(episode: EpisodeDetail, name: str) -> Reward | None:
    return next((r for r in reversed(episode.rewards) if r.name == name and r.call is None), None)


def _run(episode: str, score: Reward | None) -> JudgedRun:
    if score is None:
        return JudgedRun(episode, None)
    votes, spread, same_as = (score.meta.get(name) for name in ("values", "spread", "same_as"))
    return JudgedRun(episode, score.value, votes, spread, score.reason or "", same_as)


def _summary(
    transcripts: Sequence[Transcript], judge: JudgeConfig, task: str | None, mode: Mode, earlier: int
) -> PromptSummary:
    """``earlier``: runs that a single one was compared with. They are not stored with the judgement."""
    distinct = list({t.digest: t for t in transcripts}.values())
    shown = force(distinct, judge.context)
    rubric = Rubrics(judge).of(task)
    ids = [f"e{n + 1}" for n in range(len(distinct))]
    prompt = build(shown, ids, rubric, mode if len(distinct) > 1 or mode == "window" else "absolute", earlier=earlier)
    return PromptSummary(
        distinct_runs=len(distinct),
        shared_steps=common_prefix(distinct),
        steps=sum(len(t.steps) for t in distinct),
        tokens=shown.tokens,
        shortened=shown.cut.results is not None,
        rubric=rubric_hash(rubric),
        text="\n\n".join(m["content"] for m in prompt.messages),
    )


def text_of(judgement: Judgement, *, prompt: bool = False) -> str:
    """For a terminal. ``prompt``: with the whole prompt."""
    p, meta = judgement.prompt, judgement.meta
    lines = [f"group {judgement.group}" + (f", task {judgement.task}" if judgement.task else ", no task")]
    if not meta:
        lines.append("no scores yet")
    else:
        shared = (f"{name} {_plain(meta[name])}" for name in SHARED_FIELDS if meta.get(name) is not None)
        lines.append("judged by " + ", ".join(shared))
        if meta.get("rubric") not in (None, p.rubric):
            lines.append(f"the rubric has changed since: it is {p.rubric} now")
    lines.append(
        f"prompt: {len(judgement.runs)} runs, {p.distinct_runs} of them distinct, {p.steps} steps, the first "
        f"{p.shared_steps} shared, about {p.tokens} tokens" + (", shortened" if p.shortened else "")
    )
    for run in sorted(judgement.runs, key=lambda r: -(r.score if r.score is not None else -1.0)):
        if run.score is None:
            lines.append(f"\n  –      {run.episode}")
            continue
        votes = _votes(run)
        same = f"  same as {run.same_as}" if run.same_as else ""
        lines.append(f"\n  {run.score:.3f}  {run.episode}{votes}{same}")
        if run.reason:
            lines.append(f"         {run.reason}")
    return "\n".join([*lines, "", p.text] if prompt else lines)


def _votes(run: JudgedRun) -> str:
    """Nothing where there was one vote."""
    values = [v for v in run.votes if isinstance(v, int | float)] if isinstance(run.votes, list) else []
    if len(values) < 2:
        return ""
    spread = f"  spread {run.spread:.2f}" if isinstance(run.spread, int | float) else ""
    return f"  votes {', '.join(f'{v:.2f}' for v in values)}{spread}"


def _plain(value: JsonValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(
    judge: JudgeConfig, url: str | None, key: str | None, group: str, *, as_json: bool = False, prompt: bool = False
) -> int:
    """The command."""
    if not re.match(ID_PATTERN.removesuffix("$") + r"\Z", group):
        raise ConfigError(f"{group!r} is no group's id")

    async def go() -> Judgement:
        async with AsyncClient(url, key) as client:
            return await fetch(client, group, judge, judge.name)

    found = asyncio.run(go())
    print(json.dumps(asdict(found)) if as_json else text_of(found, prompt=prompt))
    return 0
