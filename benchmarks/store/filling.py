"""Fills a store with episodes by SQL, in seconds: what is measured is how it behaves when it has grown."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from hashlib import md5

from slipstream_proxy.store.store import Store
from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import Tx
from slipstream_proxy.store.tables.rows import BatchRow, CallRow, EpisodeRow, GroupRow, MemberRow, RewardRow

NOW = float(int(time.time()))
SPAN = 864_000.0
"""Seconds over which the episodes begin."""
CALLS = 6
GROUP, BATCH = 8, 512
"""Episodes of a group, and of a batch."""
OPEN = 1000
"""One episode of so many goes on for as long as it is looked at."""
MODEL = "tiny"
ID = "'e' || md5(i::VARCHAR)"
EID = f"'-/' || {ID}"
IS_OPEN = f"i % {OPEN} = {OPEN - 1}"
HAS_OPEN = f"(i + 1) % {OPEN // GROUP} = 0"
"""Of a group: the same, so that it still forms."""
BLOB = "'abcdefgh'::BYTEA"


def _part(what: str, size: int) -> str:
    """Whole division in SQL, as both databases have it."""
    return f"(({what} - {what} % {size}) / {size})::BIGINT"


def _columns(fields: tuple[str, ...], values: dict[str, str]) -> str:
    return ", ".join(values.get(f, "NULL") for f in fields)


def name_of(number: int) -> str:
    """An episode's id: names do not sort by time, as agents' do not."""
    return "e" + md5(str(number).encode(), usedforsecurity=False).hexdigest()


def started_of(number: int, episodes: int) -> float:
    """When the episode of this number began."""
    return NOW - SPAN * (episodes - number) / episodes


def fill(store: Store, episodes: int) -> None:
    """Episodes of ``CALLS`` calls over ten days, done, rewarded and trained on; one in ``OPEN`` goes on."""
    db = store.db
    days = [schema.day_of(NOW - 86_400 * n) for n in range(int(SPAN // 86_400) + 2)]
    store.calls.days.ensure(days)
    with db.write() as tx:
        started = f"{NOW} - {SPAN} * ({episodes} - i) / {episodes}"
        tx.run(f"CREATE TEMP TABLE n AS SELECT i, {started} AS began FROM generate_series(0, {episodes - 1}) r(i)")
        _episodes(tx)
        _groups(tx, episodes)
        for day in days:
            _calls(tx, day, shared=db.shared)
        tx.run("DROP TABLE n")
        store.tallies.recount(tx)
        if db.shared:
            tx.all(f"SELECT setval('slipstream_seq', {episodes})")
            tx.run("ANALYZE")
    db.settle()


def _episodes(tx: Tx) -> None:
    """Episodes, their rewards and pins, and the ids of what the spool brought in the last week."""
    ep = {
        "eid": EID, "key": "'-'", "id": ID, "task": f"'t' || {_part('i', GROUP)}", "split": "'train'", "tags": "'{}'", "model": f"'{MODEL}'",
        "adapter": f"'{MODEL}'", "arm": "'live'", "state": f"CASE WHEN {IS_OPEN} THEN 'open' ELSE 'done' END", "started": "began",
        "last_at": "began + 10", "ended": f"CASE WHEN NOT {IS_OPEN} THEN began + 10 END", "calls": str(CALLS),
        "trained_calls": str(CALLS), "prompt_tokens": "600", "completion_tokens": "120", "reward": "(i % 10) / 10.0",
        "grp": f"CASE WHEN NOT {IS_OPEN} THEN 'g' || {_part('i', GROUP)} END", "grouped": "TRUE", "alike": "'a'", "adapters": f"'[\"{MODEL}\"]'",
        "retried": "FALSE", "untagged": "FALSE", "last_end": f"CASE WHEN {IS_OPEN} THEN {NOW + 3600} ELSE began + 10 END", "idle": "FALSE",
    }  # fmt: skip
    tx.run(f"INSERT INTO t_episodes SELECT {_columns(tuple(EpisodeRow.__dataclass_fields__), ep)} FROM n")
    reward = {"id": "'m' || i", "seq": "i", "eid": EID, "name": "'reward'", "source": "'agent'", "value": "(i % 10) / 10.0", "meta": "'{}'", "ts": "began + 10"}  # fmt: skip
    tx.run(f"INSERT INTO t_rewards SELECT {_columns(RewardRow._fields, reward)} FROM n")
    tx.run(f"INSERT INTO t_pins SELECT {EID}, '{MODEL}', '{MODEL}', 'live', began, {IS_OPEN}, '' FROM n")
    tx.run(f"INSERT INTO t_seen SELECT 'm' || i, began + 10 FROM n WHERE began > {NOW - 7 * 86_400}")


def _groups(tx: Tx, episodes: int) -> None:
    """All are trained on, but those with an episode that goes on."""
    group = {
        "id": "'g' || i", "bucket": "'b' || i", "ordinal": "0", "kind": "'task'", "key": "'-'", "task": "'t' || i", "model": f"'{MODEL}'",
        "split": "'train'", "state": f"CASE WHEN {HAS_OPEN} THEN 'forming' ELSE 'trained' END",
        "n": f"CASE WHEN {HAS_OPEN} THEN {GROUP - 1} ELSE {GROUP} END", "created": f"CASE WHEN {HAS_OPEN} THEN {NOW} ELSE 0 END",
        "completed": f"CASE WHEN NOT {HAS_OPEN} THEN i END", "ready_at": f"CASE WHEN NOT {HAS_OPEN} THEN i END",
        "batch": f"'k' || {_part('i', BATCH // GROUP)}", "attempts": "0", "parked": "FALSE", "retry_at": "0",
    }  # fmt: skip
    tx.run(f"INSERT INTO t_groups SELECT {_columns(GroupRow._fields, group)} FROM n WHERE i < {episodes // GROUP}")
    batch = {
        "id": "'k' || i", "lease": "'l' || i", "worker": "'t'", "model": f"'{MODEL}'", "state": "'trained'", "until": "0", "created": "i",
        "step": "i",
    }  # fmt: skip
    tx.run(f"INSERT INTO t_batches SELECT {_columns(BatchRow._fields, batch)} FROM n WHERE i <= {episodes // BATCH}")
    member = {
        "batch": f"'k' || {_part('i', BATCH)}",
        "grp": f"'g' || {_part('i', GROUP)}",
        "eid": EID,
        "reward": "(i % 10) / 10.0",
        "advantage": "0.5",
    }
    which = f"({_part('i', GROUP)} + 1) % {OPEN // GROUP} <> 0"
    tx.run(f"INSERT INTO t_members SELECT {_columns(MemberRow._fields, member)} FROM n WHERE {which}")


def _calls(tx: Tx, day: str, *, shared: bool) -> None:
    lengths = "0200000002000000"
    lengths = f"decode('{lengths}', 'hex')" if shared else f"unhex('{lengths}')"
    call = {
        "id": "'c' || lpad(i::VARCHAR, 12, '0') || k", "eid": EID, "number": "k", "ts": "began + k", "seconds": "0.5", "dialect": "'chat'",
        "model": f"'{MODEL}'", "trained": f"'{MODEL}'", "adapter": f"'{MODEL}'", "status": "200", "outcome": "'ok'", "trainable": "TRUE",
        "sampling": "'{}'", "temperature": "1.0", "keep_messages": "0", "keep_tokens": "0", "messages": "'[\"hello\"]'",
        "reply": "'[\"yes\"]'", "finish": "'[\"stop\"]'", "prompt_tokens": "2", "completion_tokens": "2", "prompt_ids": BLOB,
        "completion_ids": BLOB, "lengths": lengths, "logprobs": BLOB, "body_hash": "''",
        "attempt": "0", "extra": "'{}'",
    }  # fmt: skip
    begin = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    tx.run(
        f"""INSERT INTO {schema.table_of(day)} SELECT {_columns(CallRow._fields, call)} FROM n, generate_series(0, {CALLS - 1}) c(k)
        WHERE began + k >= {begin} AND began + k < {begin + 86_400}"""
    )
