"""Fills a store with episodes by SQL, in seconds: what is measured is how it behaves when it has grown."""

from __future__ import annotations

import time
from hashlib import md5

from slipstream_proxy.store import schema
from slipstream_proxy.store.protocol import Store
from slipstream_proxy.store.rows import CallRow, EpisodeRow, GroupRow, RewardRow

NOW = float(int(time.time()))
SPAN = 864_000.0
"""Seconds over which the episodes begin."""
CALLS = 6
GROUP = 8
ID = "'e' || md5(i::VARCHAR)"
EID = f"'-/' || {ID}"
BLOB = "'abcdefgh'::BLOB"


def _columns(fields: tuple[str, ...], values: dict[str, str]) -> str:
    return ", ".join(values.get(f, "NULL") for f in fields)


def name_of(number: int) -> str:
    """An episode's id: names do not sort by time, as agents' do not."""
    return "e" + md5(str(number).encode(), usedforsecurity=False).hexdigest()


def started_of(number: int, episodes: int) -> float:
    """When the episode of this number began."""
    return NOW - SPAN * (episodes - number) / episodes


def fill(store: Store, episodes: int) -> None:
    """Episodes of ``CALLS`` calls over ten days, done, rewarded and trained on; one in a thousand is open."""
    db = store.db  # type: ignore[attr-defined]
    days = [schema.day_of(NOW - 86_400 * n) for n in range(10)]
    store.calls.days.ensure(days)  # type: ignore[attr-defined]
    started = f"{NOW} - {SPAN} * ({episodes} - i) / {episodes}"
    with db.write() as tx:
        tx.run(f"CREATE TEMP TABLE n AS SELECT i, {started} AS began FROM range({episodes}) r(i)")
        ep = {
            "eid": EID, "key": "'-'", "id": ID, "task": f"'t' || (i // {GROUP})", "split": "'train'", "tags": "'{}'", "model": "'m'",
            "adapter": "'m'", "arm": "'live'", "state": "CASE WHEN i % 1000 = 999 THEN 'open' ELSE 'done' END", "started": "began",
            "last_at": "began + 10", "ended": "began + 10", "calls": str(CALLS), "trained_calls": str(CALLS), "prompt_tokens": "600",
            "completion_tokens": "120", "reward": "(i % 10) / 10.0", "grp": f"'g' || (i // {GROUP})", "grouped": "TRUE", "alike": "'a'",
            "adapters": "'[\"m\"]'", "retried": "FALSE", "untagged": "FALSE", "last_end": f"CASE WHEN i % 1000 = 999 THEN {NOW} ELSE began + 10 END", "idle": "FALSE",
        }  # fmt: skip
        fields = tuple(EpisodeRow.__dataclass_fields__)
        tx.run(f"INSERT INTO t_episodes SELECT {_columns(fields, ep)} FROM n")
        reward = {"id": "'m' || i", "seq": "i", "eid": EID, "name": "'reward'", "source": "'agent'", "value": "(i % 10) / 10.0", "meta": "'{}'", "ts": "began + 10"}  # fmt: skip
        tx.run(f"INSERT INTO t_rewards SELECT {_columns(RewardRow._fields, reward)} FROM n")
        tx.run(f"INSERT INTO t_pins SELECT {EID}, 'm', 'm', 'live', began, i % 1000 = 999, '' FROM n")
        group = {
            "id": "'g' || i", "bucket": "'b' || i", "ordinal": "0", "kind": "'task'", "key": "'-'", "task": "'t' || i", "model": "'m'",
            "split": "'train'", "state": "'trained'", "n": str(GROUP), "created": "0", "completed": "i", "ready_at": "i", "attempts": "0", "parked": "FALSE", "retry_at": "0",
        }  # fmt: skip
        tx.run(f"INSERT INTO t_groups SELECT {_columns(GroupRow._fields, group)} FROM n WHERE i < {episodes // GROUP}")
        for d, day in enumerate(days):
            call = {
                "id": "'c' || lpad(i::VARCHAR, 12, '0') || k", "eid": EID, "number": "k", "ts": "began + k", "seconds": "0.5", "dialect": "'chat'",
                "model": "'m'", "trained": "'m'", "adapter": "'m'", "status": "200", "outcome": "'ok'", "trainable": "TRUE", "sampling": "'{}'",
                "temperature": "1.0", "keep_messages": "0", "keep_tokens": "0", "messages": "'[\"hello\"]'", "reply": "'[\"yes\"]'",
                "finish": "'[\"stop\"]'", "prompt_tokens": "2", "completion_tokens": "2", "prompt_ids": BLOB, "completion_ids": BLOB,
                "lengths": "'\\x02\\x00\\x00\\x00\\x02\\x00\\x00\\x00'::BLOB", "logprobs": BLOB, "body_hash": "''", "attempt": "0", "extra": "'{}'",
            }  # fmt: skip
            begin = NOW - 86_400 * d - (NOW % 86_400)
            tx.run(
                f"""INSERT INTO {schema.table_of(day)} SELECT {_columns(CallRow._fields, call)} FROM n, range({CALLS}) c(k)
                WHERE began + k >= {begin} AND began + k < {begin + 86_400}"""
            )
        tx.run("DROP TABLE n")
    db.settle()
