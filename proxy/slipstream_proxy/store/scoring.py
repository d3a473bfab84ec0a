"""From reward rows to the one number that trains (DESIGN section 6)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from slipstream_proxy.store.base import IN, Base
from slipstream_proxy.store.driver import Row, Tx
from slipstream_proxy.store.protocol import Rules


def combine(rules: Rules, rows: Iterable[tuple[str | None, str, float]]) -> float | None:
    """Σ weight × value over the names of ``rules.weights``, of an episode's latest rows (call | None, name, value).

    A name's value is the episode's own plus, unless credit goes to calls, the sum of its calls'. None while a name is missing.
    """
    own: dict[str, float] = {}
    calls: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if call is None:
            own[name] = value
        else:
            calls[name] += value
    total = 0.0
    for name, weight in rules.weights.items():
        if name not in own and name not in calls:
            return None
        total += weight * (own.get(name, 0.0) + (calls.get(name, 0.0) if rules.credit == "episode" else 0.0))
    return total


def combine_calls(rules: Rules, rows: Iterable[tuple[str | None, str, float]]) -> dict[str, float]:
    """Call → its own weighted reward, where credit goes to calls."""
    found: dict[str, float] = defaultdict(float)
    for call, name, value in rows:
        if rules.credit == "call" and call is not None and name in rules.weights:
            found[call] += rules.weights[name] * value
    return found


class Scoring(Base):
    def _latest(self, tx: Tx, eids: Collection[str]) -> dict[str, list[tuple[str | None, str, float]]]:
        """Of each episode the latest row per (call, name), whatever its source."""
        found: dict[str, list[tuple[str | None, str, float]]] = defaultdict(list)
        if eids:
            sql = f"SELECT DISTINCT ON (eid, call, name) eid, call, name, value FROM t_rewards WHERE eid {IN} ORDER BY eid, call, name, seq DESC"
            for eid, call, name, value in tx.all(sql, (list(eids),)):
                found[eid].append((call, name, value))
        return found

    def _combined(self, tx: Tx, eids: Collection[str]) -> dict[str, float | None]:
        latest = self._latest(tx, eids)
        return {eid: combine(self.rules, latest[eid]) if eid in latest else None for eid in eids}

    def _apply_rules(self) -> None:
        """After a change of ``reward.weights`` or ``reward.credit`` the episodes' combined rewards are computed anew."""
        now = f"{sorted(self.rules.weights.items())} {self.rules.credit}"
        with self.db.write() as tx:
            before = self._meta(tx, "reward rules")
            if before == now:
                return
            self._set_meta(tx, "reward rules", now)
            if before is not None:
                eids = [eid for (eid,) in tx.all("SELECT eid FROM t_episodes WHERE state <> 'deleted'")]
                rows: list[Row] = list(self._combined(tx, eids).items())
                tx.update("t_episodes", ("eid",), ("reward",), rows)
                tx.run(
                    "UPDATE t_groups SET state = 'waiting_reward' WHERE state = 'ready' AND id IN"
                    " (SELECT grp FROM t_episodes WHERE reward IS NULL AND grp IS NOT NULL)"
                )
