"""Open files: how many a process may have, and how many of them its clients may take."""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

_MOST: Final = 2**20
"""Beyond it nobody has so many clients, and some systems refuse what they call their limit."""
HELD_BACK: Final = 128
"""For the spool, the store's link, logs, and what a library opens for a moment."""


def raise_limit() -> None:
    """As many open files as this user may have. Children inherit it. Shells and service managers give 1,024 at first,
    and each call takes two.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, _MOST) if hard != resource.RLIM_INFINITY else _MOST
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as e:
        log.warning("the limit of open files stays %d: %s", soft, e)


def limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if soft == resource.RLIM_INFINITY else min(soft, _MOST)


def for_clients() -> int:
    """Connections that a worker may have: each call takes one more to its engine or to the control plane."""
    return max(8, (limit() - HELD_BACK) // 2)
