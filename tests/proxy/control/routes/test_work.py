from __future__ import annotations

import asyncio
import shutil

import pyarrow as pa
from tests.support.leases import LEASE, first_lease, group_of, lease
from tests.support.plane import API, until

from slipstream_proxy.control.run.store_keeper import rules_of
from slipstream_proxy.control.storage.ingester import Ingester
from slipstream_proxy.store import open_store


async def test_a_batch_is_arrow_and_acked_once(make_plane):
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    r = await first_lease(plane)
    table = pa.ipc.open_stream(await r.read()).read_all()
    assert table.num_rows == 2
    assert sorted(table["reward"].to_pylist()) == [0.0, 1.0]
    assert table["completion_ids"].to_pylist() == [[4, 5], [4, 5]]
    batch, held = r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]
    assert float(r.headers["x-slipstream-until"]) > plane.deps.now()
    assert (await lease(plane)).status == 204
    ack = {"lease": held, "outcome": "trained", "adapter": "tiny@1", "step": 1, "advantages": {"t-0": -1.0, "t-1": 1.0}}
    assert (await plane.ask("POST", f"/batches/{batch}/ack", {**ack, "lease": "other"}))[0] == 409
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    assert (await lease(plane)).status == 204
    detail = await plane.seen("t-1")
    assert detail["advantage"] == 1.0
    assert detail["batches"] == [batch]


async def test_a_released_batch_comes_back(make_plane):
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    await first_lease(plane)
    status, body = await plane.ask("POST", "/leases/release", {"worker": "w1"})
    assert (status, body["released"]) == (200, 1)
    assert (await lease(plane)).status == 200


async def test_stored_groups_are_trained_on_again_when_asked(make_plane):
    plane = await make_plane(groups={"size": 2})
    await group_of(plane, "t", [0.0, 1.0])
    r = await first_lease(plane)
    ack = {"lease": r.headers["x-slipstream-lease"], "outcome": "trained", "adapter": "tiny@1"}
    assert (await plane.ask("POST", f"/batches/{r.headers['x-slipstream-batch']}/ack", ack))[0] == 200
    assert (await plane.ask("POST", "/training/again", {}))[1]["left_out"] == {"trained": 1}
    dry = {"epochs": 2, "dry_run": True}
    assert (await plane.ask("POST", "/training/again?task=t", dry))[1]["passes"] == 1
    assert (await lease(plane)).status == 204, "it was only asked"
    assert (await plane.ask("POST", "/training/again?task=other", {"epochs": 2}))[1]["groups"] == 0
    assert (await plane.ask("POST", "/training/again?task=t", {"epochs": 2}))[1]["groups"] == 1
    _, status = await plane.ask("GET", "/status")
    (line,) = [x for x in status["funnel"]["lines"] if x["cause"] == "again"]
    assert "0 of 1 pass is done, 1 group waits" in line["text"] and "--stop" in line["fix"]
    assert (await plane.ask("GET", "/audit"))[1]["entries"][0]["detail"]["filters"] == {"task": "t"}
    assert (await plane.ask("DELETE", "/training/again"))[1] == {"groups": 1}
    assert (await lease(plane)).status == 204
    for q, groups in (("hello", 1), ("nobody-said-this", 0)):
        assert (await plane.ask("POST", f"/training/again?q={q}", dry))[1]["groups"] == groups
    assert (await plane.ask("POST", "/training/again", {}, scopes=["inference"]))[0] == 403


async def judge_lease(plane):
    """A group to judge, as soon as there is one."""

    async def get():
        status, body = await plane.ask("POST", "/groups/lease", {"worker": "j1"})
        return body if status == 200 else None

    return await until(get)


async def test_a_rerun_of_the_judge_is_in_the_audit_log(plane):
    said = {"id": "r1", "text": "4 runs in 2 groups"}
    assert (await plane.ask("POST", "/judge/reruns", said, scopes=["judge"]))[0] == 200
    entry = (await plane.ask("GET", "/audit"))[1]["entries"][0]
    assert (entry["action"], entry["target"], entry["detail"]) == ("judge rerun", "r1", {"text": said["text"]})


async def test_the_judge_scores_a_group(make_plane):
    plane = await make_plane(groups={"size": 2}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])

    leased = await judge_lease(plane)
    group = leased["groups"][0]
    assert [e["episode"]["id"] for e in group["episodes"]] == names
    scores = [{"episode": n, "value": i * 1.0, "reason": "so"} for i, n in enumerate(names)]
    body = {"lease": leased["lease"], "scores": scores}
    assert (await plane.ask("POST", f"/groups/{group['id']}/scores", {**body, "lease": "stale"}))[0] == 409
    assert (await plane.ask("POST", f"/groups/{group['id']}/scores", body))[0] == 200
    assert (await plane.ask("POST", "/groups/lease", {"worker": "j1"}))[0] == 204
    assert (await plane.seen(names[1]))["reward"] == 1.0


async def test_a_group_that_fails_too_often_is_parked_and_can_be_tried_again(make_plane):
    plane = await make_plane(groups={"size": 2}, judge={"max_attempts": 1}, reward={"weights": {"judge": 1.0}})
    await group_of(plane, "t", [None, None])

    leased = await judge_lease(plane)
    group = leased["groups"][0]["id"]
    assert (await plane.ask("POST", f"/groups/{group}/scores", {"lease": leased["lease"], "failed": "refused"}))[
        0
    ] == 200
    _, parked = await plane.ask("GET", "/groups/parked")
    assert [g["id"] for g in parked["groups"]] == [group]
    assert (await plane.ask("POST", f"/groups/{group}/retry"))[0] == 200
    assert (await plane.ask("GET", "/groups/parked"))[1]["groups"] == []
    assert (await plane.ask("POST", "/groups/nothing/retry"))[0] == 404


async def test_what_a_judge_says_of_a_group_with_a_forgotten_run_reaches_neither_log_nor_store(make_plane):
    plane = await make_plane(groups={"size": 2}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])

    leased = await judge_lease(plane)
    group, lease = leased["groups"][0]["id"], leased["lease"]
    vote = {"key": "judge-1", "value": {"why": "SECRET"}, "group": group, "lease": lease}
    assert (await plane.ask("PUT", "/judge/cache/judge-1", vote))[0] == 200
    assert (await plane.ask("DELETE", f"/episodes/{names[0]}"))[0] == 200
    assert (await plane.ask("PUT", "/judge/cache/judge-1", vote))[0] == 409
    scores = {"lease": lease, "scores": [{"episode": names[1], "value": 1.0, "reason": "LATE SECRET"}]}
    assert (await plane.ask("POST", f"/groups/{group}/scores", scores))[0] == 409
    assert (await plane.ask("POST", f"/groups/{group}/scores", {"lease": lease, "failed": "LATE SECRET"}))[0] == 409
    assert (await plane.ask("GET", "/judge/cache/judge-1"))[0] == 404
    assert not any(b"LATE" in p.read_bytes() for p in plane.config.spool_dir.iterdir())
    assert (await judge_lease(plane))["groups"][0]["id"] == group, "the rest is judged again"


async def test_the_judges_cache(plane):
    assert (await plane.ask("GET", "/judge/cache/k1"))[0] == 404
    assert (await plane.ask("PUT", "/judge/cache/k1", {"key": "k1", "value": {"a": 1}}))[0] == 200
    status, body = await plane.ask("GET", "/judge/cache/k1")
    assert (status, body["value"]) == (200, {"a": 1})


class Killed:
    """Copies of a control plane's folder, made as a kill would leave it: before and after each write to the log and to the store."""

    def __init__(self, plane, into):
        self.plane, self.into, self.points = plane, into, []
        self.watching = ""
        put, ingest = plane.deps.mutations.writer.put, plane.deps.store.ingest

        async def logged(kind, head, *parts):
            self.copy("before the log")
            done = await put(kind, head, *parts)
            self.copy("in the log")
            return done

        def stored(items, positions):
            if items:
                self.copy("before the store")
            ingest(items, positions)
            if items:
                self.copy("in the store")

        plane.deps.mutations.writer.put, plane.deps.store.ingest = logged, stored

    def copy(self, point):
        if self.watching:
            folder = self.into / str(len(self.points))
            self.points.append((f"{self.watching}: {point}", folder))
            shutil.copytree(self.plane.config.root, folder, ignore=shutil.ignore_patterns("*.sock", "adapters"))


async def filled(folder, config):
    """The copy's store, with what the log has more."""
    store = open_store(f"duckdb:///{folder / 'slipstream.duckdb'}", rules_of(config))
    ingester = Ingester(folder / "spool", store)
    await ingester.load_positions()
    while await ingester.round():
        pass
    return store


TABLES = (
    "SELECT id, eid, call, name, source, value, reason, meta, ts FROM t_rewards ORDER BY id",
    "SELECT eid, state, reward, grp, calls FROM t_episodes ORDER BY eid",
    "SELECT id, replace(state, 'leased', 'ready'), n, attempts, parked, retry_at, judge_last FROM t_groups ORDER BY id",
    "SELECT id, lease, model, state, adapter, step, reason FROM t_batches WHERE state IN ('trained', 'skipped') ORDER BY id",
    """SELECT m.batch, grp, eid, reward, advantage FROM t_members m JOIN t_batches b ON b.id = m.batch
    WHERE b.state IN ('trained', 'skipped') ORDER BY m.batch, eid""",
    "SELECT id, value, ts FROM t_cache ORDER BY id",
    "SELECT eid, model, adapter, arm, reward FROM t_outcomes ORDER BY seq",
)
"""All but leases, which nobody holds after a kill, and numbers that a store gives by itself."""


async def test_killed_anywhere_the_store_is_what_the_log_says(make_plane, tmp_path):
    plane = await make_plane(groups={"size": 2}, judge={"max_attempts": 3}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])
    killed = Killed(plane, tmp_path / "killed")

    async def judged(fields):
        leased = await judge_lease(plane)
        posted = {"lease": leased["lease"], **fields}
        killed.watching = f"scores {[*fields]}"
        assert (await plane.ask("POST", f"/groups/{leased['groups'][0]['id']}/scores", posted))[0] == 200
        assert (await plane.ask("POST", f"/groups/{leased['groups'][0]['id']}/scores", posted))[0] == 200, "again"
        killed.watching = ""

    await judged({"failed": "no answer", "retry_after": 0.0})
    await judged({"failed": "no answer"})
    await judged({"scores": [{"episode": n, "value": i * 1.0, "values": [i]} for i, n in enumerate(names)]})
    r = await first_lease(plane)
    batch, held = r.headers["x-slipstream-batch"], r.headers["x-slipstream-lease"]
    ack = {"lease": held, "outcome": "trained", "adapter": "tiny@1", "step": 1, "advantages": {"t-0": -1.0, "t-1": 1.0}}
    killed.watching = "ack"
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200, "again"
    killed.watching = "cache"
    for n in range(2):
        assert (await plane.ask("PUT", "/judge/cache/k", {"key": "k", "value": {"n": n}}))[0] == 200
    killed.watching = ""
    await plane.deps.rollout.gatekeeper.decide()
    killed.watching = "gate"
    await plane.deps.rollout.gatekeeper._keep(plane.deps.store, "tiny")
    killed.watching = ""
    assert len(killed.points) >= 4 * 6
    rebuilt = {}  # by what the log has
    for point, folder in killed.points:
        left = await filled(folder, plane.config)
        log = tuple(path.read_bytes() for path in sorted((folder / "spool").iterdir()))
        if log not in rebuilt:
            shutil.copytree(folder / "spool", folder / "rebuilt" / "spool")
            rebuilt[log] = await filled(folder / "rebuilt", plane.config)
        for sql in TABLES:
            assert _rows(left, sql) == _rows(rebuilt[log], sql), (point, sql)
        cursors = [plane.deps.rollout.trials.read(store, "tiny")[0] for store in (left, rebuilt[log])]
        newest = [_rows(store, "SELECT coalesce(max(seq), 0) FROM t_outcomes")[0][0] for store in (left, rebuilt[log])]
        left.close()
    assert cursors == newest and cursors[0] > 0, "the gate goes on behind the outcome that it had read"
    assert len(rebuilt) > 6
    for store in rebuilt.values():
        store.close()


def _rows(store, sql):
    with store.db.read() as tx:
        return tx.all(sql)


async def test_scopes_of_the_workers(plane):
    assert (await plane.ask("POST", "/batches/lease", LEASE, scopes=["judge"]))[0] == 403
    assert (await plane.ask("POST", "/groups/lease", {"worker": "j"}, scopes=["trainer"]))[0] == 403
    assert (await plane.ask("POST", "/batches/lease", LEASE, scopes=["trainer"]))[0] == 204


async def test_a_name_that_no_store_can_hold_is_nobody_s_model(plane):
    for name in ("\ud800", "a\0b"):
        assert (await plane.ask("POST", "/batches/lease", LEASE | {"model": name}))[0] == 204


async def test_batches_are_whole_while_calls_are_written(make_plane):
    """Each leased batch has every call of its groups with its own tokens, however much is written meanwhile."""
    plane = await make_plane(groups={"size": 2})
    stop = asyncio.Event()

    async def load():
        n = 0
        while n < 1600 and not stop.is_set():
            await asyncio.gather(*(plane.call(f"l{n + i}", task=f"other{(n + i) // 2}", done=True) for i in range(16)))
            n += 16
            await asyncio.sleep(0.01)
        return n

    loading = asyncio.create_task(load())
    told = {}
    for t in range(10):
        for i in range(2):
            name = f"e{t}-{i}"
            told[name] = [
                await plane.call(name, task=f"t{t}", text=f"{name} {turn}", done=turn == 2) for turn in range(3)
            ]
            await plane.seen(name)
            await plane.ask("POST", f"/episodes/{name}/rewards", {"value": float(i)})
    found: dict[str, list[str]] = {}

    async def get():
        r = await lease(plane, min_groups=1, max_groups=3, max_wait=0)
        if r.status == 200:
            for row in pa.ipc.open_stream(await r.read()).read_all().to_pylist():
                assert (row["prompt_ids"], row["completion_ids"], row["logprobs"]) == ([1, 2, 3], [4, 5], [-0.5, -0.25])
                assert row["reward"] == float(row["episode"].split("-")[1])
                found.setdefault(row["episode"], []).append(row["call"])
            ack = {"lease": r.headers["x-slipstream-lease"], "outcome": "trained"}
            assert (await plane.ask("POST", f"/batches/{r.headers['x-slipstream-batch']}/ack", ack))[0] == 200
        return len(found) == len(told)

    await until(get, 120)
    stop.set()
    written = await loading
    assert found == told
    await until(lambda: _calls(plane, written + 60), 120)
    assert (await lease(plane, min_groups=1, max_wait=0)).status == 204


async def _calls(plane, count):
    return (await plane.ask("GET", "/status"))[1]["calls"] == count


async def test_scores_are_of_the_leased_group_and_within_their_range(make_plane):
    plane = await make_plane(groups={"size": 2}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])
    await plane.call("other", task="t2", done=True)
    await plane.seen("other")
    leased = await judge_lease(plane)
    path = f"/groups/{leased['groups'][0]['id']}/scores"

    async def post(*scores: dict, **more) -> tuple[int, str | None]:
        status, body = await plane.ask("POST", path, {"lease": leased["lease"], "scores": [*scores], **more})
        return status, body.get("error", {}).get("field")

    good = {"episode": names[0], "value": 0.5, "values": [0.0, 1.0], "reason": "so"}
    for value in (7.5, -3, 1.0001, -1e-9):
        assert await post(good, {"episode": names[1], "value": value}) == (422, "body.scores.1.value")
    assert await post({**good, "values": [0.5, 7.0]}) == (422, "body.scores.0.value")
    assert await post(good, good) == (422, "body.scores.1")
    for episode in ("other", "nobody"):
        assert await post(good, {"episode": episode, "value": 0.5}) == (422, "body.scores")
    assert (await plane.seen(names[0]))["rewards"] == []
    assert (await post(good, {"episode": names[1], "value": 1.0}))[0] == 200
    assert (await post({"episode": names[1], "value": 1}, good))[0] == 200, "the same again"
    for other in ([good], [{**good, "value": 0.6}, {"episode": names[1], "value": 1.0}], []):
        assert await post(*other) == (409, "body.lease")
    assert await post(failed="no") == (409, "body.lease")
    assert [r["value"] for r in (await plane.seen(names[0]))["rewards"]] == [0.5]


async def test_a_function_gives_numbers_of_its_own_and_a_failure_is_said_once(make_plane):
    plane = await make_plane(groups={"size": 2}, judge={"max_attempts": 9}, reward={"weights": {"judge": 1.0}})
    names = await group_of(plane, "t", [None, None])
    leased = await judge_lease(plane)
    group = leased["groups"][0]["id"]
    for failed, status in (("no answer", 200), ("no answer", 200), ("another", 409)):
        body = {"lease": leased["lease"], "failed": failed, "retry_after": 0.0}
        assert (await plane.ask("POST", f"/groups/{group}/scores", body))[0] == status
    leased = await judge_lease(plane)
    for never in ("NaN", "Infinity", "1e999", "1e300", "-1"):
        endless = '{"lease": "%s", "failed": "no", "retry_after": %s}' % (leased["lease"], never)
        path = f"{API}/groups/{group}/scores"
        r = await plane.client.post(path, data=endless, headers=plane.as_() | {"content-type": "application/json"})
        assert (r.status, (await r.json())["error"]["field"]) == (422, "body.retry_after")
    scores = [{"episode": n, "value": 7.5, "meta": {"mode": "function"}} for n in names]
    body = {"lease": leased["lease"], "scores": scores}
    posts = [plane.ask("POST", f"/groups/{group}/scores", body) for _ in range(4)]
    other = [{**s, "value": -3.0} for s in scores]
    posts += [plane.ask("POST", f"/groups/{group}/scores", {**body, "scores": other}) for _ in range(4)]
    found = [status for status, _ in await asyncio.gather(*posts)]
    assert sorted(found) == [200] * 4 + [409] * 4 and len(set(found[:4])) == 1
