"""From calls to rewarded groups: how calls become episodes, episodes groups, and rewards one number."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from slipstream.settings.base import Positive, Section, rare


class IdentityConfig(Section):
    traceparent: bool = Field(False, description="Take the episode from W3C traceparent if nothing else names it.")
    headers: list[str] = rare(
        [
            "x-parent-session-id",
            "x-claude-code-session-id",
            "x-session-id",
            "session-id",
            "session_id",
            "thread-id",
            "x-session-affinity",
        ],
        description="Request headers in which agents name their session. If no tag names the episode, the first that "
        "is there does. x-session-affinity counts only if it looks like an id.",
        when="your agents name their session in another header",
    )
    fields: list[str] = rare(
        [
            "metadata.session_id",
            "metadata.user_id.session_id",
            "session_id",
            "conversation",
            "prompt_cache_key",
        ],
        description="Body fields likewise, after the headers. A dot leads into an object, or into JSON in a text. "
        "prompt_cache_key counts only if it looks like an id. Add user if your client sends a new one for each run.",
        when="your agents name their session in another field of the body",
    )
    untrained_kinds: list[str] = rare(
        ["title"],
        description="Kinds of calls that are recorded and not trained on: title, summary, compaction, subagent, side, "
        "or what x-slipstream-kind says (docs/capture.md).",
        when="more kinds of calls than titles should not be trained on",
    )
    continue_window: Positive = Field(
        1800.0, description="Seconds in which an untagged call may continue a conversation."
    )


class EpisodesConfig(Section):
    idle_timeout: Positive = rare(
        900.0,
        description="Seconds without a call after which an episode is done at the latest. It is less where an agent's "
        "pauses are shorter (docs/store.md).",
        when="agents pause for more than 15 minutes within a run",
    )


class GroupsConfig(Section):
    size: int = Field(8, ge=2, description="Episodes that complete a group.")
    max_age: Positive = rare(
        3600.0,
        description="Seconds after which a group with two or more episodes is complete anyway.",
        when="runs of one task come slower than one in seven minutes",
    )
    ungrouped: bool = rare(
        True,
        description="Untagged episodes form groups of similar ones, with a batch-level baseline.",
        when="runs without a task should not be trained on",
    )


class RewardConfig(Section):
    weights: dict[str, Annotated[float, Field(ge=-1e6, le=1e6)]] = Field(
        default_factory=lambda: {"reward": 1.0},
        description="What trains: reward name → weight. With a judge, the default is its score alone: { judge = 1.0 }.",
    )
    credit: Literal["episode", "call"] = Field(
        "episode", description="call: a call's own reward counts for that call alone."
    )
    discount: Annotated[float, Field(ge=0, le=1)] | None = rare(
        None,
        description="With credit = call: a call counts by its own reward and those after it, each times this for each "
        "call between, and is compared with the same turn of the group's other runs. None: by its own reward alone.",
        when="calls have rewards of their own, and a call should answer for later ones",
    )
    by_agents: bool = rare(
        False,
        description="Whether a key with the scope inference alone may post rewards and feedback, and forget its runs. "
        "Each of these changes what is learned. Keys of `slipstream keys add NAME` have the scope reward, too.",
        when="agents post their own rewards with keys that have the scope inference alone",
    )
    missing: Literal["unknown", "failure"] = rare(
        "unknown",
        description="What a run without a reward is to the gate. unknown: where a twentieth or more of the control's "
        "runs have none, it says nothing; failure: it counts as the lowest reward.",
        when="your own code gives failed runs no reward",
    )
    orphan_ttl: Positive = rare(
        3600.0,
        description="Seconds that a reward waits for its episode's first call.",
        when="rewards come more than an hour before a run's first call is stored",
    )

    @model_validator(mode="after")
    def _discounts_calls(self) -> Self:
        if self.discount is not None and self.credit != "call":
            raise ValueError('discount is for rewards of calls: set credit = "call", or leave discount out')
        return self
