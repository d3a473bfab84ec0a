"""The life of an adapter: which state follows which, and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from slipstream.contract import Adapter, AdapterState

S = AdapterState
STATE_TRANSITIONS: Final[Mapping[AdapterState, Mapping[AdapterState, str]]] = {
    S.LOADING: {
        S.CANDIDATE: "the engines have it: it is on trial",
        S.LIVE: "the engines have it, and there is no gate, or a person promoted it",
        S.RETIRED: "a newer one came while it waited, or what it was made from was taken back",
        S.ROLLED_BACK: "a person took it back",
        S.REFUSED: "the engine refuses it, or it failed its replay",
    },
    S.CANDIDATE: {
        S.LIVE: "the gate accepted it, or a person promoted it",
        S.RETIRED: "a newer one came before a verdict, or a person promoted another one",
        S.ROLLED_BACK: "it is worse, a person took it back, or what it was made from was taken back",
        S.REFUSED: "restarted engines refuse it",
    },
    S.LIVE: {
        S.RETIRED: "a later one is live, or it is made anew without what was forgotten",
        S.ROLLED_BACK: "it is worse, or a person took it back",
        S.REFUSED: "restarted engines refuse it",
    },
    S.RETIRED: {
        S.LIVE: "the one after it was taken back",
        S.LOADING: "a person promotes it",
    },
    S.ROLLED_BACK: {S.LOADING: "a person promotes it"},
    S.REFUSED: {S.LOADING: "a person promotes it, after the engine's own trouble is over"},
}
"""State → the states that may follow, with what leads there. A version begins as ``loading``."""


def unexpected(before: Mapping[str, Adapter], changed: Iterable[Adapter]) -> list[str]:
    """Changes that no line of the table has, in words."""
    found = []
    for adapter in changed:
        was = before.get(adapter.name)
        if was is not None and was.state != adapter.state and adapter.state not in STATE_TRANSITIONS[was.state]:
            found.append(f"{adapter.name}: {was.state.value} → {adapter.state.value}")
    return found


def table() -> str:
    """As Markdown."""
    rows = [
        f"| `{state.value}` | `{after.value}` | {why} |"
        for state, following in STATE_TRANSITIONS.items()
        for after, why in following.items()
    ]
    return "\n".join(["| from | to | when |", "|---|---|---|", *rows])
