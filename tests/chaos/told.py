"""What the clients were told, what the store has, and what came of the comparison."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Told:
    """What the clients were told: acknowledged calls, rewards and end marks by episode, in order."""

    calls: dict[str, list[str]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    early: set[tuple[str, float]] = field(default_factory=set)
    """Rewards of which the answer said ``known: false``: no call of their episode had come. They wait for one for ``reward.orphan_ttl``
    seconds, and a clock that is set three days on may end that at once.
    """
    ended: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    count: int = 0

    def forget(self, episode: str) -> None:
        self.calls.pop(episode, None)
        self.rewards.pop(episode, None)
        self.ended.discard(episode)

    def drop(self, missing: Collection[tuple[str, str | float]]) -> None:
        """These are not asked for any more."""
        for episode, one in missing:
            if one == "end mark":
                self.ended.discard(episode)
            elif isinstance(one, str):
                self.calls[episode].remove(one)
            else:
                self.rewards[episode].remove(one)

    def missing(self, begin: str, stored: Stored, but: Collection[str] = ()) -> list[tuple[str, str | float]]:
        """(episode, call or reward) of what is not stored, of episodes whose names begin so, ``but`` those of some rounds."""
        found: list[tuple[str, str | float]] = []
        for episode in [*self.calls, *(e for e in self.rewards if e not in self.calls)]:
            if episode.startswith(begin) and episode[:6] not in but:
                calls = set(self.calls.get(episode, ())) - set(stored.calls.get(episode, ()))
                rewards = set(self.rewards.get(episode, ())) - set(stored.rewards.get(episode, ()))
                found += [(episode, call) for call in sorted(calls)]
                found += [(episode, value) for value in sorted(rewards)]
                if episode in self.ended and episode in stored.calls and episode not in stored.ended:
                    found.append((episode, "end mark"))
        return found

    def may_expire(self, episode: str, one: str | float, stored: Stored) -> bool:
        """Whether it is a reward that nothing but its episode's first call would have kept, and none came."""
        return (episode, one) in self.early and episode not in stored.calls and episode not in self.calls


@dataclass
class Stored:
    """What the store has, by episode, in order."""

    calls: dict[str, list[str]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


@dataclass
class Found:
    lost: int = 0
    doubled: int = 0
    out_of_order: int = 0
    returned: int = 0
    expired: int = 0
    said: int = 0
    """Acknowledged, and gone with a store that was put in place of a newer one: the proxy said so."""
    unsaid: int = 0
    """Likewise, and it did not."""

    def bad(self) -> bool:
        return any((self.lost, self.doubled, self.out_of_order, self.returned, self.unsaid))
