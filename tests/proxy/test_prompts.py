"""Each token id of a conversation comes once from the engine, and the record is that of an engine that sends all of them each time."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import until
from tests.support.dataplane import parsed, post, redact_with
from tests.support.packed_engine import PackedEngine, text_of

from slipstream_proxy.data.episode.prompts import PromptMemory, asking
from slipstream_proxy.data.episode.running import RunningEpisode
from slipstream_proxy.data.wire.identity import Tags
from slipstream_proxy.dialects.token_arrays import CAPTURE_FIELD, PACKED_FIELD, Sampled
from slipstream_proxy.redaction import make_texts
from slipstream_vllm import capture, packing


def episode(name: str = "a") -> RunningEpisode:
    return RunningEpisode(("-", name), 1, Tags(), 0.0)


def reply_of(prompt: list[int], known: list[packing.Known] | None, *, stream: bool) -> bytes:
    """As the plugin sends it."""
    packed = packing.pack([(0, prompt)], [(0, [7, 8], [-1.0, -2.0])], known)
    if stream:
        return b'data: {"choices":[],"%b":%b}\n\ndata: [DONE]\n\n' % (PACKED_FIELD.encode(), _dumps(packed))
    return _dumps({"choices": [{"index": 0, "message": {"content": 'a "slipstream":{"v":1'}}], PACKED_FIELD: packed})


def _dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def named(ask: object) -> list[packing.Known] | None:
    """What the plugin reads of a request that says so, over JSON."""
    return capture.known_prefixes(SimpleNamespace(model_extra={CAPTURE_FIELD: json.loads(json.dumps(ask))}))


def ids_in(reply: bytes) -> list[int]:
    sampled = Sampled()
    text = reply.split(b"\n\n", 1)[0].removeprefix(b"data: ")
    sampled.add(json.loads(text))
    return sampled.prompt


PIECE = st.lists(st.integers(0, 3), max_size=90)


@settings(max_examples=150)
@given(st.data())
def test_records_are_whole_whatever_is_forgotten_or_answered_out_of_order(data: st.DataObject) -> None:
    """Calls of two episodes whose prompts go on, branch, shrink and start anew, some at the same time, with room for few of them."""
    memory = PromptMemory(data.draw(st.sampled_from([300, 1500, 10**6])))
    episodes = [episode("a"), episode("b")]
    prompts: list[list[int]] = [[1] * 80]
    running = []
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()) or not running:
            before = data.draw(st.sampled_from(prompts))
            cut = data.draw(st.integers(0, 20))
            prompt = before[: len(before) - cut] + data.draw(PIECE)
            whom = data.draw(st.sampled_from(episodes))
            known = memory.of(whom)
            prompts.append(prompt)
            running.append((whom, known, prompt))
        else:
            whom, known, prompt = running.pop(data.draw(st.integers(0, len(running) - 1)))
            stream = data.draw(st.booleans())
            sent = reply_of(prompt, named(asking(known)), stream=stream)
            kept = memory.whole(whom, known, sent, stream=stream)
            assert ids_in(kept) == prompt
            if kept != sent:
                assert kept == reply_of(prompt, None, stream=stream)
        assert memory.size == sum(len(p.text) for known in memory._known.values() for p in known) <= memory.limit


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_that_goes_on_sends_what_is_new(stream: bool) -> None:
    memory, whom = PromptMemory(), episode()
    prompt = list(range(1000))
    for turn in range(20):
        known = memory.of(whom)
        sent = reply_of(prompt, named(asking(known)), stream=stream)
        whole = reply_of(prompt, None, stream=stream)
        if turn:
            assert len(whole) - len(sent) > 5 * (len(prompt) - 140)
            assert memory.whole(whom, known, sent, stream=stream) == whole
        else:
            memory.whole(whom, known, sent, stream=stream)
        prompt = [*prompt, *range(100)]
    assert len(memory.of(whom)) == 1


def test_sub_agents_that_take_turns_each_go_on_with_their_own() -> None:
    memory, whom = PromptMemory(), episode()
    agents = {n: [n] * (200 + 3 * n) for n in range(3)}
    for turn in range(5):
        for n, prompt in agents.items():
            known = memory.of(whom)
            sent = reply_of(prompt, named(asking(known)), stream=False)
            kept = memory.whole(whom, known, sent, stream=False)
            assert ids_in(kept) == prompt and (kept != sent) is bool(turn)
            prompt += [n] * (30 + n)
    assert len(memory.of(whom)) == 3


def test_an_episode_that_is_done_is_forgotten_and_the_quietest_one_goes_first() -> None:
    memory = PromptMemory(5000)
    a, b, c = (episode(n) for n in "abc")
    for whom in (a, b, a, c):
        known = memory.of(whom)
        memory.whole(whom, known, reply_of([5] * 400, named(asking(known)), stream=False), stream=False)
    assert memory.of(a) and memory.of(c) and not memory.of(b)
    a.done = True
    known = memory.of(a)
    memory.whole(a, known, reply_of([5] * 500, named(asking(known)), stream=False), stream=False)
    assert not memory.of(a) and memory.size == len(memory.of(c)[0].text)


def test_ids_that_nobody_named_make_the_call_unreadable_and_no_other_call() -> None:
    memory, whom = PromptMemory(), episode()
    memory.whole(whom, [], reply_of([5] * 400, [], stream=False), stream=False)
    known = memory.of(whom)
    sent = reply_of([5] * 500, named(asking(known)), stream=False)
    assert memory.whole(whom, [], sent, stream=False) == sent
    with pytest.raises(ValueError, match="left out"):
        ids_in(sent)


@pytest.mark.parametrize(
    "entry",
    [
        [0, "AAAA"],
        [0, "AAAA", 0, 3],
        [0, "AAAA", "x", 3, "d"],
        [0, "AAAA", 0, 3000, "d"],
        [0, "AAAA", 0, 33, 7],
        [0, "", 0, 0, ""],
        [0, "AAAA", 0, 3, "ü"],
        [0, "AAAA", 0, 2, "d"],
        [0, "AAAA", 0, -3, "d"],
        [0, "AAAA", -3, 0, "d"],
        [0],
        [],
    ],
)
def test_what_makes_no_sense_is_recorded_as_it_came_and_not_remembered(entry: list[object]) -> None:
    memory, whom = PromptMemory(), episode()
    sent = _dumps({"choices": [], PACKED_FIELD: {"v": 1, "p": [entry]}})
    for stream in (False, True):
        assert memory.whole(whom, [], sent, stream=stream) == sent
    assert memory.size == 0 and not memory.of(whom)


# --- through a data plane ---


@pytest.fixture
async def talk(start, fake, control):
    """``await talk(engine, turns, stream=…)``: a conversation through a proxy in front of it. → The proxy's records."""
    engines = []

    async def make(engine: PackedEngine, turns: int, *, stream: bool, headers=None, redact=None, before=None, path=""):
        await engine.start()
        engines.append(engine)
        engine.models |= {"tiny@1", "tiny@2"}
        control.state["engines"] = [{**control.state["engines"][0], "url": engine.url, "packed": True}]
        proxy = await start(engine={"urls": [engine.url]})
        await until(lambda: proxy.plane.live.packed)
        if redact:
            redact_with(proxy.plane, redact)
        messages = [{"role": "user", "content": "hello " * 40}]
        for turn in range(turns):
            if before:
                before(proxy, turn)
            body = {"model": "tiny", "messages": messages, "stream": stream}
            status, _, reply = await post(proxy.url, body, path + "/v1/chat/completions", headers)
            assert status == 200 and b"slipstream" not in reply
            messages = [
                *messages,
                {"role": "assistant", "content": text_of(reply, stream=stream)},
                {"role": "user", "content": f"and {turn}? "},
            ]
        return proxy, await proxy.record(turns)

    yield make
    for engine in engines:
        await engine.stop()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/e/run-1", ""], ids=["named", "continued"])
async def test_a_conversation_through_the_proxy(talk, stream, path):
    engine = PackedEngine()
    _, frames = await talk(engine, 6, stream=stream, path=path)
    assert len({f.head["episode"] for f in frames}) == 1
    for frame, (prompt, ids, logprobs) in zip(frames, engine.sampled, strict=True):
        _, read = parsed(frame)
        assert (read.prompt_ids, read.untrainable) == (prompt, None)
        assert (read.choices[0].completion_ids, read.choices[0].logprobs) == (ids, logprobs)
    assert max(engine.sent[1:]) < 500 < min(len(p) * 5 for p, _, _ in engine.sampled[1:])


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_said_is_remembered_though_the_engine_left_out_ids(talk, stream):
    said = []

    def listen(proxy, turn):
        if turn == 0:
            remember = proxy.plane.episodes.remember
            proxy.plane.episodes.remember = lambda *args: (said.append(args[2].messages), remember(*args))

    engine = PackedEngine()
    await talk(engine, 3, stream=stream, before=listen)
    assert [len(messages) for messages in said] == [1, 1, 1] and max(engine.sent[1:]) < 500


@pytest.mark.parametrize("stream", [False, True])
async def test_an_older_plugin_sends_all_of_them(talk, stream):
    engine = PackedEngine(older=True)
    _, frames = await talk(engine, 4, stream=stream)
    assert [parsed(f)[1].prompt_ids for f in frames] == [p for p, _, _ in engine.sampled]
    assert [parsed(f)[1].untrainable for f in frames] == [None] * 4
    assert engine.sent == sorted(engine.sent) and engine.sent[3] > engine.sent[0] > 1000


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_forgotten_while_the_engine_answers_is_put_back_all_the_same(talk, stream):
    engine = PackedEngine()

    def forget(proxy, turn):
        original = proxy.plane.prompts.of

        def of(episode):
            found = original(episode)
            proxy.plane.prompts._known.clear()
            proxy.plane.prompts.size = 0
            return found

        proxy.plane.prompts.of = of

    _, frames = await talk(engine, 4, stream=stream, before=forget)
    assert [parsed(f)[1].prompt_ids for f in frames] == [p for p, _, _ in engine.sampled]
    assert max(engine.sent[1:]) < 500


async def test_redaction_sees_and_takes_the_whole(talk):
    seen = []

    def redact(texts):
        seen.append(texts["reply"])
        return {**texts, "reply": texts["reply"].replace("reply 2", "X")} if "reply 2" in texts["reply"] else texts

    engine = PackedEngine()
    _, frames = await talk(engine, 4, stream=False, redact=redact)
    prompts = [parsed(f)[1].prompt_ids for f in frames]
    assert prompts == [p if i != 2 else [] for i, (p, _, _) in enumerate(engine.sampled)]
    assert frames[2].head["note"] == "redacted"
    assert len(seen[3]) > 5 * len(engine.sampled[3][0])
    assert make_texts(lambda t: t, b"{}", frames[3].reply)[1] == frames[3].reply


async def test_a_stream_that_breaks_off_has_its_prompt(talk):
    engine = PackedEngine()
    proxy, _ = await talk(engine, 2, stream=True, path="/e/run-1")
    engine.die_after = 3
    messages = [{"role": "user", "content": "hello " * 40}, {"role": "user", "content": "more"}]
    body = {"model": "tiny", "messages": messages, "stream": True}
    with pytest.raises(aiohttp.ClientPayloadError):
        await post(proxy.url, body, "/e/run-1/v1/chat/completions")
    frames = await proxy.record(3)
    _, read = parsed(frames[2])
    assert read.prompt_ids == engine.sampled[2][0] and read.untrainable == "error"
    assert engine.sent[2] < 1500


async def test_calls_at_the_same_time_each_get_their_own(talk):
    engine = PackedEngine()
    proxy, _ = await talk(engine, 1, stream=False, path="/e/run-1")
    first = {"role": "user", "content": "hello " * 40}

    async def one(n: int) -> None:
        messages = [first, {"role": "assistant", "content": "x" * (40 * n)}, {"role": "user", "content": str(n)}]
        await post(proxy.url, {"model": "tiny", "messages": messages}, "/e/run-1/v1/chat/completions")

    for _ in range(3):
        await asyncio.gather(*(one(n) for n in range(6)))
    frames = await proxy.record(19)
    expected = sorted(p for p, _, _ in engine.sampled)
    assert sorted(parsed(f)[1].prompt_ids for f in frames) == expected
