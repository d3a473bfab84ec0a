"""Who may do what, and who says how a run went: words that the proxy, its clients and its keys share."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class KeyScope(StrEnum):
    """What a key may do."""

    INFERENCE = "inference"
    """Call models."""
    REWARD = "reward"
    """Score its own runs, and so say what is learned."""
    GRADE = "grade"
    """Score everybody's runs as a person."""
    JUDGE = "judge"
    """Lease groups, and score them as the judge."""
    TRAINER = "trainer"
    """Lease batches, and register adapters."""
    VIEWER = "viewer"
    """Read everything, whosever it is, and change nothing."""
    ADMIN = "admin"
    """All of it."""


class RewardSource(StrEnum):
    """Who gave a reward, where it is no text of the sender's own."""

    AGENT = "agent"
    USER = "user"
    """Feedback."""
    HUMAN = "human"
    """A person who labels: a key needs the scope grade for it."""
    JUDGE = "judge"
    IMPORT = "import"
    """It came with a log."""


SCOPE_OF_SOURCE: Mapping[str, KeyScope] = {RewardSource.JUDGE: KeyScope.JUDGE, RewardSource.HUMAN: KeyScope.GRADE}
"""Sources whose rewards need a scope."""
SCORER_SCOPES = (KeyScope.GRADE, KeyScope.JUDGE, KeyScope.ADMIN)
"""Scopes that may score an episode of another key."""
TEACHER_SCOPES = (KeyScope.REWARD, KeyScope.GRADE, KeyScope.JUDGE, KeyScope.ADMIN)
"""Scopes that may say what is learned."""
