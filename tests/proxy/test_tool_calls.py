"""A chat reply's tool calls in each format: any order of their parts, with and without an index and an id."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataplane import parsed, post

from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.base import stream_objects
from slipstream_proxy.dialects.gemini import GeminiTranslator
from slipstream_proxy.dialects.messages import MessagesTranslator
from slipstream_proxy.dialects.responses import ResponsesTranslator
from slipstream_proxy.log.records import CallHead

ASKED: Any = {"model": "m", "messages": [], "max_output_tokens": 99}
CHAT = BY_NAME["chat"]
ARGUMENTS = ("{}", '{"q": 1}', '{"text": "a, }b"}', '{"a": {"b": ["c"]}}', "")


def chunk(delta: dict | None, *, finish: str | None = None, **more) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "c", "model": "m", "choices": choices, **more}).encode() + b"\n\n"


def stream_of(parts: list[dict], finish: str = "tool_calls") -> list[bytes]:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    deltas = [chunk({"tool_calls": [part]} if "text" not in part else {"content": part["text"]}) for part in parts]
    return [chunk({"role": "assistant", "content": ""}), *deltas, chunk({}, finish=finish), chunk(None, usage=usage), b"data: [DONE]\n\n"]  # fmt: skip


def of_messages(events: list[bytes]) -> list[tuple[str, dict]]:
    """The calls that a client puts together, as Anthropic's own does: by the index of the block."""
    blocks: dict[int, list] = {}
    ended: list[int] = []
    for event in stream_objects(b"".join(events)):
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks), "blocks begin in their order"
            blocks[event["index"]] = [event["content_block"], ""]
        elif event["type"] == "content_block_delta":
            assert event["index"] not in ended
            blocks[event["index"]][1] += event["delta"].get("partial_json", "")
        elif event["type"] == "content_block_stop":
            ended.append(event["index"])
    assert sorted(ended) == sorted(blocks)
    return [(b["name"], json.loads(text or "{}")) for b, text in blocks.values() if b["type"] == "tool_use"]


def of_responses(events: list[bytes]) -> list[tuple[str, dict]]:
    read = list(stream_objects(b"".join(events)))
    assert [e["sequence_number"] for e in read] == list(range(len(read)))
    told: dict[str, str] = {}
    for event in read:
        if event["type"] == "response.function_call_arguments.delta":
            told[event["item_id"]] = told.get(event["item_id"], "") + event["delta"]
    output = [i for i in read[-1]["response"]["output"] if i["type"] == "function_call"]
    assert [told[i["id"]] for i in output] == [i["arguments"] for i in output]
    return [(i["name"], json.loads(i["arguments"])) for i in output]


def of_gemini(events: list[bytes]) -> list[tuple[str, dict]]:
    parts = [p for e in stream_objects(b"".join(events)) for c in e["candidates"] for p in c["content"]["parts"]]
    return [(p["functionCall"]["name"], p["functionCall"]["args"]) for p in parts if "functionCall" in p]


def of_record(stream: list[bytes]) -> list[tuple[str, dict]]:
    head = CallHead(**{**dict.fromkeys(CallHead.__dataclass_fields__), "stream": True, "extra": {}, "status": 200})
    (choice,) = CHAT.parse(b"{}", b"".join(stream), head).choices
    calls = choice.message.get("tool_calls", [])
    return [(c["function"]["name"], json.loads(c["function"]["arguments"] or "{}")) for c in calls]


FORMATS: Any = {
    "messages": (MessagesTranslator, of_messages),
    "responses": (ResponsesTranslator, of_responses),
    "gemini": (GeminiTranslator, of_gemini),
}


def translated(kind: str, stream: list[bytes]) -> list[tuple[str, dict]]:
    translator, read = FORMATS[kind]
    back = translator(ASKED)
    events = [made for event in stream if (made := back.event(event)) is not None]
    assert back.done and not back.failed
    return read(events)


@st.composite
def calls_in_parts(draw: st.DrawFn, *, interleaved: bool, named: str) -> tuple[list, list[dict]]:
    """→ (name, arguments) of each call; the parts of their stream. ``named``: by what a part says whose it is."""
    calls = draw(st.lists(st.tuples(st.sampled_from(("look", "find")), st.sampled_from(ARGUMENTS)), max_size=4))
    if named == "one index alone":  # only arguments tell that a call is over
        calls = [(name, text or "{}") for name, text in calls]
    pieces: list[list[dict]] = []
    for n, (name, text) in enumerate(calls):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3 * (named != "one index alone"))))
        texts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
        first = {"function": {"name": name} | ({"arguments": texts[0]} if texts[0] or draw(st.booleans()) else {})}
        parts: list[dict[str, Any]] = [first, *({"function": {"arguments": t}} for t in texts[1:])]
        for k, part in enumerate(parts):
            if named in ("index", "both"):
                part["index"] = n
            if named in ("one index", "one index alone"):
                part["index"] = 0
            if named == "index as text":
                part["index"] = str(n)
            if named == "index and name":
                part |= {"index": n, "function": {"name": name} | part["function"]}
            if named == "id and name":
                part |= {"id": f"call_{n}", "function": {"name": name} | part["function"]}
            if named in ("id", "both") or (named in ("one index", "first id") and k == 0):
                part["id"] = f"call_{n}"
        pieces.append(parts)
    made: list[dict] = []
    while any(pieces):
        waiting = [p for p in pieces if p]
        made.append((draw(st.sampled_from(waiting)) if interleaved else waiting[0]).pop(0))
        if draw(st.booleans()) and not interleaved and len(waiting[0]) == 0:
            made.append({"text": "so"})
    return [(name, json.loads(text or "{}")) for name, text in calls], made


@pytest.mark.parametrize("kind", [*FORMATS, "record"])
@pytest.mark.parametrize("named", ["index", "id", "both"])
def test_any_interleaving_comes_to_the_same_calls(kind, named):
    @given(calls_in_parts(interleaved=True, named=named))
    def run(told):
        calls, parts = told
        read = of_record if kind == "record" else lambda stream: translated(kind, stream)
        assert sorted(read(stream_of(parts)), key=str) == sorted(calls, key=str)

    run()


@pytest.mark.parametrize("kind", [*FORMATS, "record"])
@pytest.mark.parametrize(
    "named",
    [
        "index",
        "id",
        "both",
        "one index",
        "one index alone",
        "first id",
        "nothing",
        "index as text",
        "index and name",
        "id and name",
    ],
)
def test_calls_one_after_the_other_come_in_their_order(kind, named):
    @given(calls_in_parts(interleaved=False, named=named))
    def run(told):
        calls, parts = told
        read = of_record if kind == "record" else lambda stream: translated(kind, stream)
        assert read(stream_of(parts)) == calls

    run()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_whole_reply_says_the_same(kind):
    calls: list[Any] = [{"function": {"name": "look", "arguments": text}} for text in ("", None, "{}", '{"q": 1}')]
    calls.append({"id": "", "function": {"name": "look", "arguments": {"q": 2}}})
    reply = {"choices": [{"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"}]}
    read = json.loads(FORMATS[kind][0](ASKED).whole(json.dumps(reply).encode()))
    if kind == "messages":
        found = [(b["id"], b["input"]) for b in read["content"]]
    elif kind == "responses":
        found = [(i["call_id"], json.loads(i["arguments"])) for i in read["output"]]
    else:
        found = [
            (p["functionCall"]["id"], p["functionCall"]["args"]) for p in read["candidates"][0]["content"]["parts"]
        ]
    assert [args for _, args in found] == [{}, {}, {}, {"q": 1}, {"q": 2}]
    assert len({ident for ident, _ in found} - {"", None}) == 5


@pytest.mark.parametrize("kind", FORMATS)
def test_the_one_call_of_an_older_server_is_a_call(kind):
    parts = [{"name": "look", "arguments": ""}, {"arguments": '{"q"'}, {"arguments": ": 1}"}]
    stream = [chunk({"function_call": part}) for part in parts]
    assert translated(kind, [*stream, chunk({}, finish="function_call"), b"data: [DONE]\n\n"]) == [("look", {"q": 1})]
    message = {"content": None, "function_call": {"name": "look", "arguments": '{"q": 1}'}}
    whole = {"choices": [{"message": message, "finish_reason": "function_call"}]}
    assert b"look" in FORMATS[kind][0](ASKED).whole(json.dumps(whole).encode())


@pytest.mark.parametrize(
    ("tokens", "last", "status"),
    [
        (99, "}", "incomplete"),
        (99, "</tool_call>", "incomplete"),
        (99, "<|im_end|>", "completed"),
        (98, "}", "completed"),
    ],
)
def test_a_limit_that_ends_a_complete_call_is_said_as_vllm_says_it(tokens, last, status):
    call = {"index": 0, "id": "c", "function": {"name": "look", "arguments": "{}"}}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": 1 + tokens}
    told = {"logprobs": {"content": [{"token": last, "logprob": -0.5}]}, "finish_reason": "tool_calls"}
    whole = {"model": "m", "usage": usage, "choices": [{**told, "message": {"content": None, "tool_calls": [call]}}]}
    read = json.loads(ResponsesTranslator(ASKED).whole(json.dumps(whole).encode()))
    assert read["status"] == status
    assert read["incomplete_details"] == ({"reason": "max_output_tokens"} if status == "incomplete" else None)
    back = ResponsesTranslator(ASKED)
    end = {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {}, **told}]}
    back.event(chunk({"tool_calls": [call]}))
    back.event(b"data: " + json.dumps(end).encode() + b"\n\n")
    back.event(chunk(None, usage=usage))
    (done,) = [e for e in stream_objects(back.event(b"data: [DONE]\n\n")) if e["type"] == "response.completed"]
    assert done["response"]["status"] == status


PATHS: Any = {
    "messages": ("/v1/messages", {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}),
    "responses": ("/v1/responses", {"model": "tiny", "input": "x", "max_output_tokens": 9, "store": False}),
    "gemini": (
        "/v1beta/models/tiny:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
    ),
}


async def served(
    serve, *parts: bytes, head: bytes = b"200 OK\r\ncontent-type: text/event-stream", end: bytes = b"0\r\n\r\n"
):
    """An engine that answers each call with these parts."""

    async def engine(reader, writer):
        while True:
            asked = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(asked.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
            writer.write(b"HTTP/1.1 " + head + b"\r\ntransfer-encoding: chunked\r\n\r\n")
            for part in parts:
                writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                await writer.drain()
            writer.write(end)
            if not end:
                writer.close()
                return

    return await serve(engine)


NAMELESS = [chunk({"content": "Well"}), chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), chunk({}, finish="tool_calls"), b"data: [DONE]\n\n"]  # fmt: skip
TWICE = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
CUSTOM = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "f", "input": "x"}}
GOES_ON = [chunk({"tool_calls": [TWICE]}), chunk({"tool_calls": [{**TWICE, "index": 1, "id": "b"}]}), chunk({"tool_calls": [{"index": 0, "function": {"arguments": ', "x"'}}]}), b"data: [DONE]\n\n"]  # fmt: skip


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("case", ["nothing but an end", "no end", "no choice", "odd", "nameless", "custom", "goes on"])
async def test_what_cannot_be_said_ends_in_an_error_and_the_record_says_so(start, serve, kind, case):
    stream = {
        "nothing but an end": [b"data: [DONE]\n\n"],
        "no end": [chunk({"content": "Well"})],
        "odd": [chunk({"content": "Well"}), b'data: {"choices": 7}\n\n', b"data: [DONE]\n\n"],
        "nameless": NAMELESS,
        "no choice": [chunk(None), b"data: [DONE]\n\n"],
        "custom": [chunk({"tool_calls": [CUSTOM]}), chunk({}, finish="tool_calls"), b"data: [DONE]\n\n"],
        "goes on": GOES_ON,
    }[case]
    url = await served(serve, *stream)
    proxy = await start(engine={"urls": [url]})
    proxy.plane.live.sampling_known = True
    path, body = PATHS[kind]
    body = body if kind == "gemini" else {**body, "stream": True}
    if kind == "gemini" and case in ("nameless", "goes on"):
        status, _, text = await post(proxy.url, body, path=path)
        assert b"MALFORMED_FUNCTION_CALL" in text, "the format has words for it"
        return
    if kind == "messages":
        proxy.plane.live.routes = frozenset()
    status, _, text = await post(proxy.url, body, path=path)
    events = list(stream_objects(text))
    assert events and "error" in (events[-1].get("type"), *events[-1]), text
    if kind == "responses":
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
    (frame,) = await proxy.record(1)
    head, read = parsed(frame)
    assert (head.outcome, read.untrainable) == ("error", "error")


@pytest.mark.parametrize("kind", ["messages", "responses", "gemini"])
@pytest.mark.parametrize("body", [b'{"error": {"message": "out of memory", "code": 500}}', b"<html>bad gateway</html>"])
async def test_an_error_of_the_engine_has_the_callers_form(start, serve, kind, body):
    url = await served(serve, body, head=b"500 Internal Server Error\r\ncontent-type: application/json")
    proxy = await start(engine={"urls": [url]})
    path, asked = PATHS[kind]
    status, _, text = await post(
        proxy.url, asked, path=path.replace("streamGenerateContent?alt=sse", "generateContent")
    )
    said = json.loads(text)
    assert status == 500 and ("out of memory" if b"memory" in body else "bad gateway") in said["error"]["message"]
    assert (said.get("type"), said["error"].get("status")) == {
        "messages": ("error", None), "responses": (None, None), "gemini": (None, "INTERNAL"),
    }[kind]  # fmt: skip


@pytest.mark.parametrize("through_chat", [True, False])
async def test_after_a_cut_the_numbers_go_on(start, serve, through_chat):
    told: list[Any] = [
        {"type": "response.created", "sequence_number": 0},
        {"type": "response.in_progress", "sequence_number": 1},
    ]
    own = [b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in told]
    url = await served(serve, *([chunk({"content": "Well"})] if through_chat else own), end=b"")
    proxy = await start(engine={"urls": [url], "own_responses": not through_chat})
    path, body = PATHS["responses"]
    got = b""
    async with (
        aiohttp.ClientSession() as session,
        session.post(proxy.url + path, json={**body, "stream": True}) as reply,
    ):
        with contextlib.suppress(
            aiohttp.ClientPayloadError
        ):  # it is cut: who reads no errors must not take it for an end
            async for part in reply.content.iter_any():
                got += part
    events = list(stream_objects(got))
    assert events[-1]["type"] == "error"
    assert [e["sequence_number"] for e in events] == list(range(len(events))) and len(events) > 2
