from __future__ import annotations

import asyncio
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dataplane import ASK, post, read_request
from tests.support.dialects import CHAT, reply, turn, user
from tests.support.fake_engine import dump, sse

from slipstream.contract import PLAIN_ID_PATTERN, name_of
from slipstream.settings import IdentityConfig
from slipstream_chat.report import Report
from slipstream_imports.records import LogRun, said
from slipstream_proxy.data.episode.memory import EpisodeMemory
from slipstream_proxy.data.episode.shared_table import SharedTable
from slipstream_proxy.data.wire.identity import Prefix, SessionNames, Tags, hint_kind, read_tags, split_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", Prefix("/v1/chat/completions")),
        ("/e/a/v1/x", Prefix("/v1/x", "a")),
        ("/t/q/e/a/v1/x?y=1", Prefix("/v1/x?y=1", "a", "q")),
        ("/t/q/v1/x", Prefix("/v1/x", None, "q")),
        ("/e//v1/x", Prefix("/v1/x", "")),
        ("/e/a", Prefix("/e/a")),
    ],
)
def test_path(path, expected):
    assert split_path(path) == expected


@pytest.mark.parametrize(
    ("value", "kept"),
    [("a\nb", "a b"), ("a\r\nb", "a  b"), ("\x1b[31m", "\ufffd[31m"), ("\x9b31m", "\ufffd31m"), ("a\u2028b", "a b")]
    + [(bad, "\ufffd") for bad in ("\0", "\x7f", "\u202e", "\u2066")],
)
def test_a_stored_tag_ends_no_line_and_steers_no_terminal(value, kept):
    for headers, body in (
        ({b"x-slipstream-tag-a": value.encode()}, None),
        ({}, {"metadata": {"slipstream_tag_a": value}}),
    ):
        assert read_tags(headers, Prefix("/"), None, body).tags == {"a": kept}


def test_tags_in_other_scripts():
    for value in ("café", "テスト", "👩‍💻", 'say "x" \\ {y}', "“quoted”", "a\xa0b"):
        assert read_tags({b"x-slipstream-tag-a": value.encode()}, Prefix("/"), None, None).tags == {"a": value}
        assert read_tags({}, Prefix("/"), None, {"metadata": {"slipstream_tag_a": value}}).tags == {"a": value}
    assert read_tags({b"x-slipstream-tag-a": b"caf\xe9"}, Prefix("/"), None, None).tags == {"a": "café"}


def test_order_of_sources():
    prefix = Prefix("/v1/x", "p", "pt")
    body = {"metadata": {"slipstream_episode": "m", "slipstream_task": "mt", "slipstream_tag_a": "b", "mine": 1}}
    trace = {b"traceparent": b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"}
    tags = read_tags({b"x-slipstream-episode": b"h"}, prefix, "kt:k", body)
    assert (tags.episode, tags.origin, tags.task, tags.tags) == ("h", "header", "pt", {"a": "b"}) and body == {
        "metadata": {"mine": 1}
    }
    assert read_tags({}, prefix, "kt:k", None).origin == "path"
    found = read_tags({}, Prefix("/"), "kt:k", {"metadata": {"slipstream_episode": "m"}})
    assert (found.episode, found.task, found.origin) == ("k", "kt", "key")
    body = {"metadata": {"slipstream_episode": "m", "slipstream_split": "eval", "slipstream_done": True}}
    found = read_tags(trace, Prefix("/"), None, body, traceparent=True)
    assert (found.episode, found.split, found.done, found.origin) == ("m", "eval", True, "metadata") and body == {}
    assert read_tags(trace, Prefix("/"), None, None).episode is None
    assert read_tags(trace, Prefix("/"), None, None, traceparent=True).episode == "a" * 32


TEXT = "Book a flight to Oslo"
NAME = name_of(TEXT)


@pytest.mark.parametrize(
    ("headers", "prefix", "suffix", "body"),
    [
        ({b"x-slipstream-task": TEXT.encode()}, Prefix("/"), None, None),
        ({}, split_path("/t/Book%20a%20flight%20to%20Oslo/e/e1/v1/x"), None, None),
        ({}, Prefix("/"), f"{TEXT}:e1", None),
        ({}, Prefix("/"), None, {"metadata": {"slipstream_task": TEXT}}),
    ],
)
def test_any_text_is_a_task_whichever_way_it_is_given(headers, prefix, suffix, body):
    found = read_tags(headers, prefix, suffix, body)
    assert found.task == NAME and found.tags == {"task-text": TEXT} and PLAIN_ID_PATTERN.match(NAME)


def test_the_rule_is_the_one_of_import():
    run = LogRun("f:1", TEXT, TEXT, talks=[said([{"role": "assistant", "content": "x"}])])
    assert [run.bodies(None, Report())[0][name] for name in ("id", "task")] == [NAME, NAME]
    assert name_of("inv-17") == "inv-17" and name_of(TEXT) != name_of(TEXT + "!")


@pytest.mark.parametrize(
    ("raw", "text"), [("Zürich".encode(), "Zürich"), ("Zürich".encode("latin-1"), "Zürich"), ("東京".encode(), "東京")]
)
def test_header_bytes_are_utf_8_or_latin_1(raw, text):
    found = read_tags({b"x-slipstream-task": raw, b"x-slipstream-tag-city": raw}, Prefix("/"), None, None)
    assert found.tags == {"task-text": text, "city": text} and found.task == name_of(text)


def test_what_is_no_split_is_not_trained_on():
    found = read_tags({b"x-slipstream-split": b"test"}, Prefix("/"), None, None)
    assert (found.split, found.tags) == ("eval", {"split-text": "test"})
    assert not read_tags({b"x-slipstream-done": b"maybe"}, Prefix("/"), None, None).done


@pytest.mark.parametrize(
    ("text", "captured"), [("off", False), ("OFF", False), ("perhaps", False), ("on", True), ("true", True), ("", None)]
)
def test_what_is_no_yes_to_capture_is_not_recorded(text, captured):
    assert read_tags({b"x-slipstream-capture": text.encode()}, Prefix("/"), None, None).captured is captured
    body = {"metadata": {"slipstream_capture": text}}
    assert read_tags({}, Prefix("/"), None, body).captured is captured and "metadata" not in body
    assert (
        read_tags(
            {b"x-slipstream-capture": b"off"}, Prefix("/"), None, body | {"metadata": {"slipstream_capture": True}}
        ).captured
        is False
    )


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({b"x-openai-subagent": b"compact"}, "compaction"),
        ({b"x-openai-subagent": b"review"}, "subagent"),
        ({b"x-claude-code-agent-id": b"a1"}, "subagent"),
        ({b"x-parent-session-id": b"ses_1"}, "subagent"),
        ({b"x-openai-subagent": b"review", b"x-slipstream-kind": b"my planner"}, name_of("my planner")),
        ({}, ""),
    ],
)
def test_a_client_says_what_a_call_is(headers, kind):
    found = read_tags(headers, Prefix("/"), None, None)
    hint_kind(found, headers)
    assert found.kind == kind
    assert read_tags({}, Prefix("/"), None, {"metadata": {"slipstream_kind": "title"}}).kind == "title"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda of: st.lists(of) | st.dictionaries(st.text(), of),
    max_leaves=5,
)
OURS = st.sampled_from(["episode", "task", "split", "capture", "kind", "done", "tag-a", "tag-\xff ", "tag-", "other"])


@settings(max_examples=250)
@given(
    st.dictionaries(OURS, st.binary(max_size=300), max_size=6),
    st.text(max_size=30),
    st.none() | st.text(max_size=300),
    st.none() | st.text(max_size=300),
    st.dictionaries(st.text() | OURS.map(lambda n: "slipstream_" + n.replace("-", "_")), JSON, max_size=6),
)
def test_no_tag_fails_a_call(headers, path, suffix, task, metadata):
    named = {b"x-slipstream-" + name.encode("latin-1"): value for name, value in headers.items()}
    body = {"metadata": dict(metadata)}
    found = read_tags(named, split_path(f"/t/{path}/e/{path}/v1"), suffix, body)
    read_tags({}, Prefix("/", task, task), None, None)
    for name in (found.episode, found.task, *found.tags):
        assert name is None or PLAIN_ID_PATTERN.match(name)
    assert found.split in (None, "train", "eval", "off") and len(found.tags) <= 32
    assert all(
        len(v) <= 2048 and all(c.isprintable() or c.isspace() or c == "\u200b" or ord(c) > 159 for c in v)
        for v in found.tags.values()
    )
    assert all(v.encode().splitlines() in ([v.encode()], []) for v in found.tags.values())
    assert not [name for name in body.get("metadata", {}) if name.startswith("slipstream_")]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_call_with_any_text_is_answered_and_recorded(start, fake, path):
    proxy = await start()
    body = {**ASK, "max_tokens": 5, "metadata": {"slipstream_tag_mood": "très\0bien\ud800"}}
    headers = {"x-slipstream-task": TEXT, "x-slipstream-episode": "run #1", "x-slipstream-tag-why": "a, b"}
    status, got, _ = await post(proxy.url, json.dumps(body).encode(), path=path, headers=headers)
    (frame,) = await proxy.record(1)
    assert status == 200 and got["x-slipstream-episode"] == frame.head["episode"] == name_of("run #1")
    assert frame.head["task"] == NAME and frame.head["tags"] == {
        "task-text": TEXT,
        "episode-text": "run #1",
        "why": "a, b",
        "mood": "très\ufffdbien\ufffd",
    }


def test_parallel_runs_of_one_prompt_stay_apart():
    episodes = EpisodeMemory()
    runs = [episodes.of("-", Tags(), turn(user("go"))) for _ in range(8)]
    assert len({e.id for e in runs}) == 8
    for i, episode in enumerate(runs):
        episodes.remember(episode, turn(user("go")), reply(f"answer {i % 4}"))  # some say the same
    found = [
        episodes.of(
            "-",
            Tags(),
            turn(
                user("go"), {"role": "assistant", "content": [{"type": "text", "text": f"answer {i % 4}"}]}, user("on")
            ),
        )
        for i in range(8)
    ]
    assert {e.id for e in found} == {e.id for e in runs}
    assert all(int(e is runs[i]) or found[i].id in {runs[i].id, runs[(i + 4) % 8].id} for i, e in enumerate(found))


def test_tool_call_ids_continue_and_ambiguous_ones_do_not():
    episodes = EpisodeMemory()
    one, two = (episodes.of("-", Tags(), turn(user(t))) for t in "ab")
    episodes.remember(one, turn(user("a")), reply(None, ["call_x7f2a9c1b", "0"]))
    episodes.remember(two, turn(user("b")), reply(None, ["call_y3d8e5f0a", "0"]))
    # the client rewrote its history: only the tool's id says whose it is
    back = turn(
        user("compacted"),
        {"role": "assistant", "tool_calls": [{"id": "call_y3d8e5f0a"}]},
        {"role": "tool", "tool_call_id": "call_y3d8e5f0a", "content": "r"},
    )
    assert episodes.of("-", Tags(), back) is two
    back = turn(
        user("other"),
        {"role": "assistant", "tool_calls": [{"id": "0"}]},
        {"role": "tool", "tool_call_id": "0", "content": "r"},
    )
    assert episodes.of("-", Tags(), back) not in (one, two)
    assert (
        episodes.of(
            "other-key", Tags(), turn(user("a"), {"role": "tool", "tool_call_id": "call_x7f2a9c1b", "content": ""})
        )
        is not one
    )


def test_reworded_arguments_and_empty_content_still_match():
    episodes = EpisodeMemory()
    one = episodes.of("-", Tags(), turn(user("a")))
    episodes.remember(one, turn(user("a")), reply(None, ["z"]))
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "w", "function": {"name": "f", "arguments": '{"a":1}'}}],
    }
    assert episodes.of("-", Tags(), turn(user("a"), said, user("go on"))) is one


def test_untagged_runs_of_smolagents_stay_one_episode_each():
    """Its ToolCallingAgent sends a call back as text in a part, and the result as a user's message without an id (1.26)."""
    episodes = EpisodeMemory()
    task = user([{"type": "text", "text": "New task:\n2+3?"}])
    runs = [episodes.of("-", Tags(), turn(task)) for _ in range(8)]
    seen: list[list] = []
    for i, episode in enumerate(runs):
        call_id = f"chatcmpl-tool-{i:032x}"
        episodes.remember(episode, turn(task), reply(None, [call_id]))
        call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
        told = {"role": "assistant", "content": [{"type": "text", "text": f"Calling tools:\n[{call!r}]"}]}
        seen.append([task, told, user([{"type": "text", "text": "Observation:\n5"}])])
    assert [episodes.of("-", Tags(), turn(*messages)) for messages in reversed(seen)] == runs[::-1]
    # what stands in a user's text is no call of this agent's
    quoting = [task, {"role": "assistant", "content": "hm"}, user(f"chatcmpl-tool-{3:032x} failed, why?")]
    assert episodes.of("-", Tags(), turn(*quoting)) not in runs


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_may_put_the_stop_string_back(stream):
    """smolagents' CodeAgent asks with the stop string ``</code>``, and ends the reply's text with it in its history (1.26)."""
    episodes = EpisodeMemory()
    task = user("sum the numbers")
    one = episodes.of("-", Tags(), turn(task))
    said = {"role": "assistant", "content": "<code>sum(x)"}
    choice = {"index": 0, "finish_reason": "stop", "stop_reason": "</code>"}
    whole = dump({"choices": [{**choice, "message": said}]}).encode()
    events = sse({"choices": [{"index": 0, "delta": said}]}) + sse({"choices": [{**choice, "delta": {}}]})
    episodes.remember(one, turn(task), CHAT.said(events if stream else whole, stream=stream))
    for text in ("<code>sum(x)", "<code>sum(x)</code>"):
        assert episodes.of("-", Tags(), turn(task, {"role": "assistant", "content": text}, user("6"))) is one
    assert episodes.of("-", Tags(), turn(task, {"role": "assistant", "content": "<code>sum(y)"}, user("6"))) is not one


def test_done_starts_the_next_generation():
    episodes = EpisodeMemory()
    first = episodes.of("-", Tags(episode="e", task="t"), None)
    first.done = True
    second = episodes.of("-", Tags(episode="e"), None)
    assert (first.id, second.id, second.task) == ("e", "e~2", None)
    episodes.finish("-", "e~2")
    assert episodes.of("-", Tags(episode="e"), None).id == "e~3"
    assert episodes.of("k2", Tags(episode="e"), None).id == "e"


@pytest.mark.parametrize(
    ("header", "metadata", "done"), [("false", True, False), ("true", False, True), (None, True, True)]
)
def test_a_header_says_whether_it_is_done_before_metadata_does(header, metadata, done):
    headers = {} if header is None else {b"x-slipstream-done": header.encode()}
    body = {"metadata": {"slipstream_done": metadata, "k": "v"}}
    assert read_tags(headers, Prefix(""), None, body).done is done and body == {"metadata": {"k": "v"}}


async def test_tags_reach_the_record(start, fake):
    proxy = await start()
    await post(proxy.url, ASK, path="/t/q1/e/run-7/v1/chat/completions")
    await post(proxy.url, ASK, headers={"authorization": "Bearer EMPTY:q2:run-8"})
    await post(proxy.url, {**ASK, "metadata": {"slipstream_episode": "run-9"}})
    frames = await proxy.record(3)
    assert [(f.head["episode"], f.head["task"], f.head["origin"]) for f in frames] == [
        ("run-7", "q1", "path"),
        ("run-8", "q2", "key"),
        ("run-9", None, "metadata"),
    ]
    assert "metadata" not in fake.seen[-1][0]


async def test_done_header(start, fake):
    proxy = await start()
    ids = []
    for done in ("false", "true", "false"):
        _, headers, _ = await post(proxy.url, ASK, headers={"x-slipstream-episode": "e", "x-slipstream-done": done})
        ids.append(headers["x-slipstream-episode"])
    assert ids == ["e", "e", "e~2"]


@pytest.mark.parametrize("stream", [False, True])
async def test_untagged_conversations(start, fake, stream):
    proxy = await start()
    runs = await asyncio.gather(*(post(proxy.url, {**ASK, "stream": stream}) for _ in range(8)))
    first = [r[1]["x-slipstream-episode"] for r in runs]
    assert len(set(first)) == 8
    text = 'Hello world "]},"finish_reason": ünï ✓ 1'
    if stream:
        text = text.replace(" wor", "")
    more = {
        **ASK,
        "stream": stream,
        "messages": [*ASK["messages"], {"role": "assistant", "content": text}, user("more")],
    }
    runs = await asyncio.gather(*(post(proxy.url, more) for _ in range(8)))
    assert {r[1]["x-slipstream-episode"] for r in runs} == set(first)
    assert [f.head["origin"] for f in await proxy.record(16)] == ["new"] * 8 + ["continued"] * 8


async def test_an_untagged_call_that_is_sent_again_stays_in_its_episode(start, fake):
    proxy = await start()
    fake.fail_with = 503
    runs = await asyncio.gather(*(post(proxy.url, ASK) for _ in range(4)))
    first = [r[1]["x-slipstream-episode"] for r in runs]
    fake.fail_with = None
    again = {"x-stainless-retry-count": "1"}
    runs = await asyncio.gather(*(post(proxy.url, ASK, headers=again) for _ in range(4)))
    assert sorted(r[1]["x-slipstream-episode"] for r in runs) == sorted(first) and len(set(first)) == 4
    others = [
        await post(proxy.url, ASK),
        await post(proxy.url, ASK, headers=again),  # nothing has failed that this one could repeat
        await post(proxy.url, {**ASK, "seed": 1}, headers=again),
    ]
    assert not {r[1]["x-slipstream-episode"] for r in others} & set(first)


def test_a_failed_call_of_another_key_or_a_done_episode_is_not_continued():
    episodes = EpisodeMemory()
    one, two = (episodes.of("-", Tags(), turn(user(t))) for t in "ab")
    episodes.failed("-", b"h", one)
    assert episodes.again("k2", b"h") is None and episodes.again("-", b"other") is None
    episodes.failed("-", b"h", two)
    one.done = True
    assert episodes.again("-", b"h") == two.name[1] and episodes.again("-", b"h") is None


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_after_an_earlier_one_continues_its_episode(start, serve, stream):
    """And so goes to the engine that has the earlier one."""
    count = iter(range(100))

    async def engine(reader, writer):
        while True:
            await read_request(reader)
            made = json.dumps({"id": f"resp_{next(count)}", "status": "completed", "output": []}).encode()
            if stream:
                kind = b"response.completed"
                made = b'event: %b\ndata: {"type":"%b","response":%b}\n\n' % (kind, kind, made)
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
                % (b"text/event-stream" if stream else b"application/json", len(made), made)
            )

    proxy = await start(engine={"urls": [await serve(engine)]})

    async def respond(**more):
        _, headers, body = await post(proxy.url, {"input": "x", "store": True, **more}, path="/v1/responses")
        return headers["x-slipstream-episode"], re.search(rb"resp_\d+", body)[0].decode()

    episode, before = await respond()
    same, before = await respond(previous_response_id=before)
    assert same == episode == (await respond(previous_response_id=before))[0]
    assert (await respond())[0] != episode != (await respond(previous_response_id="resp_x"))[0]


UUID = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
SESSIONS = SessionNames(IdentityConfig().headers, IdentityConfig().fields)


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({b"x-claude-code-session-id": UUID.encode(), b"x-session-id": b"other"}, {}, UUID),
        ({b"session-id": UUID.encode(), b"thread-id": b"t"}, {}, UUID),  # a sub-agent of Codex has its own thread
        ({b"x-session-id": b"run 7"}, {"session_id": "b"}, "run 7"),
        ({b"x-session-affinity": b"ses_5f0a7c1d2ffeA1b2C3d4E5f6G7"}, {}, "ses_5f0a7c1d2ffeA1b2C3d4E5f6G7"),
        ({b"x-session-affinity": b"node-3"}, {}, None),
        ({}, {"prompt_cache_key": UUID}, UUID),
        ({}, {"prompt_cache_key": "my-support-agent-v2"}, None),  # of all runs of an application
        ({}, {"prompt_cache_key": "support", "metadata": {"session_id": "s"}}, "s"),
        ({}, {"metadata": {"user_id": json.dumps({"device_id": "d", "account_uuid": "", "session_id": UUID})}}, UUID),
        ({}, {"metadata": {"user_id": f"user_0a1b_account__session_{UUID}"}}, UUID),
        ({}, {"metadata": {"user_id": "ann@example.com"}, "user": "ann@example.com"}, None),  # a person, and no run
        ({}, {"metadata": {"user_id": '{"session_id": 3'}}, None),
        ({}, {"metadata": "m", "conversation": {"id": "conv_1"}}, "conv_1"),
        ({}, {"conversation": "conv_1"}, "conv_1"),
        ({}, {"session_id": 7, "metadata": {"session_id": ["s"]}, "conversation": {"id": None}}, None),
    ],
)
def test_sessions_that_agents_name_anyway(headers, body, expected):
    found = SESSIONS.in_headers(headers) or SESSIONS.in_body(body)
    assert (found and found.text) == expected


def test_only_what_the_settings_name_is_a_session():
    mine = SessionNames(["X-My-Run"], ["user"])
    assert mine.in_headers({b"x-my-run": b"1", b"x-session-id": b"2"}).text == "1"
    assert mine.in_body({"user": "u", "session_id": "s"}).text == "u"


async def test_a_session_is_an_episode_unless_a_tag_names_one(start, fake):
    proxy, named = await start(), f"s {UUID}"

    async def episode(text, **more):
        headers = {"x-session-id": named} | more.pop("headers", {})
        _, found, _ = await post(proxy.url, {**ASK, "messages": [user(text)], **more}, headers=headers)
        return found["x-slipstream-episode"]

    name = name_of(named)
    # a compacted history begins anew, and stays in its session; and so do titles and sub-agents
    assert [await episode("a"), await episode("the summary of a"), await episode("b", metadata={"k": "v"})] == [
        name
    ] * 3
    assert await episode("a", headers={"x-slipstream-episode": "e"}) == "e"
    assert await episode("a", metadata={"slipstream_episode": "m"}) == "m"
    assert await episode("a", headers={"x-session-id": "s2"}) == "s2"
    assert fake.seen[2][0]["metadata"] == {"k": "v"} and fake.seen[0][1]["x-session-id"] == named
    plain = [await post(proxy.url, {**ASK, "session_id": s}) for s in ("x", "y", "x")]
    assert [h["x-slipstream-episode"] for _, h, _ in plain] == ["x", "y", "x"]


def test_each_worker_knows_which_episodes_have_begun(tmp_path):
    mine, other = (EpisodeMemory(shared=SharedTable(tmp_path / "table", 60.0)) for _ in range(2))
    alone = EpisodeMemory()
    for memory in (mine, alone):
        assert not memory.has_begun("-", "e")
        memory.of("-", Tags(episode="e"), None)
        assert memory.has_begun("-", "e")
    assert other.has_begun("-", "e")
    assert not other.has_begun("k", "e") and not other.has_begun("-", "e~2")
    mine.finish("-", "e")
    assert mine.of("-", Tags(episode="e"), None).id == "e~2"
    assert other.has_begun("-", "e~2") and mine.has_begun("-", "e~2")


@pytest.mark.parametrize("shared", [False, True])
def test_a_run_whose_history_was_rewritten_goes_on_by_its_last_reply(shared, tmp_path):
    episodes = EpisodeMemory(shared=SharedTable(tmp_path / "table", 60.0) if shared else None)
    said, short = (
        "I changed the file main.py as you asked, and now all of the tests in the folder are green. " * 2,
        "OK.",
    )
    one, two = (episodes.of("-", Tags(), turn(user(t))) for t in ("files of 1", "files of 2"))
    episodes.remember(one, turn(user("files of 1")), reply(said))
    episodes.remember(two, turn(user("files of 2")), reply(short))

    def goes_on(text):
        return episodes.of("-", Tags(), turn(user("other files"), {"role": "assistant", "content": text}, user("and?")))

    assert goes_on(said) is one
    assert goes_on(short) not in (one, two)  # too many say so
    episodes.remember(two, turn(user("files of 2")), reply(said))
    assert goes_on(said) not in (one, two)  # nobody knows which


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("ident", ["call_0", "functions.look:0", "toolcall1", "00000001", "call_1234567890"])
def test_an_id_that_a_counter_gave_takes_no_foreign_run_along(shared, ident, tmp_path):
    """It was given out once. Another run, which this proxy did not see begin, has the same."""
    episodes = EpisodeMemory(shared=SharedTable(tmp_path / "table", 60.0) if shared else None)
    mine = episodes.of("-", Tags(), turn(user("a")))
    episodes.remember(mine, turn(user("a")), reply(None, [ident]))

    def goes_on(arguments):
        function = {"name": "f", "arguments": arguments}
        called = {"role": "assistant", "tool_calls": [{"id": ident, "type": "function", "function": function}]}
        return episodes.of("-", Tags(), turn(user("?"), called, {"role": "tool", "tool_call_id": ident, "content": ""}))

    assert goes_on('{"a": 2}') is not mine
    assert goes_on('{"a": 1}') is mine, "its own call, whatever was rewritten before it"
