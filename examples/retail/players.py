"""Those whose service the small model has read: most of them careless.

Each skips what the policy asks for with some probability; nobody is crippled. The expert skips nothing. They see what an
agent sees: what the customer says, and what the tools answer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retail.desk import MAX_CALLS, Case, Desk, cases
from retail.domains import arguments_of, tools_of

__all__ = ["EXPERT", "PLAYERS", "Move", "Player", "Servant", "expert_reward", "play", "transcripts"]

CODE, SORRY, DONE = "your code?", "sorry", "done"


class Player(NamedTuple):
    """Chances, each time: to look the customer up, to trust the customer's record rather than the number that the
    customer says, to look at the record, to obey the policy, to ask for a yes, to hear a change of mind, to hold firm
    when the customer pleads.
    """

    share: float
    verifies: float
    matches: float
    looks: float
    obeys: float
    asks: float
    hears: float
    holds: float


PLAYERS = (
    Player(0.65, verifies=0.75, matches=0.5, looks=0.5, obeys=0.7, asks=0.7, hears=0.6, holds=0.5),
    Player(0.22, verifies=0.9, matches=0.7, looks=0.7, obeys=0.85, asks=0.85, hears=0.8, holds=0.8),
    Player(0.13, verifies=0.98, matches=0.95, looks=0.95, obeys=0.97, asks=0.97, hears=0.95, holds=0.95),
)
EXPERT = Player(1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
KINDS = {"clumsy": PLAYERS, "expert": (EXPERT,)}


class Move(NamedTuple):
    """Something to say, or a tool with its number."""

    text: str = ""
    tool: str = ""
    number: int = 0


@dataclass
class Servant:
    """A player in one conversation: what was seen so far, and the next move."""

    player: Player
    case: Case
    rng: random.Random
    action: str = ""
    thing: str = ""
    told: int = 0
    code: int | None = None
    code_failed: bool = False
    own: dict[str, int] = field(default_factory=dict)
    """Thing → number, of the customer's record."""
    seen: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Number → (state, age)."""
    target: int | None = None
    agreed: bool = False
    changed: bool = False
    refuses: bool | None = None
    trusts: bool = False
    """Goes on without knowing who the customer is."""

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def hear(self, text: str) -> None:
        """Take in what the customer says."""
        if found := re.search(r"my code is (\d+)", text):
            self.code = int(found[1])
            text = text[: found.start()]
        if found := re.search(rf"({self.case.domain.record}) (\d+)", text):
            self.told = int(found[2])
        wish = re.search(rf"\b({'|'.join(self.case.domain.actions)}) the (\w+)", text)
        if wish and (not self.action or text.startswith("then") or self.chance(self.player.hears)):
            self.action, self.thing = wish[1], wish[2]
            self.target = self.refuses = None
        elif wish:
            self.agreed = True  # misheard: goes on as if it had been a yes
        if text == "yes":
            self.agreed = True
        if text.startswith("please make") and not self.chance(self.player.holds):
            self.refuses = False

    def see(self, tool: str, number: int, text: str) -> None:
        """Take in what a tool answers."""
        if tool == "customer":
            self.own = {thing: int(n) for thing, n in re.findall(r"(\w+) (\d+)", text)}
            self.code_failed = not self.own
            if self.code_failed:
                self.code = None
        elif tool == self.case.domain.record:
            found = re.search(r", (\w+), (\d+) ", text)
            self.seen[number] = (found[1], int(found[2])) if found else ("none", 0)
        else:
            self.changed = True

    def move(self) -> Move:
        """What to do next."""
        player = self.player
        if self.changed:
            return Move(DONE)
        if self.agreed and self.target is not None:
            return Move(tool=self.action, number=self.target)
        if not self.own and not self.trusts:
            if self.chance(player.verifies):
                return Move(CODE) if self.code is None else Move(tool="customer", number=self.code)
            self.trusts = True
        if self.target is None:
            known = self.own.get(self.thing)
            self.target = known if known is not None and self.chance(player.matches) else self.told
            if self.target not in self.seen and self.chance(player.looks):
                return Move(tool=self.case.domain.record, number=self.target)
        if self.refuses is None:
            state, age = self.seen.get(self.target, ("", 0))
            forbidden = bool(state) and not self.case.domain.allows(self.action, state, age)
            self.refuses = forbidden and self.chance(player.obeys)
        if self.refuses:
            return Move(SORRY)
        if self.chance(player.asks):
            return Move(f"{self.action} {self.target}?")
        return Move(tool=self.action, number=self.target)


def play(case: Case, player: Player, rng: random.Random) -> tuple[Desk, list[dict[str, Any]]]:
    """One conversation: the desk at its end, and the messages."""
    desk, servant = Desk(case), Servant(player, case, rng)
    opening = desk.opening()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": case.domain.policy},
        {"role": "user", "content": opening},
    ]
    servant.hear(opening)
    for _ in range(MAX_CALLS):
        move = servant.move()
        if move.tool:
            arguments = arguments_of(case.domain, move.tool, move.number, servant.thing)
            function = {"name": move.tool, "arguments": arguments}
            call = {"id": "call", "type": "function", "function": function}
            answer = desk.call(move.tool, move.number)
            servant.see(move.tool, move.number, answer)
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": "call", "content": answer})
            continue
        messages.append({"role": "assistant", "content": move.text})
        answer = desk.say(move.text)
        if desk.left:
            break
        messages.append({"role": "user", "content": answer})
        servant.hear(answer)
    return desk, messages


def expert_reward(some: Sequence[Case]) -> float:
    """Mean reward of the expert on these cases."""
    rng = random.Random(0)
    return sum(play(case, EXPERT, rng)[0].reward for case in some) / max(1, len(some))


def transcripts(
    seed: int, count: int, players: str = "clumsy"
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """`count` conversations as (messages, tools), in OpenAI's form. Every assistant message is the player's own.

    `players`: "clumsy" (the mixture that the small model has read) or "expert".
    """
    rng = random.Random(seed)
    kinds = KINDS[players]
    some = cases("pretrain", seed)
    for _ in range(count):
        case = next(some)
        player = rng.choices(kinds, [kind.share for kind in kinds])[0]
        yield play(case, player, rng)[1], tools_of(case.domain)
