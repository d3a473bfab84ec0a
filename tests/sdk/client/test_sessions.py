"""The client, sync and async, against a server that speaks the control API."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support import free_port
from tests.support.answers import EPISODE, arrow, fill
from tests.support.server import Reply, Seen, Server

from slipstream import contract as c
from slipstream.client import AsyncClient, Client, LeasedBatch
from slipstream.client.sessions import Method
from slipstream.errors import ApiError, ConfigError, Unavailable


def public(kind: type) -> dict[str, Any]:
    found = {n: f for base in kind.__mro__ for n, f in vars(base).items() if base is not object}
    return {
        n: f for n, f in found.items() if not n.startswith("_") and (inspect.isfunction(f) or isinstance(f, Method))
    }


def test_both_have_the_same_methods() -> None:
    sync, twin = public(Client), public(AsyncClient)
    assert sync.keys() == twin.keys()
    for name in sync.keys() - {"ask", "close"}:
        ours, theirs = sync[name], twin[name]
        if isinstance(ours, Method):
            assert ours is theirs, name  # written once
        else:
            assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters, name
            if inspect.isgeneratorfunction(ours):
                assert inspect.isasyncgenfunction(theirs), name
            else:
                assert inspect.iscoroutinefunction(theirs), name
    assert inspect.signature(Client.__init__).parameters == inspect.signature(AsyncClient.__init__).parameters


def test_a_method_shows_its_arguments_and_its_words() -> None:
    with Client("http://127.0.0.1:1") as client:
        assert list(inspect.signature(client.hold_engine).parameters) == ["hold"]
        assert "Filters: task" in (client.episodes.__doc__ or "")


LEARNER = {"model": "inbox", "worker": "w", "place": "", "since": 1.0, "until": 31.0, "held": True}
ASKS: dict[str, tuple[Any, ...]] = {
    "tenants": (),
    "episodes": (), "all_episodes": (), "episode": ("e1",), "episode_page": ("e1",), "add_reward": ("e1", c.RewardIn(value=1, key="k")), "add_feedback": ("e1", c.FeedbackIn(text="shorter")), "done": ("e1",), "delete": ("e1",), "forget": (c.ForgetIn(episodes=["e1"]),),
    "case_sets": (), "case_page": ("s1",), "add_cases": ("s1", c.CasesIn(episodes=["e1"])), "import_cases": ("s1", [EPISODE]),
    "remove_cases": ("s1", c.CasesRemoved(episodes=["e1"])), "drop_cases": ("s1",),
    "lease_groups": (c.GroupLeaseIn(worker="w"),), "report_judge": (c.JudgeReport(worker="w"),),
    "post_scores": ("g1", c.ScoresIn(lease="l1", scores=[c.Score(episode="e1", value=1)])),
    "begin_rerun": (c.RerunIn(id="r1", text="2 runs"),), "train_again": (c.TrainAgainIn(epochs=2),), "train_anew": (c.TrainAnewIn(),), "stop_training_again": (),
    "parked": (), "retry_group": ("g1",), "cache_get": ("k1",), "cache_put": ("k1", {"a": 1}), "lease_batch": (c.BatchLeaseIn(worker="w"),),
    "tell_gaps": ("b1", c.BatchGaps(lease="l1", calls=[])),
    "ack_batch": ("b1", c.BatchAck(lease="l1", outcome="trained")), "release": ("w",), "hold_engine": (c.HoldIn(worker="w"),), "release_engine": ("w",),
    "add_adapter": (c.AdapterIn(path="inbox@1"),), "try_adapter": (c.AdapterTrialIn(path=".tmp-a"),), "adapters": (), "batch": ("b1",), "replay_of": ("inbox@1",),
    "promote": ("inbox@1", "why"), "demote": ("inbox@1",), "rollback": ("inbox@1", None, "task=t"), "freeze": ("inbox@1",), "unfreeze": ("inbox@1",), "adapter_effect": ("inbox@1", "promote"), "post_event": (c.Event(kind="step"),), "events": (3,), "status": (), "learning": (), "cost": (),
    "sql": ("select 1", 5), "restore_episode": ({"id": "e1"},), "restore_episodes": ([{"id": "e1"}],), "restore_adapters": ({"adapters": []},), "export": ("sft",), "backup": (),
    "keep_adapter": ("inbox@1",), "be_learner": (c.LearnerIn(worker="w", token="t"),), "claim_name": (c.NameClaimIn(),),
    "upload_state": ("a" * 64,), "adapter_file": ("inbox@1", "adapter_config.json"),
    "audit": (), "pause_training": ("why",), "resume_training": (), "annotate": ("new prompt", 5.0),
}  # fmt: skip


UPLOADS = {"upload_adapter", "upload_trial", "upload_part"}
"""What sends files, and not JSON."""


async def result(value: Any) -> Any:
    """What a method of either twin comes to; an iterator becomes a list."""
    if inspect.isawaitable(value):
        value = await value
    if inspect.isasyncgen(value):
        return [x async for x in value]
    return list(value) if inspect.isgenerator(value) else value


async def test_the_twins_ask_the_same_and_understand_the_same(server: Server) -> None:
    fill(server)
    server.on("GET", "/backup", b"tar")
    server.on("POST", "/learner", LEARNER)
    server.on("POST", "/adapters/claim", {"name": "inbox@2"})
    server.on("GET", f"/adapters/uploads/{'a' * 64}", {"bytes": 5})
    server.on("GET", "/adapters/inbox@1/files/adapter_config.json", b"{}")
    assert set(ASKS) | UPLOADS | {"ask", "close"} == set(public(Client))
    async with AsyncClient(server.url, "k") as twin:
        with Client(server.url, "k") as client:
            for name, args in ASKS.items():
                server.seen.clear()
                first = await result(getattr(client, name)(*args))
                second = await result(getattr(twin, name)(*args))
                assert first == second, name
                a, b = server.seen
                assert (a.method, a.path, a.query, a.body) == (b.method, b.path, b.query, b.body), name
                assert a.path.startswith("/slipstream/v1/")
                assert a.headers["authorization"] == b.headers["authorization"] == "Bearer k"
                if a.body:
                    assert a.headers["content-type"] == "application/json"
                    a.json


async def test_the_twins_send_the_same_files(server: Server, tmp_path: Path) -> None:
    fill(server)
    server.on("PUT", f"/adapters/uploads/{'a' * 64}", {"bytes": 5})
    (tmp_path / "adapter_config.json").write_text("{}")
    files = {"adapter_config.json": tmp_path / "adapter_config.json"}
    asks: dict[str, tuple[Any, ...]] = {
        "upload_adapter": (c.AdapterIn(path="inbox@1"), files),
        "upload_trial": (c.AdapterTrialIn(path=".tmp-a"), files),
        "upload_part": ("a" * 64, 0, b"bytes"),
    }
    async with AsyncClient(server.url, "k") as twin:
        with Client(server.url, "k") as client:
            for name, args in asks.items():
                server.seen.clear()
                assert await result(getattr(client, name)(*args)) == await result(getattr(twin, name)(*args)), name
                a, b = server.seen
                kinds = [seen.headers.get("content-type", "").partition("boundary=") for seen in (a, b)]
                bodies = [
                    seen.body.replace(kind[2].encode(), b"--") if kind[2] else seen.body
                    for seen, kind in zip((a, b), kinds, strict=True)
                ]
                assert (a.method, a.path, a.query, kinds[0][0]) == (b.method, b.path, b.query, kinds[1][0]), name
                assert bodies[0] == bodies[1] != b""


def test_what_comes_back(server: Server) -> None:
    fill(server)
    with Client(server.url) as client:
        assert client.episode("e1").adapter == "inbox@1"
        assert client.add_reward("e1", c.RewardIn(value=1)) == c.RewardAck(stored=True, known=False)
        assert client.delete("e1").adapters == ["inbox@1"]
        batch = client.lease_batch(c.BatchLeaseIn(worker="w"))
        assert isinstance(batch, LeasedBatch)
        assert (batch.id, batch.lease, batch.until) == ("b1", "l1", 9.5)
        assert batch.table.to_pydict() == {"call": ["c1"], "prompt_ids": [[1, 2]]}
        assert [e.id for e in client.events()] == [1, 2]
        assert client.cache_get("k1") == {"a": 1}
        assert b"".join(client.export("jsonl")) == b"one\ntwo\n"
    assert "authorization" not in server.seen[0].headers


def long_run(server: Server, calls: int, page: int) -> None:
    """An episode in deltas, so many calls a page."""

    def one(n: int) -> dict[str, Any]:
        prefix = {"call": f"c{n - 1}", "messages": 2 * n, "tokens": 0, "tools": True} if n else None
        return {
            "id": f"c{n}", "episode": "e1", "number": n, "at": 0.0, "seconds": 0.0, "dialect": "chat", "model": "m", "adapter": None,
            "status": 200, "outcome": "ok", "trainable": True, "messages": [f"m{n}"], "reply": [f"r{n}"], "prefix": prefix,
        }  # fmt: skip

    def answer(seen: Seen) -> Reply:
        assert seen.query["form"] == ["deltas"]
        first = int(seen.query["calls_from"][0])
        after = first + page if first + page < calls else None
        return Reply(
            {**EPISODE, "call_list": [one(n) for n in range(first, min(first + page, calls))], "next_call": after}
        )

    server.routes["GET", "/episodes/e1"] = answer


async def test_a_long_run_is_fetched_in_pages_and_comes_whole(server: Server) -> None:
    long_run(server, 5, 2)
    async with AsyncClient(server.url) as twin:
        with Client(server.url) as client:
            for found in (client.episode("e1"), await twin.episode("e1")):
                assert [len(call.messages) for call in found.call_list] == [1, 3, 5, 7, 9]
                assert found.call_list[-1].messages == ["m0", "r0", "m1", "r1", "m2", "r2", "m3", "r3", "m4"]
                assert found.next_call is None


def test_nothing_to_do_is_none(server: Server) -> None:
    server.on("POST", "/groups/lease", status=204)
    server.on("POST", "/batches/lease", status=204)
    with Client(server.url) as client:
        assert client.lease_groups(c.GroupLeaseIn(worker="w")) is None
        assert client.lease_batch(c.BatchLeaseIn(worker="w")) is None
        assert client.cache_get("unknown") is None


async def test_all_pages(server: Server) -> None:
    def page(seen: Seen) -> Reply:
        n = int(seen.query.get("cursor", ["0"])[0])
        return Reply({"episodes": [EPISODE | {"id": f"e{n}"}], "next": str(n + 1) if n < 2 else None})

    server.routes["GET", "/episodes"] = page
    with Client(server.url) as client:
        assert [e.id for e in client.all_episodes(task="t")] == ["e0", "e1", "e2"]
    async with AsyncClient(server.url) as twin:
        assert [e.id async for e in twin.all_episodes(task="t")] == ["e0", "e1", "e2"]
    assert all(s.query["task"] == ["t"] for s in server.seen)


def test_filters_and_ids_arrive_as_they_are(server: Server) -> None:
    fill(server)
    with Client(server.url) as client:
        client.episodes(task="a b", split=None, reward_min=0.0, tags={"user": "x&y"})
        assert server.seen[-1].query == {"task": ["a b"], "reward_min": ["0.0"], "tag.user": ["x&y"]}
        for odd in ("a/b", "a?b=c", "a#b", "ä"):
            with pytest.raises(ApiError):
                client.done(odd)
            seen = server.seen[-1]
            assert seen.query == {}
            assert seen.path.startswith("/slipstream/v1/episodes/")
            assert seen.path.endswith("/done")
            assert seen.path.count("/") == 5


def test_a_refusal_carries_field_and_fix(server: Server) -> None:
    detail = {"type": "invalid", "message": "value is no number", "field": "value", "fix": "send one"}
    server.on("POST", "/episodes/e1/rewards", {"error": detail}, 422)
    with Client(server.url) as client, pytest.raises(ApiError) as e:
        client.add_reward("e1", c.RewardIn(value=1))
    assert (e.value.status, str(e.value), e.value.field, e.value.fix) == (
        422,
        "value is no number",
        "value",
        "send one",
    )
    assert not isinstance(e.value, Unavailable)


@pytest.mark.parametrize("body", [b"<html>bad gateway", b'{"detail": "x"}', b"\xff\x00", b""])
def test_an_error_of_another_shape_still_says_something(server: Server, body: bytes) -> None:
    server.on("GET", "/status", body, 502)
    server.on("GET", "/export", body, 502)
    with Client(server.url) as client:
        with pytest.raises(ApiError, match="502 from http") as e:
            client.status()
        assert e.value.status == 502
        with pytest.raises(ApiError, match="502 from http"):
            list(client.export("sft"))


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b'{"new": 1}', b"\xff", b'{"groups": 3}'])
def test_an_answer_that_is_none_is_an_api_error(server: Server, body: bytes) -> None:
    server.on("GET", "/status", body)
    server.on("GET", "/groups/parked", body)
    server.on("GET", "/training/events", body or b"x")
    with Client(server.url) as client:
        for ask in (client.status, client.parked, client.events):
            with pytest.raises(ApiError, match="returned something that is not a valid"):
                ask()


@pytest.mark.parametrize("cut", [0, 4, 40, -20])
def test_a_broken_batch_is_worth_another_try(server: Server, cut: int) -> None:
    headers = {"x_slipstream_batch": "b1", "x_slipstream_lease": "l1", "x_slipstream_until": "9"}
    server.on("POST", "/batches/lease", arrow()[:cut], **headers)  # type: ignore[arg-type]
    with Client(server.url) as client, pytest.raises(Unavailable, match="broken batch"):
        client.lease_batch(c.BatchLeaseIn(worker="w"))


@pytest.mark.parametrize(
    "headers", [{}, {"x_slipstream_batch": "b1", "x_slipstream_lease": "l", "x_slipstream_until": "soon"}]
)
def test_a_batch_without_its_lease_is_broken_too(server: Server, headers: dict[str, str]) -> None:
    server.on("POST", "/batches/lease", arrow(), **headers)  # type: ignore[arg-type]
    with Client(server.url) as client, pytest.raises(Unavailable, match="broken batch"):
        client.lease_batch(c.BatchLeaseIn(worker="w"))


async def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url) as client, pytest.raises(Unavailable, match="does not answer"):
        client.status()
    with Client(url) as client, pytest.raises(Unavailable):
        list(client.export("sft"))
    async with AsyncClient(url) as twin:
        with pytest.raises(Unavailable, match="does not answer"):
            await twin.status()
        with pytest.raises(Unavailable):
            _ = [x async for x in twin.export("sft")]


async def test_a_connection_that_breaks_off(server: Server) -> None:
    server.routes["GET", "/status"] = Reply(b"{", truncated=True)
    server.routes["GET", "/export"] = Reply(b"half", truncated=True)
    with Client(server.url) as client:
        with pytest.raises(Unavailable):
            client.status()
        with pytest.raises(Unavailable, match="was lost"):
            list(client.export("sft"))
    async with AsyncClient(server.url) as twin:
        with pytest.raises(Unavailable):
            await twin.status()
        with pytest.raises(Unavailable, match="was lost"):
            _ = [x async for x in twin.export("sft")]


@pytest.mark.parametrize(
    ("given", "env", "url"),
    [
        (None, {}, "http://127.0.0.1:8100"),
        ("http://h:1/v1/", {"SLIPSTREAM_URL": "http://no"}, "http://h:1"),
        (None, {"SLIPSTREAM_URL": "http://a", "OPENAI_BASE_URL": "http://b/v1"}, "http://a"),
        (None, {"OPENAI_BASE_URL": "http://b/v1"}, "http://b"),
    ],
)
def test_the_address(monkeypatch: pytest.MonkeyPatch, given: str | None, env: dict[str, str], url: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with Client(given) as client:
        assert client.url == url


def test_the_key_by_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server)
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "sk-1\n")
    with Client(server.url) as client:
        client.status()
    assert server.seen[-1].headers["authorization"] == "Bearer sk-1"


def test_what_is_no_address() -> None:
    with pytest.raises(ConfigError, match="is no URL"):
        Client("http://h:port")
    with Client("localhost:1") as client, pytest.raises(Unavailable):
        client.status()


def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(server)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with Client(server.url, timeout=httpx.Timeout(30)) as client:
        assert client.status().version == "1"


@pytest.mark.parametrize(
    ("given", "meant"),
    [("gpu-box:8100", "http://gpu-box:8100"), ("h:1/v1/", "http://h:1"), ("https://h/v1", "https://h")],
)
def test_an_address_needs_no_scheme(given: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, made = [], httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **kw: checked.append(kw["verify"]) or made(**kw))
    with Client(given) as client:
        assert client.url == meant
    (trusted,) = checked
    if meant.startswith("https:"):  # those that SSL_CERT_FILE names
        assert len(trusted.get_ca_certs()) == 1
    else:
        assert trusted is False  # none are read, which takes 26 ms
