"""The two companies whose customers are served: what they keep records of, and what their policies allow.

One engine (`desk.py`) serves both. A domain says what a record is called, what it holds, and when it may be changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.worlds import NAMES, function_tool, listed

__all__ = [
    "AGES",
    "AIRLINE",
    "DOMAINS",
    "NAMES",
    "RETAIL",
    "Allowed",
    "Domain",
    "arguments_of",
    "lookup_answer",
    "number_of",
    "tools_of",
]


AGES = tuple(range(5, 65, 5))

CONDUCT = (
    "Look the customer up by code before all else: the lookup tells which {record} is which. Before a change ask for a yes "
    "by number, such as: {example} 12? Say sorry to what is forbidden, and done after a change"
)


@dataclass(frozen=True)
class Allowed:
    """A case in which a change is allowed: the record is in one of these states, and at most `within` old."""

    states: tuple[str, ...]
    within: int | None = None


@dataclass(frozen=True)
class Domain:
    """A company. `actions`: each change that a record can have, and the cases in which the policy allows it."""

    name: str
    record: str
    noun: str
    """What the customer says after the name of a thing."""
    unit: str
    things: tuple[str, ...]
    states: tuple[str, ...]
    actions: dict[str, tuple[Allowed, ...]]
    policy: str

    def wish(self, action: str, thing: str) -> str:
        """How a customer says what is to be done."""
        return f"{action} the {thing}{self.noun}"

    def allows(self, action: str, state: str, age: int) -> bool:
        """Whether the policy lets a record in this state and of this age be changed so."""
        cases = self.actions[action]
        return any(state in case.states and (case.within is None or age <= case.within) for case in cases)


def conduct(record: str, example: str) -> str:
    """The part of a policy that is the same everywhere."""
    return CONDUCT.format(record=record, example=example)


RETAIL = Domain(
    name="retail",
    record="order",
    noun="",
    unit="days",
    things=listed("lamp desk sofa chair kettle phone camera watch jacket shoes tent bike guitar mirror carpet clock"),
    states=("pending", "shipped", "delivered"),
    actions={
        "cancel": (Allowed(("pending",)),),
        "return": (Allowed(("delivered",), within=30),),
        "exchange": (Allowed(("delivered",), within=15),),
    },
    policy="You serve the customers of a shop. Cancel only pending orders. Return only delivered orders, within 30 days. "
    "Exchange only delivered orders, within 15 days. " + conduct("order", "cancel"),
)
AIRLINE = Domain(
    name="airline",
    record="booking",
    noun=" flight",
    unit="hours",
    things=listed(
        "paris oslo rome lima cairo tokyo delhi quito berlin madrid lisbon vienna athens dublin seoul havana"
    ),
    states=("basic", "economy", "business"),
    actions={
        "cancel": (Allowed(("business",)), Allowed(("basic", "economy"), within=20)),
        "change": (Allowed(("economy", "business")),),
        "upgrade": (Allowed(("economy",)), Allowed(("basic",), within=30)),
    },
    policy="You serve the customers of an airline. Cancel only business bookings, or any within 20 hours. Change only economy "
    "and business. Upgrade only economy, or basic within 30 hours. " + conduct("booking", "change"),
)
DOMAINS = {domain.name: domain for domain in (RETAIL, AIRLINE)}


def tools_of(domain: Domain) -> list[dict[str, Any]]:
    """The tools of an agent that serves this company's customers, in OpenAI's form."""
    record = domain.record
    described = {"customer": ("code", "Look a customer up: the name, and what each record is of.")}
    described[record] = ("id", f"Look at one {record}, named by what it is of and its number: its state and its age.")
    described |= {action: ("id", f"{action.capitalize()} this {record}.") for action in domain.actions}
    tools = {name: function_tool(name, key, "integer", description) for name, (key, description) in described.items()}
    looked_at = tools[record]["function"]["parameters"]
    looked_at["properties"] = {"thing": {"type": "string"}, **looked_at["properties"]}
    looked_at["required"] = ["thing", "id"]
    return list(tools.values())


def lookup_answer(name: str, records: Iterable[tuple[str, int]]) -> str:
    """What the customer lookup says. `records`: pairs of a thing and its number."""
    return f"{name}: " + ", ".join(f"{thing} {number}" for thing, number in records)


def arguments_of(domain: Domain, tool: str, number: int, thing: str) -> str:
    """The arguments of a call as JSON. `thing`: what the record is of."""
    if tool == domain.record:
        return json.dumps({"thing": thing, "id": number})
    return json.dumps({"code" if tool == "customer" else "id": number})


def number_of(arguments: object) -> object:
    """The number in a call's arguments; None where there is none."""
    return arguments.get("id", arguments.get("code")) if isinstance(arguments, dict) else None
