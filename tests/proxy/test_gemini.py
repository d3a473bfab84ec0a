"""Google's generateContent: asked as a chat completion, answered in its own format."""

from __future__ import annotations

import json

import pytest
from tests.support.dataplane import parsed, post
from tests.support.fake_engine import dump, sse

from slipstream_proxy.dialects import BY_NAME, of_path
from slipstream_proxy.dialects.base import AsAsked
from slipstream_proxy.dialects.gemini import GeminiTranslator, to_chat

GEMINI = BY_NAME["gemini"]
ASK = {"role": "user", "parts": [{"text": "hi"}]}
USE = {"functionCall": {"name": "f", "args": {"x": 1}}}
CALL = {"index": 0, "id": "t", "function": {"name": "f", "arguments": '{"x": 1}'}}
STREAM = "/v1beta/models/tiny:streamGenerateContent?alt=sse"
USAGE = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8, "completion_tokens_details": {"reasoning_tokens": 2}}  # fmt: skip


def chat(*contents, **more):
    return to_chat({"model": "m", "contents": list(contents), **more})


def test_an_address_names_the_model_and_the_stream():
    for path, model, stream in (
        ("/v1beta/models/org%2Fname:generateContent", "org/name", None),
        ("/v1/models/org/name:streamGenerateContent?key=k&alt=sse", "org/name", True),
        ("/v1beta/models/m:streamGenerateContent", "m", "list"),
    ):
        body = {"contents": [ASK], "stream": "mine"}
        GEMINI.read_path(path, body)
        assert of_path(path.partition("?")[0]) is GEMINI and (body["model"], body.get("stream")) == (model, stream)
    assert of_path("/v1beta/models/m:countTokens") is None and of_path("/v1/models/m") is None
    with pytest.raises(AsAsked, match="alt=sse"):
        to_chat(body)


def test_a_conversation_with_tools_in_either_spelling():
    tool = {"name": "f", "parameters": {"type": "OBJECT", "properties": {"type": {"type": "STRING", "nullable": True}}}}
    answer = {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"output": "done"}}}, {"text": "and?"}]}  # fmt: skip
    said = {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "so"}, USE]}
    config = {"temperature": 0.5, "topP": 0.9, "maxOutputTokens": 7, "stopSequences": ["x"], "responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}  # fmt: skip
    made = chat(ASK, said, answer, tools=[{"functionDeclarations": [tool]}], systemInstruction={"parts": [{"text": "be"}]}, generationConfig=config, top_p=1.0)  # fmt: skip
    assert [m["role"] for m in made["messages"]] == ["system", "user", "assistant", "tool", "user"]
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert made["messages"][2] == {"role": "assistant", "reasoning": "hm", "tool_calls": [call], "content": "so"}
    assert made["messages"][3] == {"role": "tool", "tool_call_id": "call_0", "content": "done"}
    schema = made["tools"][0]["function"]["parameters"]
    assert schema == {"type": "object", "properties": {"type": {"type": ["string", "null"]}}}
    assert (made["temperature"], made["top_p"], made["max_tokens"], made["stop"]) == (0.5, 1.0, 7, ["x"])
    assert made["response_format"]["json_schema"]["schema"] == {"type": "object"} and made["tool_choice"] == "auto"
    snake = chat(ASK, system_instruction={"parts": [{"text": "be"}]}, generation_config={"top_p": 0.9, "max_output_tokens": 7})  # fmt: skip
    assert (snake["top_p"], snake["max_tokens"], snake["messages"][0]["content"]) == (0.9, 7, "be")


def test_calls_are_answered_by_id_or_by_name_or_in_order():
    two = {"role": "model", "parts": [{"functionCall": {"id": "a", "name": "f"}}, {"functionCall": {"name": "g"}}]}
    told = [{"functionResponse": {"name": "g", "response": {"result": [1]}}}, {"functionResponse": {"id": "a", "name": "f", "response": {}}}]  # fmt: skip
    made = chat(ASK, two, {"role": "function", "parts": told})["messages"]
    assert [m["tool_call_id"] for m in made[2:]] == ["call_1", "a"] and made[2]["content"] == '{"result": [1]}'


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"contents": []}, "no contents"),
        ({"contents": [ASK], "tools": [{"googleSearch": {}}]}, "a hosted tool: googleSearch"),
        ({"contents": [{"role": "robot", "parts": []}]}, "role robot"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": ""}}]}]}, "inlineData"),
        ({"contents": [ASK], "generationConfig": {"responseModalities": ["IMAGE"]}}, "responseModalities"),
        ({"contents": [ASK], "cachedContent": "c"}, "cachedContent"),
    ],
)
def test_what_cannot_be_asked_says_why(body, why):
    made = GEMINI.inject({"model": "m", **body})
    assert made.back is None and made.note is not None and why in made.note


def test_a_whole_reply():
    def whole(message, finish="stop", asked=()):
        read = {"id": "x", "model": "m", "usage": USAGE, "choices": [{"index": 0, "message": message, "finish_reason": finish}]}  # fmt: skip
        return json.loads(GeminiTranslator(dict(asked)).whole(dump(read).encode()))

    made = whole({"content": "hi", "reasoning": "hm"})
    assert made["candidates"] == [{"content": {"parts": [{"text": "hi"}], "role": "model"}, "finishReason": "STOP", "index": 0}]  # fmt: skip
    assert made["usageMetadata"] == {"promptTokenCount": 3, "candidatesTokenCount": 3, "totalTokenCount": 8, "thoughtsTokenCount": 2}  # fmt: skip
    assert (made["modelVersion"], made["responseId"]) == ("m", "x")
    thinking = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
    (said,) = whole({"content": None, "reasoning": "hm", "tool_calls": [CALL]}, "tool_calls", thinking)["candidates"]
    assert said["content"]["parts"] == [{"text": "hm", "thought": True}, {"functionCall": {"id": "t", "name": "f", "args": {"x": 1}}}]  # fmt: skip
    broken = {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"x'}}]}
    assert whole(broken)["candidates"][0]["finishReason"] == "MALFORMED_FUNCTION_CALL"
    assert whole(broken, "length")["candidates"][0]["finishReason"] == "MAX_TOKENS"


def test_a_stream_says_texts_at_once_and_calls_at_its_end():
    translator = GeminiTranslator({})
    deltas = [{"role": "assistant"}, {"content": "so"}, {"content": " be"}, {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"x"'}}]}, {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}]  # fmt: skip
    choices = [[{"index": 0, "delta": d, "finish_reason": None}] for d in deltas]
    choices += [[{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], []]
    events = [sse({"id": "x", "model": "m", "choices": c, "usage": None if c else USAGE}) for c in choices]
    shown = [translator.event(e) for e in [*events, b"data: [DONE]\n\n"]]
    told = [json.loads(e[6:]) for e in shown if e is not None]
    assert [e["candidates"][0]["content"]["parts"] for e in told] == [[{"text": "so"}], [{"text": " be"}], [{"functionCall": {"id": "t", "name": "f", "args": {"x": 1}}}]]  # fmt: skip
    assert told[-1]["candidates"][0]["finishReason"] == "STOP" and told[-1]["usageMetadata"]["totalTokenCount"] == 8
    reply = b"".join(e for e in shown if e is not None)
    said, whole = GEMINI.said(reply, stream=True), GEMINI.turn({"contents": [{"role": "model", "parts": [{"text": "so be"}, told[-1]["candidates"][0]["content"]["parts"][0]]}]})  # fmt: skip
    assert said.messages == whole.messages and said.tool_ids == ["t"] and said.has_reply
    failed = json.loads(translator.event(sse({"error": {"code": 503, "message": "no"}}))[6:])
    assert failed["error"] == {"code": 503, "message": "no", "status": "UNAVAILABLE"}


async def test_a_call_is_recorded_with_its_tokens_and_its_run_goes_on(start, fake):
    proxy = await start(models={"tiny": {"top_p": 1.0}})
    asked = {"contents": [ASK], "generationConfig": {"topP": 0.5}}
    _, head, reply = await post(proxy.url, asked, STREAM, {"x-goog-api-key": "k"})
    events = [json.loads(event[6:]) for event in reply.split(b"\n\n") if event]
    assert events[-1]["candidates"][0]["finishReason"] == "STOP"
    sent, headers = fake.seen[-1]
    assert sent["top_p"] == 1.0 and sent["return_token_ids"] is True and "x-goog-api-key" not in headers
    parts = [p for e in events for p in e["candidates"][0]["content"]["parts"]]
    path = STREAM.replace("streamGenerateContent?alt=sse", "generateContent")
    status, again, _ = await post(proxy.url, {"contents": [ASK, {"role": "model", "parts": parts}, ASK]}, path)
    assert status == 200 and again["x-slipstream-episode"] == head["x-slipstream-episode"]
    for call, read in map(parsed, await proxy.record(2)):
        assert call.dialect == "gemini" and read.untrainable is None and read.prompt_ids
    for body, why in (({"contents": []}, "no contents"), (b"[]", "no JSON object")):
        status, _, reply = await post(proxy.url, body, path)
        error = json.loads(reply)["error"]
        assert (status, error["status"]) == (400, "INVALID_ARGUMENT") and why in error["message"]
