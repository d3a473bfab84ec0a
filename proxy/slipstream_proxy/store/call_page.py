"""Which of a run's calls are wanted, and in which form."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.contract import Form

PAGE_BYTES = 8 * 2**20
"""JSON of one page of calls, about; one call alone may weigh more."""
PAGE_CALLS = 5_000


@dataclass(slots=True, frozen=True)
class CallPage:
    """Those from number ``first`` on, at most ``most``."""

    form: Form = "auto"
    first: int = 0
    most: int = PAGE_CALLS


EVERY_CALL = CallPage()
"""As many as a page holds, from the first on."""
