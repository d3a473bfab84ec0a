"""Two sides' replies to the same prompts as scores from 0 to 1, and what the gate's test says of their differences."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Any, Protocol

from slipstream.contract import CallRecord, Verdict
from slipstream.errors import ConfigError
from slipstream.shared.refusals import MAX_REFUSAL_CHARS, refuses
from slipstream_replay.steps import BROKEN_REPLY, ReplayCase, ReplayStep, Reply

Score = Callable[[CallRecord, Reply], float]
"""(the recorded call, a reply's message) → from 0 to 1."""
TESTED_ARM_SHARE = 1e-9
"""The tested arm's share in the gate's bets: the reference is a half, and is known."""


class Detector(Protocol):
    """The gate's test (``BettingDetector``)."""

    wealth: float

    def see(self, x: float, expected: float, tested: bool, share: float) -> None: ...


class Detect(Protocol):
    """The gate's test of "the candidate is worse" (``sign`` 1) or "better" (-1), with a wealth of 1.

    ``margin``: by more than that, on a scale from 0 to 1.
    """

    def __call__(self, sign: int, /, *, margin: float) -> Detector: ...


def calls_of(message: object) -> list[tuple[str, object]] | None:
    """Name and arguments of a message's tool calls; None: some arguments are not JSON."""
    found = []
    for call in (message.get("tool_calls") or []) if isinstance(message, dict) else []:
        function = call.get("function") or {}
        try:
            found.append((str(function.get("name")), json.loads(function.get("arguments") or "{}")))
        except (ValueError, RecursionError):
            return None
    return found


def guard(reply: Reply) -> str | None:
    """Why a reply is of no use, whatever it was to say: error, parse, length, refusal, empty. None: it is."""
    message = reply["message"]
    if reply.get("finish_reason") == "error":
        return "error"
    calls = calls_of(message)
    if calls is None:
        return "parse"
    if reply.get("finish_reason") == "length":
        return "length"
    if message.get("refusal") or reply.get("finish_reason") == "content_filter":
        return "refusal"
    if len(str(message.get("content") or "")) <= MAX_REFUSAL_CHARS and refuses(message):
        return "refusal"
    return None if calls or message.get("content") else "empty"


def by_tools(call: CallRecord, message: Reply) -> float:
    """1: the tools and arguments that the record has. 0.5: the same tools with other arguments. 0: other tools."""
    wanted, given = calls_of(call.reply[0]), calls_of(message)
    if wanted is None or given is None:
        return 0.0
    if wanted == given:
        return 1.0
    return 0.5 if sorted(n for n, _ in wanted) == sorted(n for n, _ in given) else 0.0


def checked(function: Callable[..., Any], name: str) -> Score:
    """A user's function. It must return a number from 0 to 1, and raise nothing (``ConfigError``)."""

    def score(call: CallRecord, message: Reply) -> float:
        try:
            value = function(call, message)
        except Exception as e:
            raise ConfigError(f"{name} failed at call {call.number} of {call.episode}: {type(e).__name__}: {e}") from e
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ConfigError(f"{name} returned {value!r}: it is to return a number from 0 to 1")
        return float(value)

    return score


@dataclass(slots=True)
class CasePair:
    """A case's mean scores over its steps and samples."""

    name: str
    candidate: float
    control: float
    step: int
    """The number of the call where the candidate lost most."""
    case: ReplayCase | None = None
    """None: it was compared before a restart."""
    steps: int = 1
    place: str = ""
    """What tells the case from others, where its name alone does not."""
    shown: tuple[int, int] = (0, 0)
    """At that call, the reply of each side that people see."""
    why: tuple[str, str] | None = None
    """Of whole runs: what each side's came to."""

    @property
    def difference(self) -> float:
        return self.candidate - self.control


SCALE_CASES, MIN_SCALE = 8, 0.2
"""Cases after which differences are measured by the largest of them, and what they are measured by at least."""


ROUND_ERROR_SHARES = (0.7, 0.2, 0.1)
"""How often a case is asked at most, and the parts of the error level of these rounds."""
MIN_LEANING_EVIDENCE = 2.0
"""Evidence of "worse" with which a round that showed nothing is followed by another one."""


class PairedTest:
    """What the pairs of one question say, at an error level of ``alpha``, whenever the replay stops.

    A case is one pair: its steps are not independent of each other. Under "not worse" the mean of (1 + difference) / 2
    is at least a half, so the wealth of bets against that passes 1 / ``alpha`` with probability ``alpha`` at most.

    Where one step of five decides, a case's mean moves little, and such bets win little. ``alike``: both sides are
    sampled alike, so an equal candidate is above zero as often as below. Differences are then measured by the largest
    one before them, which leaves that so. The promise is then one to equal candidates: one that loses a little in most
    cases and gains much in a few is judged by those that came.

    A round of all cases can be followed by another one (``again``), with a part of ``alpha`` of its own. It tests each
    case's mean over the rounds: new samples of a case say nothing of other cases.
    """

    def __init__(
        self, question: str, alpha: float, detect: Detect, margin: float = 0.0, *, alike: bool = False,
        rounds: Sequence[float] = (1.0,),
    ) -> None:  # fmt: skip
        """``margin``: a loss that is let pass, in scores of one step of a run. ``rounds``: parts of ``alpha``."""
        self.question, self.margin = question, margin
        self._alphas = [alpha * part for part in rounds]
        self.needs = least(detect, self._alphas[0])
        """So many cases can show a total loss."""
        self._alike, self._detect = alike, detect
        self._sums: dict[str, tuple[CasePair, int]] = {}
        """Case → its mean, and the rounds that it has."""
        self.verdict: Verdict = "undecided"
        self._begin()

    def _begin(self) -> None:
        self._worse, self._better = self._detect(1, margin=0.0), self._detect(-1, margin=0.0)
        self._largest, self._count = 0.0, 0
        self.alpha = self._alphas.pop(0)

    def again(self) -> None:
        """The next round begins."""
        self._begin()

    def see(self, pair: CasePair) -> None:
        """The next case. Their order may not depend on what was answered."""
        which = pair.place or pair.name
        before, rounds = self._sums.get(which, (pair, 0))
        a, b = (
            (rounds * getattr(before, side) + getattr(pair, side)) / (rounds + 1) for side in ("candidate", "control")
        )
        pair = replace(pair, candidate=a, control=b)
        self._sums[which] = pair, rounds + 1
        scale = max(self._largest, MIN_SCALE) if self._alike and self._count >= SCALE_CASES else 1.0
        self._count += 1
        self._largest = max(self._largest, abs(pair.difference))
        for one, let in ((self._worse, self.margin), (self._better, -self.margin)):
            moved = max(-1.0, min(1.0, (pair.difference + let / pair.steps) / scale))
            one.see((1 + moved) / 2, 0.5, True, TESTED_ARM_SHARE)
        worse, better = self._worse.wealth, self._better.wealth
        if self.verdict == "undecided" and max(worse, better) >= 1 / self.alpha:
            self.verdict = "worse" if worse > better else "better"

    @property
    def pairs(self) -> list[CasePair]:
        """Each case's mean over the rounds."""
        return [pair for pair, _ in self._sums.values()]

    @property
    def leans(self) -> bool:
        """Whether more samples could show that the candidate is worse."""
        return self.verdict == "undecided" and bool(self._alphas) and self.evidence >= MIN_LEANING_EVIDENCE

    @property
    def evidence(self) -> float:
        """That the candidate is worse; at 1 / ``alpha`` it is shown."""
        return self._worse.wealth

    @property
    def difference(self) -> float:
        """Mean score of the candidate less the control's."""
        return fmean(p.difference for p in self.pairs)

    @property
    def visible(self) -> float:
        """About the smallest loss that so many pairs, which differ so much, would have shown."""
        spread = max(pstdev(p.difference for p in self.pairs), 0.05)
        return min(1.0, spread * math.sqrt(2 * (math.log(1 / self.alpha) + 1.25) / len(self.pairs)))

    def worst(self, count: int) -> list[CasePair]:
        """The cases where the candidate lost most."""
        return sorted((p for p in self.pairs if p.difference < 0), key=lambda p: p.difference)[:count]


def compare(
    question: str, cases: Sequence[ReplayCase], score: Callable[[CallRecord, Reply], float],
    detect: Detect, alpha: float,
) -> PairedTest:  # fmt: skip
    test = PairedTest(question, alpha, detect, alike=True)
    for case in cases:
        test.see(pair_of(case, lambda step: _scores(step, score)))
    return test


def _scores(step: ReplayStep, score: Callable[[CallRecord, Reply], float]) -> tuple[list[float], list[float]]:
    return [score(step.call, r) for r in step.candidate], [score(step.call, r) for r in step.control]


def _won(step: ReplayStep) -> tuple[list[float], list[float]]:
    """The shares of pairs, a reply of each side, that the judge says each side wins. A judge's scores are relative, so
    only which is higher counts.
    """
    pairs = [(a > b) + 0.5 * (a == b) for part in step.judged for a in part[0] for b in part[1]]
    return [fmean(pairs)], [1.0 - fmean(pairs)]


JUDGE_MEASURE = "judge"
GUARDS_MEASURE, TOOLS_MEASURE = "guards", "tool calls"
GUARD_PART, GROUP_PART = 0.3, 0.2
"""Of the error level for guards; of a question's error level for all groups of cases together."""
MAX_GROUPS, GROUP_CASES = 16, 15
"""Most groups, and the fewest cases of one."""
GROUP_LOSS_MARGIN = 0.1
"""What a group may lose of its runs: a candidate that gains on the whole may lose a little somewhere. A run of three
steps is lost by one of them, so that its mean may lose a third of this.
"""


def groups_of(tags: Mapping[str, str], task: str | None) -> list[str]:
    """The groups of a case: the values of its tags, and its task."""
    return [f"tag.{name}={value}" for name, value in sorted(tags.items())] + ([f"task={task}"] if task else [])


class Questions:
    """What is asked about a candidate over one set of cases, and what is known so far. Two questions share ``alpha``.

    ``by``: ``judge`` (its scores stand in the steps), or the name of ``score``; None: tool calls are compared with
    those of the cases whose reward is at least ``middle``, the mean. With a recorded control they are not: it would
    always be like the record. Each question is also asked of groups of cases,
    of which there are ``GROUP_CASES`` at least: a loss for one customer of five hides behind gains elsewhere.
    """

    def __init__(
        self, detect: Detect, alpha: float, by: str | None, score: Score | None = None, rewards: Sequence[float] = (),
        groups: Iterable[Sequence[str]] = (), *, alike: bool = True,
    ) -> None:  # fmt: skip
        """``rewards``: of the cases that have one. ``groups``: of each case, as ``groups_of`` names them. ``alike``:
        both sides are sampled alike, which a recorded control is not.
        """
        self.by, self._score = by, score
        # the mean of equal rewards may be above them all by a rounding
        self.middle = min(fmean(rewards), max(rewards)) if rewards else math.inf
        self._alike = alike
        self._broken = 0
        """Cases that the control broke at."""
        of_cases = [set(one) for one in groups]
        counts = Counter(name for one in of_cases for name in one)
        several = [(-n, name) for name, n in counts.items() if GROUP_CASES <= n < len(of_cases)]
        self.groups = [name for _, name in sorted(several)[:MAX_GROUPS]]
        part = GROUP_PART if self.groups else 0.0
        # recorded replies are the same ones in each round
        rounds = ROUND_ERROR_SHARES if alike else (1.0,)
        self.tests: dict[str, PairedTest] = {}
        # a guard's rare failures are to stay what they are: small
        for question, level, scaled in (
            (GUARDS_MEASURE, GUARD_PART * alpha, False),
            (by or TOOLS_MEASURE, (1 - GUARD_PART) * alpha, alike),
        ):
            self.tests[question] = PairedTest(question, level * (1 - part), detect, alike=scaled, rounds=rounds)
            for name in self.groups:
                of, share = _in(question, name), level * part / len(self.groups)
                self.tests[of] = PairedTest(of, share, detect, GROUP_LOSS_MARGIN, alike=scaled, rounds=rounds)

    def see(self, case: ReplayCase) -> dict[str, CasePair]:
        """The next case, which was answered. → What it says to each question that it is about."""
        self._broken += any(step.control == [BROKEN_REPLY] for step in case.steps)
        good = case.episode.reward is not None and case.episode.reward >= self.middle
        found = {GUARDS_MEASURE: pair_of(case, lambda s: _scores(s, lambda _, r: float(guard(r) is None)))}
        if self.by == JUDGE_MEASURE:
            found[JUDGE_MEASURE] = pair_of(case, _won)
        elif self._score is not None:
            score = self._score
            found[str(self.by)] = pair_of(case, lambda s: _scores(s, lambda c, r: score(c, r["message"])))
        elif self._alike and good and any(calls_of(step.call.reply[0]) for step in case.steps):
            found[TOOLS_MEASURE] = pair_of(case, lambda s: _scores(s, lambda c, r: by_tools(c, r["message"])))
        held = set(groups_of(case.episode.tags, case.episode.task))
        found |= {_in(q, name): pair for q, pair in found.items() for name in self.groups if name in held}
        for name, pair in found.items():
            self.tests[name].see(pair)
        return found

    @property
    def asked(self) -> list[PairedTest]:
        """The questions that some case was about. Those of groups only where they say something."""
        return [t for t in self.tests.values() if t.pairs and (not t.margin or t.verdict == "worse")]

    @property
    def worse(self) -> bool:
        return any(t.verdict == "worse" for t in self.tests.values())

    @property
    def leans(self) -> bool:
        """Whether another round of all cases could show that the candidate is worse."""
        return not self.worse and any(t.leans for t in self.tests.values())

    def again(self) -> None:
        """The next round begins."""
        for test in self.tests.values():
            test.again()

    def note(self) -> str | None:
        """What tool calls were compared with."""
        if self.by is not None:
            return None
        if count := len(self.tests[TOOLS_MEASURE].pairs):
            return f"Tool calls are compared with those of the {count} cases whose reward is at least the mean."
        why = "no case has a reward and a tool call" if self._alike else "the control is the recorded calls themselves"
        return (
            f"Only guards are compared, not what the replies say: {why}. Score replies by a function or a judge (--by)."
        )

    def short(self, missing: int) -> str | None:
        """Why the cases are too few for a verdict. ``missing``: those without an answer."""
        total = missing + len(self.tests[GUARDS_MEASURE].pairs)
        if (lacking := missing + self._broken) > MAX_UNANSWERED_SHARE * total:
            return f"{lacking} of {total} cases have no answer" + (" of the control" if self._broken else "")
        asked = [t for t in self.asked if not t.margin] or [self.tests[GUARDS_MEASURE]]
        few = next((t for t in asked if len(t.pairs) < t.needs), None)
        if few is None:
            return None
        count = len(few.pairs)
        return f"{count} case{'s' * (count != 1)} cannot show even a total loss, {few.needs} can"


def _in(question: str, group: str) -> str:
    return f"{question} for {group}"


MAX_UNANSWERED_SHARE = 0.1
"""Share of the cases that may lack an answer; with more there is no verdict."""


def least(detect: Detect, alpha: float) -> int:
    """How many cases the test needs at least: so many total losses are evidence."""
    worse = detect(1, margin=0.0)
    count = 0
    while worse.wealth < 1 / alpha:
        worse.see(0.0, 0.5, True, TESTED_ARM_SHARE)
        count += 1
    return count


def pair_of(case: ReplayCase, scores: Callable[[ReplayStep], tuple[list[float], list[float]]]) -> CasePair:
    found = [scores(step) for step in case.steps]
    means = [tuple(fmean(side) for side in one) for one in found]
    lost = min(range(len(means)), key=lambda i: means[i][0] - means[i][1])
    mean_a, mean_b = (fmean(m[side] for m in means) for side in (0, 1))
    e, step = case.episode, case.steps[lost]
    return CasePair(
        e.id, mean_a, mean_b, step.call.number, case, len(means), f"{e.key}/{e.id}", telling(step, found[lost])
    )


def telling(step: ReplayStep, scores: Sequence[list[float]]) -> tuple[int, int]:
    """The candidate's reply with the lowest score, and the control's with the highest: these show what was lost. Of
    several, one that the other side did not give.
    """
    replies = (step.candidate, step.control)
    texts = [[json.dumps(r["message"], sort_keys=True) for r in side] for side in replies]
    if any(len(own) != len(side) for own, side in zip(scores, replies, strict=True)):  # a judge's: one figure a step
        judged = [[x for part in step.judged for x in part[n]][: len(side)] for n, side in enumerate(replies)]
        scores = [
            own if len(own) == len(side) else [0.0] * len(side) for own, side in zip(judged, replies, strict=True)
        ]

    def place(side: int, sign: int) -> int:
        return min(range(len(texts[side])), key=lambda n: (sign * scores[side][n], texts[side][n] in texts[1 - side]))

    return place(0, 1), place(1, -1)
