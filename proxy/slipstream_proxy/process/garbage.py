"""When Python looks for garbage that reference counts do not find.

A look at all objects holds the interpreter's lock: 110 ms of a core at 200,000 objects, and several times as long where
others want the core. At Python's own thresholds a control plane under load stood still so every eight seconds.
"""

from __future__ import annotations

import gc

OLDER_LOOKS = (50, 50)
"""Looks at young objects for one at middle-aged ones, and of those for one at all: few cycles live long."""


def keep_started(young: int) -> None:
    """What a start has made stays, and no look goes through it. ``young``: new objects until the next look at these.

    Call it once, when the process has started.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, *OLDER_LOOKS)
