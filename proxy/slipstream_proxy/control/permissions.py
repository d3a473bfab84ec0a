"""Which rewards a caller may write. A reward's source says who gave it, so each source belongs to scopes.

======== ============== =========================================================
source   scopes         who that is
======== ============== =========================================================
judge    judge          the judge; only such a key may use the judge's reward names
human    grade          people: they may correct the judge, so they may use its names
others   the route's    agents and services, under names of their own
======== ============== =========================================================

``admin`` may write all of them. ``Judge`` is the source ``judge`` too: people would read it so. ``grade``, ``judge``
and ``admin`` may score episodes of other keys.
"""

from __future__ import annotations

from collections.abc import Collection

from slipstream_proxy.control.http import ADMIN, GRADE, JUDGE, Caller
from slipstream_proxy.control.problem import Problem

SOURCES = {"judge": JUDGE, "human": GRADE}
"""Reserved source → the scope that it needs."""
OF_OTHERS = (GRADE, JUDGE, ADMIN)
"""Scopes that may score an episode of another key."""


def check_source(caller: Caller, source: str, field: str) -> None:
    """Raises ``Problem`` 403: the source belongs to another scope."""
    needed = SOURCES.get(source.lower())
    if needed is not None and not caller.may((needed,)):
        fix = f"use a key with the scope {needed}, or leave `source` out"
        raise Problem(403, f"this key may not write rewards with the source {source!r}", field=field, fix=fix)
    if needed is None and caller.only(JUDGE):
        fix = 'use the source "judge", or a key with the scope reward'
        raise Problem(403, f"a judge's key may not write rewards with the source {source!r}", field=field, fix=fix)


def check_reward(caller: Caller, name: str, source: str, judge_names: Collection[str], *, field: str = "body") -> None:
    """Raises ``Problem`` 403: the key may not use this source, or not a name of the judge's under it.

    ``judge_names``: reward names that the judge writes.
    """
    check_source(caller, source, f"{field}.source")
    if name.lower() in {n.lower() for n in judge_names} and source.lower() not in SOURCES and not caller.admin:
        fix = "choose a name of your own and give it a weight in reward.weights"
        raise Problem(403, f"{name!r} is a reward name of the judge's", field=f"{field}.name", fix=fix)
