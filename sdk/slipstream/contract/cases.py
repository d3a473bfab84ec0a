"""Sets of cases: copies of episodes that a new version is tried on before it goes live."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.contract.base import Model
from slipstream.contract.episodes import EpisodeDetail
from slipstream.contract.names import Named, NamedEpisode

CASES_MOST = 2000
"""Episodes that one request adds to a set or removes from it."""
CASE_NAME = r"[A-Za-z0-9._-]{1,128}"
"""A set's name."""
CaseCount = Annotated[int, Field(ge=1, le=CASES_MOST)]


class CaseSet(Model):
    name: str
    version: int
    """It grows with each change. Earlier versions can still be read. 0: there is no such set."""
    cases: int
    changed: float


class CaseSets(Model):
    sets: list[CaseSet]


class Case(Model):
    """A copy of an episode, as it was when it was added."""

    key: str
    episode: str
    task: str | None
    tags: dict[str, str]
    reward: float | None
    calls: int
    since: int
    """The set's version from which on this copy belongs to it."""
    added: float
    detail: EpisodeDetail | None = None
    """The episode with its token ids, its calls in deltas (``CallRecord.prefix``); None: it was not asked for."""


class CasePage(Model):
    set: CaseSet
    version: int
    """The version that was read."""
    cases: list[Case]
    next: str | None = None
    """Pass as ``?after=`` for the next page; None at the end."""


class CasesIn(Model):
    """``POST cases/{set}``: which episodes. Ids, or the query's filters, or both."""

    episodes: list[NamedEpisode] = Field(default_factory=list, max_length=CASES_MOST)
    sample: CaseCount | None = None
    """Take so many of what the filters find, from every stratum alike."""
    by: Named | None = None
    """The tag whose values are the strata of a sample; None: tasks are."""


class CasesRemoved(Model):
    """``POST cases/{set}/remove``."""

    episodes: list[NamedEpisode] = Field(min_length=1, max_length=CASES_MOST)


class CasesChanged(Model):
    set: CaseSet
    changed: int
    """Episodes that were added, replaced by a newer copy, or removed."""
    coming: int = 0
    """Of ``changed``, those that are kept, and that the store may not have yet. Then ``set`` may be as before."""
    unknown: list[str] = Field(default_factory=list)
    """Ids of no episode, or of none in the set."""
    too_large: list[str] = Field(default_factory=list)
    """Episodes whose copy would be too large; they were not added."""
    dropped: list[str] = Field(default_factory=list)
    """Episodes whose calls retention has dropped; they were not added, and an earlier copy stays."""
    forgotten: list[str] = Field(default_factory=list)
    """Imported episodes that were forgotten here; they were not added."""
    found: int = 0
    """Episodes that the filters found. There may be more than were looked at (``more``) or added."""
    more: bool = False
    """The filters find more episodes than one request looks at or adds: narrow them, or take a sample."""
