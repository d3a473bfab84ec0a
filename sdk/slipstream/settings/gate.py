"""How a new adapter goes live, and what takes it back."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from slipstream.settings.base import Positive, Section, Share, rare
from slipstream.shared.error_budget import wrong_freeze, wrong_rollback

AUTOMATIC_CASE_SETS = ("auto-sample", "auto-labelled", "auto-rollback")
"""Sets of cases that fill themselves: a sample of each tag, what people labelled, what rollbacks were about."""


class GateReplayConfig(Section):
    then: Literal["guard", "canary"] = rare(
        "guard",
        description="The mode of what follows for a version that passes.",
        when="a version that passed its replay should go to a share of the users first",
    )
    sets: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]] = rare(
        [*AUTOMATIC_CASE_SETS],
        min_length=1,
        max_length=32,
        description="Sets of cases that each version must pass. Those whose names begin with auto- fill themselves.",
        when="sets of your own must be passed",
    )
    cases: Annotated[int, Field(ge=8, le=2000)] = rare(
        200, description="Cases of an automatic set.", when="replays are too slow, or find too little"
    )
    by: Annotated[str, Field(pattern=r"^(judge|[\w.]+:\w+)$")] | None = rare(
        None,
        description="Compares replies beside guards. judge: RULER, side by side; module:function: (call, message) -> "
        "0 to 1; None: tool calls of rewarded episodes.",
        when="tool calls do not say which reply is better",
    )
    samples: Annotated[int, Field(ge=1, le=64)] = rare(
        4, description="Replies to each prompt, of each side.", when="replays are too slow, or find too little"
    )
    steps: Annotated[int, Field(ge=1, le=200)] = rare(
        8,
        description="Calls of a case that are asked, at most.",
        when="runs have many calls, and all should be asked again",
    )
    tokens: Annotated[int, Field(ge=1)] = rare(
        5_000_000,
        description="Tokens of a version's replay; no case begins after them.",
        when="replays cost too much, or stop before they are done",
    )
    seconds: Positive = rare(
        3600.0,
        description="Seconds that a version waits for its replay at most.",
        when="versions wait too long for their replay",
    )
    undecided: Literal["try", "hold"] = rare(
        "try",
        description="No verdict: too few cases, or a budget was spent. try: it goes on without evidence; hold: "
        "it waits until a person promotes it, or a newer one comes.",
        when="a version without a verdict should wait for a person",
    )

    @field_validator("sets")
    @classmethod
    def _known(cls, value: list[str]) -> list[str]:
        for name in value:
            if name.startswith("auto-") and name not in AUTOMATIC_CASE_SETS:
                raise ValueError(f"{name}: automatic sets are {', '.join(AUTOMATIC_CASE_SETS)}")
        return list(dict.fromkeys(value))


class GateConfig(Section):
    mode: Literal["guard", "canary", "manual", "replay"] = Field(
        "guard",
        description="How a new adapter goes live. replay: it is first tried on recorded steps, without users.",
    )
    replay: GateReplayConfig = Field(GateReplayConfig(), description='With gate.mode = "replay".')
    holdout: Share = rare(
        0.1,
        lt=1,
        description="guard: share of new episodes on accepted adapters. It grows under suspicion.",
        when="the gate needs its evidence sooner, or fewer runs on older versions",
    )
    share: Share = Field(0.1, lt=1, description="canary: share of new episodes on the candidate.")
    plan: list[Annotated[float, Field(gt=0, lt=1)]] = rare(
        [],
        max_length=10,
        description="canary: shares one after the other, as [0.01, 0.1, 0.5]; 16 ended runs of the candidate without "
        "suspicion lead to the next, suspicion leads back. []: gate.share alone.",
        when="a canary's share should grow by stages",
    )
    first: list[Annotated[str, Field(pattern=r"^(key|task|tag\..+)=.+$")]] = rare(
        [],
        description='canary: who goes first, as "key=ID", "tag.team=us" or "task=NAME". Half of their new runs get the '
        "candidate in the plan's first stage, and others get none.",
        when="some users or tasks should meet a version first",
    )
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = rare(
        0.01,
        description="Probability that an adapter is taken back although it is not worse, over 4,000 episodes.",
        when="a wrong rollback costs you more, or less, than a late one",
    )
    settle: int = rare(
        500,
        ge=20,
        description="Episodes on trial after which an adapter without suspicion is accepted.",
        when="traffic is so small that 500 runs take too long",
    )
    pace: Literal["careful", "go"] | Annotated[int, Field(ge=1)] = rare(
        "careful",
        description="Newer versions while one is on trial. careful: wait while a slow slide is suspected; "
        "go: never wait; a number: wait after so many undecided versions.",
        when="versions come faster than they are decided",
    )
    reward_range: tuple[float, float] | None = rare(
        None,
        description="[lowest, highest] reward; None: learned from the rewards, robustly.",
        when="rewards are bounded, and the first ones do not show it",
    )
    deadline: Annotated[float, Field(gt=0)] | None = rare(
        None,
        description="Seconds after its start until a run without a reward counts as failed; None: learned from the "
        "durations of both arms' runs.",
        when="a run without a reward is a failure after a time that you know",
    )

    by: list[Annotated[str, Field(pattern=r"^(task|tag\..+)$")]] | None = rare(
        None,
        description='Groups of runs that are compared by themselves: "task", "tag.NAME". None: all tags, and tasks; '
        "[]: none. A group needs 2 % of the traffic.",
        when="the gate should compare by other groups than tags and tasks",
    )
    group_verdict: Literal["all", "group", "say"] = rare(
        "all",
        description="A version that is worse for one group alone. all: it is taken back for everybody; group: for that "
        "group, whose new runs get the version before; say: it stays, and the gate says so.",
        when="a version may stay for those whom it serves well",
    )

    guards: dict[
        Annotated[str, Field(pattern=r"^(cut_off|refusals|tool_errors|turns|reply_tokens|seconds|reward\..+)$")],
        Literal["up", "down"],
    ] = rare(
        {"cut_off": "up", "refusals": "up", "tool_errors": "up"},
        description="Side measures that may not get worse, each with the direction that is bad: shares of a run's "
        "calls (cut_off: ended by their length; refusals; tool_errors: tool calls whose arguments are no JSON), turns, "
        "reply_tokens and seconds of a call, and reward.NAME.",
        when="other side measures must not get worse",
    )
    guard_action: Literal["freeze", "rollback", "say"] = rare(
        "freeze",
        description="A guard that is worse. freeze: the version is not accepted, and newer ones wait, until a person "
        "decides; rollback: it is taken back; say: the gate says so.",
        when="a guard that got worse should act by itself, or only speak",
    )

    def notes(self) -> list[str]:
        if self.trial == "manual":
            return []
        groups, guards = self.by != [] and self.group_verdict != "say", len(self.guards)
        runs = (4_000, 20_000)
        back = " and ".join(f"{wrong_rollback(self.alpha, n, groups=groups):.2g} in {n:,} runs" for n in runs)
        turning = " and ".join(f"{wrong_rollback(self.alpha, n, groups=groups, turning=True):.2g}" for n in runs)
        few = f"Where few runs are rated, and users rate each version another way, of at most {turning}."
        few += " They may not turn while a version serves: no bet can tell that from a worse one."
        said = [f"An adapter that is not worse is taken back with a probability of at most {back}. {few}"]
        if guards and self.guard_action != "say":
            done = "frozen" if self.guard_action == "freeze" else "taken back"
            freeze = " and ".join(f"{wrong_freeze(self.alpha, n, guards):.2g} in {n:,} runs" for n in runs)
            turning = " and ".join(f"{wrong_freeze(self.alpha, n, guards, turning=True):.2g}" for n in runs)
            few = (
                f" Where few runs have a measure: {turning}."
                if any(g.startswith("reward.") for g in self.guards)
                else ""
            )
            said.append(f"With no guard worse, it is {done} by one with at most {freeze}.{few}")
        return said

    @property
    def trial(self) -> Literal["guard", "canary", "manual"]:
        """How a version that users may meet is tried."""
        return self.replay.then if self.mode == "replay" else self.mode

    @field_validator("plan")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if value != sorted(set(value)):
            raise ValueError("shares that grow, as [0.01, 0.1, 0.5]")
        return value

    @model_validator(mode="after")
    def _of_a_canary(self) -> Self:
        if self.plan and self.trial != "canary":
            how = 'gate.replay.then = "canary"' if self.mode == "replay" else 'gate.mode = "canary"'
            raise ValueError(f"gate.plan is a canary's: set {how}, or leave it out")
        if self.first and not self.plan:
            raise ValueError("gate.first says who goes first in gate.plan: set that too, as [0.01, 0.1, 0.5]")
        return self

    @field_validator("reward_range")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not (math.isfinite(value[1] - value[0]) and value[0] < value[1]):
            raise ValueError("two finite numbers, the lower one first")
        return value
