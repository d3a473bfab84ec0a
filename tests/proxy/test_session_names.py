"""Names that may stand for many runs: a hash of content, or a tenant's id."""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataplane import ASK, post

from slipstream.settings import IdentityConfig
from slipstream_proxy.data.episode import split_names
from slipstream_proxy.data.episode.memory import EpisodeMemory
from slipstream_proxy.data.episode.shared_table import SharedTable
from slipstream_proxy.data.episode.split_names import DIGEST_BYTES, SplitNames
from slipstream_proxy.data.wire.identity import SessionNames, Tags, name_session
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import dumps

SESSIONS = SessionNames(IdentityConfig().headers, [*IdentityConfig().fields, "user"])
CONVERSATION = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
PCK = "pck_5f2d8c1a9b3e47d0a6c4e812"
TENANT = str(uuid.UUID("f47ac10b-58cc-4372-a567-0e02b2c3d479"))
HASHES = {
    "Hermes' hash of prompt and tools": {"prompt_cache_key": PCK},
    "a tenant's id": {"prompt_cache_key": TENANT},
    "a SHA-256": {"prompt_cache_key": hashlib.sha256(b"the prompt").hexdigest()},
    "a UUID that is made of a name": {"session_id": str(uuid.uuid5(uuid.NAMESPACE_URL, "acme"))},
    "a hash as a session": {"metadata": {"session_id": hashlib.sha1(b"prompt").hexdigest()}},  # noqa: S324
    "a user": {"user": "customer-7"},
    "a short hash": {"session_id": "agent-" + hashlib.sha256(b"prompt").hexdigest()[:8]},
    "a hash in Base64": {"session_id": base64.b64encode(hashlib.sha256(b"prompt").digest()).decode()},
    "a hash in Base64 for addresses": {
        "session_id": base64.urlsafe_b64encode(hashlib.md5(b"p").digest()).decode()[:22]
    },  # noqa: S324
    "a hash as a number": {"session_id": str(int(hashlib.sha256(b"prompt").hexdigest()[:16], 16))},
    "a tenant's name": {"session_id": "acme-corp"},
    "a tenant's number": {"metadata": {"session_id": "tenant_42"}},
    "a word for all": {"conversation": "default"},
}
RANDOM = (
    CONVERSATION,
    f"run-{CONVERSATION}",
    CONVERSATION.replace("-", ""),
    "01J9ZQ4X8E7W6V5T4S3R2Q1P0N",
    "conv_5x8Kq2Lw9Zp4Rt7Yv1Bn3Mc6",
)
ASKED = ("Where is my parcel?", "Cancel my order.", "Which size fits?")
CHAT = BY_NAME["chat"]


def say(role: str, text: str) -> dict:
    return {"role": role, "content": text}


def body(*messages: dict, system: str = "You help.", tool: str = "look", **more) -> dict:
    tools = [{"type": "function", "function": {"name": tool, "parameters": {}}}]
    return {"model": "m", "tools": tools, "messages": [say("system", system), *messages], **more}


class Worker:
    def __init__(self, memory: EpisodeMemory) -> None:
        self.memory, self.split = memory, 0

    def ask(self, asked: dict, said: str | dict | None = "", *, kind: str = "") -> str:
        """→ The episode. ``said``: what is answered."""
        tags, turn = Tags(), CHAT.turn(asked)
        tags.kind = kind
        name_session(tags, SESSIONS.in_body(asked))
        episode = self.memory.of("-", tags, turn if tags.doubtful or tags.episode is None else None, asked)
        self.split += self.memory.take_split() is not None
        if said is not None and (tags.doubtful or tags.session is None):
            message = said if isinstance(said, dict) else say("assistant", said or f"I answer {len(asked['messages'])}")
            answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            self.memory.remember(episode, turn, CHAT.said(dumps(answer), stream=False))
        return episode.id


@pytest.fixture(params=["one worker", "two workers"])
def workers(request, tmp_path) -> list[Worker]:
    if request.param == "one worker":
        return [Worker(EpisodeMemory())] * 2
    return [Worker(EpisodeMemory(shared=SharedTable(tmp_path / "table", 60.0))) for _ in range(2)]


@pytest.mark.parametrize("name", HASHES.values(), ids=HASHES)
def test_each_users_conversation_is_an_episode_of_its_own(workers, name):
    runs = {}
    for n, text in enumerate(ASKED):
        runs[text] = workers[n % 2].ask(body(say("user", text), **name), f"An answer to: {text}")
    assert len(set(runs.values())) == 3
    for turn in range(2):  # and each goes on by itself, in any order
        for n, text in enumerate(reversed(ASKED)):
            history = [say("user", text), say("assistant", f"An answer to: {text}"), say("user", f"more {text} {turn}")]
            if turn:
                history[2:2] = [say("user", f"more {text} 0"), say("assistant", f"more about {text}")]
            found = workers[n % 2].ask(body(*history, **name), f"more about {text}")
            assert found == runs[text]
    assert sum(w.split for w in {id(w): w for w in workers}.values()) == 1, "said once"


def test_the_same_task_run_three_times_under_a_hash_is_three_runs(workers):
    asked = body(say("user", "Solve the maze."), prompt_cache_key=PCK)
    assert len({workers[n % 2].ask(asked, None) for n in range(3)}) == 3, "all of them are under way at once"


ORDER = "Find all callers of the function parse in the folder src and list them with their line numbers"


def test_a_conversations_id_stays_one_episode(workers):
    """With its turns, sub-agents of any kind, a title, and what its client says is another kind of call."""
    me, name = workers[0], {"prompt_cache_key": CONVERSATION}
    first = say("user", "Rename parse to read.")
    call = {"name": "agent", "arguments": '{"prompt": "%s"}' % ORDER}
    asked = {**say("assistant", ""), "tool_calls": [{"id": "call_a8f20b11", "type": "function", "function": call}]}
    assert me.ask(body(first, **name), asked) == CONVERSATION
    # its sub-agent: told just what the call says, with the same tools and prompt or with others; or not told by a call
    assert workers[1].ask(body(say("user", ORDER), **name)) == CONVERSATION
    assert (
        me.ask(body(say("user", "Plan the steps."), system="You are a planner.", tool="plan", **name)) == CONVERSATION
    )
    assert me.ask(body(say("user", "Plan others."), system="You are a planner.", tool="plan", **name)) == CONVERSATION
    assert me.ask(body(say("user", "Another order."), **name), kind="subagent") == CONVERSATION
    title = {"model": "m", "messages": [say("system", "Generate a title for this conversation."), first], **name}
    assert me.ask(title, "Renaming") == CONVERSATION
    result = {"role": "tool", "tool_call_id": "call_a8f20b11", "content": "three callers"}
    assert me.ask(body(first, asked, result, **name), "I have renamed it.") == CONVERSATION
    # what was said before is rewritten, or was said to a proxy that has forgotten it
    assert me.ask(body(say("user", "Earlier."), say("assistant", "x"), say("user", "go on"), **name)) == CONVERSATION
    assert not any(w.split for w in workers)


@pytest.mark.parametrize("ident", RANDOM)
def test_a_session_that_an_agent_names_as_such_is_trusted(workers, ident):
    name: Any = {"metadata": {"session_id": ident}}
    assert {workers[0].ask(body(say("user", text), **name)) for text in ASKED} == {ident}


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_runs_under_one_name_never_mix(steps):
    """Users in any order, each going on or beginning anew: no two of their conversations share an episode."""
    worker, histories, episodes, count = Worker(EpisodeMemory()), {}, {}, 0
    for user, anew in steps:
        if anew or user not in histories:
            count += 1
            histories[user] = [say("user", f"Task {count} of user {user}")]
            episodes[user] = None
        else:
            histories[user] = [*histories[user], say("user", "And then?")]
        answer = f"The answer {len(histories[user])} in conversation {count} of user {user}: {'word ' * 30}"
        found = worker.ask(body(*histories[user], prompt_cache_key=PCK), answer)
        assert episodes[user] in (None, found)
        assert found not in {e for u, e in episodes.items() if u != user}
        episodes[user] = found
        histories[user] = [*histories[user], say("assistant", answer)]


@pytest.mark.parametrize("several", [False, True])
def test_a_name_of_many_runs_is_known_after_a_restart(tmp_path, several):
    """Else the next user's conversation would be the run of that name, which another user began."""

    def workers() -> list[Worker]:
        shared = SharedTable(tmp_path / "table", 60.0) if several else None
        return [Worker(EpisodeMemory(shared=shared, split_names=SplitNames(tmp_path / "names"))) for _ in range(2)]

    before = workers()
    first, second = (before[0].ask(body(say("user", text), prompt_cache_key=PCK)) for text in ASKED[:2])
    assert first != second
    assert before[1].ask(body(say("user", ASKED[2]), prompt_cache_key=PCK)) not in (first, second), "and by the others"
    (tmp_path / "table").unlink(missing_ok=True)
    after = workers()
    found = [after[n % 2].ask(body(say("user", text), prompt_cache_key=PCK)) for n, text in enumerate(ASKED)]
    assert len({first, second, *found}) == 5
    assert sum(w.split for w in after) == 0, "it was said before"
    assert after[0].ask(body(say("user", ASKED[0]), prompt_cache_key="pck_00112233445566778899aabb")).startswith("pck_")
    held = (tmp_path / "names").read_bytes()
    assert len(held) == DIGEST_BYTES and PCK.encode() not in held


def test_names_of_many_runs_have_a_limit_and_survive_a_broken_end(tmp_path, monkeypatch):
    monkeypatch.setattr(split_names, "MAX_NAMES", 8)
    names = SplitNames(tmp_path / "names")
    for n in range(20):
        names.add("-", f"name-{n}")
        names.add("-", f"name-{n}")
    with (tmp_path / "names").open("ab") as file:
        file.write(b"half")
    again = SplitNames(tmp_path / "names")
    assert [again.has("-", f"name-{n}") for n in range(20)] == [False] * 16 + [True] * 4
    assert not again.has("other key", "name-19")
    again.add("-", "one more")
    assert names.has("-", "one more") and SplitNames(tmp_path / "names").has("-", "one more")


def test_a_full_disk_costs_no_call(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    names = SplitNames(tmp_path / "file" / "names")
    names.add("-", "a")
    assert names.has("-", "a") and "forgotten at a restart" in caplog.text


async def test_it_is_said_once_and_in_the_replies(start, fake):
    proxy = await start()
    found = [await post(proxy.url, {**body(say("user", t)), "model": "tiny", "prompt_cache_key": PCK}) for t in ASKED]
    assert len({headers["x-slipstream-episode"] for _, headers, _ in found}) == 3
    again = await post(proxy.url, ASK, headers={"x-session-id": "s"})
    assert again[1]["x-slipstream-episode"] == "s"
    assert proxy.plane.metrics.values["slipstream_split_session_names_total", 'field="prompt_cache_key"'] == 1
