"""The judge: which model scores, by which rubric, and within which budget."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from slipstream.settings.base import Positive, Section, Share, rare

OWN_PARAMS = {
    "model": "judge.model",
    "messages": None,
    "timeout": "judge.timeout",
    "num_retries": None,
    "max_retries": None,
    "stream": None,
    "n": "judge.votes",
    "api_base": "judge.api_base",
    "api_key": "judge.api_key_env",
}
"""Parameters of ``completion()`` that the judge sets itself → the setting for it, if there is one."""


FUNCTION_REWARD_NAME = "function"
"""Reward name of ``judge.function``'s scores beside a model's."""
SELF_JUDGE_MODEL = "self"
"""The model that is trained, without an adapter, asked through the proxy; ``self/NAME``: another model behind it."""


NO_QUOTA = re.compile(
    r"(?i)insufficient[_ ]quota|exceeded your current quota|credit balance|insufficient[_ ](?:funds|credit)"
    r"|payment required"
)
"""In the error of an API whose account has nothing left to pay with."""
RESTORE_QUOTA = (
    "restore the quota of the account that pays for judge.model: the judge goes on by itself, within five minutes"
)


def is_own(model: str | None) -> bool:
    """Whether the proxy that the agents use is asked for this judge's model."""
    return model is not None and model.partition("/")[0] == SELF_JUDGE_MODEL


class JudgeConfig(Section):
    model: str | None = Field(
        None,
        description="LiteLLM model; self: the base model of the engine; self/NAME: another model of the proxy; None: "
        "no judge.",
    )
    api_base: str | None = Field(None, description="Base URL of the judge's API.")
    api_key_env: str | None = Field(None, description="Environment variable with the judge's key.")
    function: str | None = Field(None, description="module:function(group) -> {episode: score} in place of the LLM.")
    rubric: str | None = Field(None, description="The rubric's text, or a path to a file with it.")
    rubrics: dict[str, str] = rare(
        default_factory=dict,
        description="Task pattern (glob) → rubric text or path.",
        when="tasks need rubrics of their own",
    )
    name: str = rare(
        "judge",
        description="Reward name that the scores are stored under.",
        when="scores of two judges should stand side by side",
    )
    votes: int = rare(
        1,
        ge=1,
        le=32,
        description="Judge calls per group; each shows the runs in another order. 2 where model is self.",
        when="one judgement of a group is too noisy",
    )
    concurrency: int = rare(
        8,
        ge=1,
        description="Groups judged at once. 1 where model is self.",
        when="the judge's API is slower, or takes more, than eight at once",
    )
    params: dict[str, JsonValue] = rare(
        default_factory=dict,
        description="More parameters of LiteLLM's completion(), as reasoning_effort or max_tokens. Without temperature "
        "among them it is 0.",
        when="the judge's API needs more parameters",
    )
    context: int = rare(
        32_000,
        ge=512,
        description="Tokens of transcript that one judge call may hold.",
        when="runs are longer, or the judge's model is smaller, than 32,000 tokens",
    )
    timeout: Positive = rare(120.0, description="Seconds for one judge call.", when="the judge's API answers slowly")
    max_attempts: int = rare(
        4, ge=1, description="Failures after which a group is parked.", when="groups are parked too soon, or too late"
    )
    singles: Literal["off", "window", "absolute"] = rare(
        "window",
        description="How ungrouped episodes are scored.",
        when="runs without a group should be scored by themselves, or not at all",
    )
    window: int = rare(
        7,
        ge=1,
        le=63,
        description="Similar episodes that are shown beside a single one.",
        when="single runs should be compared with more, or fewer, others",
    )
    calls_per_minute: int | None = rare(
        None, ge=1, description="Budget: calls of the judge's model a minute.", when="the judge's API has such a limit"
    )
    tokens_per_day: int | None = rare(
        None, ge=1, description="Budget: the judge's tokens a day.", when="the judge's API has such a limit"
    )
    dollars_per_day: float | None = Field(None, gt=0, description="Budget: the judge's dollars a day.")
    calls: bool = rare(
        False,
        description="The model also grades each call of a run, in one question a run. Needs reward.credit = call.",
        when="the judge should say which call of a run was good",
    )
    audit_share: Share = rare(
        0.0,
        description="Share of groups that audit_model judges too.",
        when="a second judge should say what the first one's scores are worth",
    )
    audit_model: str | None = rare(
        None,
        description="LiteLLM model of the second judge.",
        when="a second judge should say what the first one's scores are worth",
    )
    metrics_port: int | None = rare(
        None,
        ge=0,
        le=65535,
        description="Prometheus port of the judge; None: off.",
        when="Prometheus reads the judge itself",
    )
    metrics_host: str = rare(
        "127.0.0.1",
        description="Address that the judge's Prometheus port is bound to.",
        when="Prometheus is on another machine",
    )

    @property
    def names(self) -> list[str]:
        """Reward names that the judge writes; none without a judge."""
        own = [self.name] if self.model or self.function else []
        return [*own, FUNCTION_REWARD_NAME] if self.model and self.function else own

    @model_validator(mode="after")
    def _spares_the_agents(self) -> Self:
        """The agents' own engine judges little at once, and twice: the two votes say what its scores are worth."""
        for model in (self.model, self.audit_model):
            name = (model or "").partition("/")[2]
            if is_own(model) and model != SELF_JUDGE_MODEL and (not name or "@" in name):
                raise ValueError(f"{model}: self/NAME is a model's name that clients send, and no adapter's")
        if is_own(self.model):
            given = self.model_fields_set
            if "votes" in given and self.votes < 2:
                raise ValueError(
                    "votes: at least 2 with model = self, which say whether its scores are more than chance"
                )
            self.votes, self.concurrency = (
                self.votes if "votes" in given else 2,
                self.concurrency if "concurrency" in given else 1,
            )
        return self

    @field_validator("params")
    @classmethod
    def _not_its_own(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in params:
            if name in OWN_PARAMS:
                setting = OWN_PARAMS[name]
                raise ValueError(f"{name}: set {setting}" if setting else f"{name}: the judge sets it itself")
        return params
