"""What of ``gate.alpha`` each question of the gate may spend: the bets' wealth, from which the proven bound follows.

By Ville's inequality, bets into which a wealth of w was put reach 1 / alpha with probability at most w * alpha, however
often one looks. The gate puts in each stake at first, and lets it earn ``per_run`` with each run for the next start.
"""

from __future__ import annotations

from typing import Final, NamedTuple

EARNED_RUNS: Final = 4000
"""Runs in which a stake earns ``Stake.earned``."""


class Stake(NamedTuple):
    """Parts of ``gate.alpha``."""

    at_first: float
    earned: float
    """In ``EARNED_RUNS`` runs."""

    @property
    def per_run(self) -> float:
        return self.earned / EARNED_RUNS

    def after(self, runs: int) -> float:
        """Put in at most, after so many runs."""
        return self.at_first + self.per_run * runs


CONTROL_STAKE: Final = Stake(0.16, 0.12)
"""Lower rewards than the control's."""
TIMEOUTS_STAKE: Final = Stake(0.04, 0.02)
BEST_STAKE: Final = Stake(0.28, 0.18)
GROUPS_STAKE: Final = Stake(0.06, 0.04)
"""Of all groups together, once beside the control and once beside the best version."""
GUARD_STAKE: Final = Stake(0.6, 0.4)
"""Of one guard, which freezes or takes back with an error level of its own."""
RATINGS_STAKE: Final = Stake(1.0, 0.0)
"""How often runs are rated. It takes nothing back and freezes nothing."""
TURNING_RATERS: Final = 4.0
"""Times a stake on rewards, where few runs are rated and users rate poor rewards more often with one version, and good
ones less often with another, in turn.
"""


def stakes(groups: bool) -> list[Stake]:
    """Those that can take a version back. ``groups``: they can, too."""
    return [CONTROL_STAKE, TIMEOUTS_STAKE, BEST_STAKE, *([GROUPS_STAKE, GROUPS_STAKE] if groups else [])]


def wrong_rollback(alpha: float, runs: int, *, groups: bool = True, rollbacks: int = 0, turning: bool = False) -> float:
    """Bound on the probability that one that is not worse is taken back within so many runs. ``rollbacks``: so many
    came before, each of which puts in all stakes again. ``turning``: as ``TURNING_RATERS``; then timeouts say nothing,
    but may have before.
    """
    put = 0.0
    for stake in stakes(groups):
        times = TURNING_RATERS if turning and stake is not TIMEOUTS_STAKE else 1.0
        put += times * (stake.after(runs) + rollbacks * stake.at_first)
    return min(alpha * put, 1.0)


def wrong_freeze(alpha: float, runs: int, guards: int, *, turning: bool = False) -> float:
    """As ``wrong_rollback``, of what the guards do."""
    return min(alpha * guards * GUARD_STAKE.after(runs) * (TURNING_RATERS if turning else 1.0), 1.0)


def table() -> str:
    """What spends which part of ``gate.alpha``, as Markdown."""
    every = sum(stake.at_first for stake in stakes(groups=True))
    rows = [
        ("rewards beside the control", CONTROL_STAKE),
        ("timeouts beside the control", TIMEOUTS_STAKE),
        ("rewards beside the best version", BEST_STAKE),
        ("all groups, beside the control", GROUPS_STAKE),
        ("all groups, beside the best version", GROUPS_STAKE),
        ("each rollback, and each promotion by hand", Stake(every, 0.0)),
        ("each look, tag, acceptance, change of scale", Stake(0.0, 0.0)),
        ("each guard (a level of its own)", GUARD_STAKE),
    ]
    lines = [f"|{what}|{stake.at_first:g}|{stake.earned:g}|" for what, stake in rows]
    head = [f"|part of `gate.alpha`|at first|in each {EARNED_RUNS:,} runs|", "|---|---|---|"]
    return "\n".join([*head, *lines])
