"""The same request straight to vLLM and through the proxy, and what has to be equal.

Ids and times are made equal first. vLLM merges tokens into one event when its reader is slow, as it likes, and interleaves the choices of one
request: a stream has to be equal event by event in each choice in one of a few tries, or at least in all that it says.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from slipstream_proxy.data.wire.http1 import GUARD_HEADERS

_ID = re.compile(r"\b(chatcmpl-tool|chatcmpl|cmpl|resp|msg|rs|fc|ctc|call|toolu)[-_][A-Za-z0-9-]{6,}")
_TIMES = ("created", "created_at", "completed_at", "signature")
_HOP = {"date", "content-length", "transfer-encoding", "connection", "x-request-id"}
_TEXTS = ("text", "thinking", "partial_json", "delta")


def level(value: Any) -> Any:
    """Ids and times made equal; the order of keys is kept."""
    if isinstance(value, dict):
        made = (*_TIMES, "id") if "function" in value else _TIMES  # Mistral's tool calls have nine letters for an id
        return {k: 0 if k in made else level(v) for k, v in value.items()}
    if isinstance(value, list):
        return [level(v) for v in value]
    return _ID.sub(r"\1-ID", value) if isinstance(value, str) else value


def events(body: str) -> dict[int | None, list[str]]:
    """The events as text, by the choice that they belong to (None: to all)."""
    found: dict[int | None, list[str]] = {}
    for event in body.split("\n\n"):
        name, _, data = event.rpartition("data: ")
        read = level(json.loads(data)) if data.startswith("{") else None
        choices = read.get("choices") if read else None
        shown = name + json.dumps(read) if read else event
        found.setdefault(choices[0]["index"] if choices else None, []).append(shown)
    return found


def joined(body: str) -> list[Any]:
    """What a chat's or completion's events say, wherever their tokens were cut: text, ids, log-probabilities and end of each choice, and what
    else stands in the events, once.
    """
    rest: list[Any] = []
    said: dict[int, dict[str, Any]] = {}
    for event in body.split("\n\n"):
        data = event.rpartition("data: ")[2]
        read = level(json.loads(data)) if data.startswith("{") else event
        if isinstance(read, dict) and read.get("choices"):
            for part in read.pop("choices"):
                _say(
                    said.setdefault(part["index"], {"text": "", "ids": [], "logprobs": [], "calls": "", "end": None}),
                    part,
                )
            read.pop("usage", None)
        if read not in rest:
            rest.append(read)
    for mine in said.values():
        mine["logprobs"] = "".join(x for x in mine["logprobs"] if x != "null").replace(']}{"content": [', ", ")
    return [said, sorted(rest, key=json.dumps)]


def _say(mine: dict[str, Any], part: dict[str, Any]) -> None:
    delta = part.get("delta", {})
    mine["text"] += (delta.get("reasoning") or "") + (delta.get("content") or "") + (part.get("text") or "")
    mine["ids"] += part.get("token_ids") or []
    mine["logprobs"].append(json.dumps(part.get("logprobs")))
    for call in delta.get("tool_calls", ()):
        mine["calls"] += (call["function"].get("name") or "") + (call["function"].get("arguments") or "")
    if part.get("finish_reason"):
        mine["end"] = [part["finish_reason"], part.get("stop_reason")]


def merged(body: str) -> list[Any]:
    """What the typed events of messages and responses say: deltas of one block that follow each other are one."""
    found: list[Any] = []
    for event in body.split("\n\n"):
        data = event.rpartition("data: ")[2]
        if not data.startswith("{"):
            continue
        read = level(json.loads(data))
        read.pop("sequence_number", None)
        before = found[-1] if found else {}
        where = [(e.get("type"), e.get("index"), e.get("item_id"), e.get("content_index")) for e in (read, before)]
        if read["type"].endswith("delta") and where[0] == where[1]:
            mine, theirs = (before, read) if isinstance(read["delta"], str) else (before["delta"], read["delta"])
            for name in _TEXTS:
                if isinstance(theirs.get(name), str):
                    mine[name] += theirs[name]
        else:
            found.append(read)
    return found


def ask(url: str, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    data = json.dumps({"model": "inbox", **body}).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer EMPTY", **headers}
    return httpx.post(url + path, content=data, headers=headers, timeout=120, trust_env=False)


def detokenized(engine: Any, ids: list[int]) -> str:
    """Their text without special tokens, which replies do not show."""
    text = ask(engine.url, "/detokenize", {"tokens": ids}).json()["prompt"]
    return re.sub(r"<\|im_start\|>\w+\n|<\|[^|]*\|>", "", text)


def said(reply: httpx.Response) -> Any:
    if reply.headers.get("content-type", "").startswith("text/event-stream"):
        return events(reply.text)
    return json.dumps(level(reply.json())) if reply.content else None


def fields(reply: httpx.Response) -> dict[str, str]:
    """Without what the proxy adds: its own names, and what keeps a reply from running as a page."""
    guards = {(name.lower(), value) for name, value in GUARD_HEADERS.items()}
    told = {k: v for k, v in reply.headers.items() if (k, v) not in guards}
    return {k: v for k, v in told.items() if k not in _HOP and not k.startswith("x-slipstream-")}


def apart(ours: Any, theirs: Any) -> str:
    """Where the two first differ, for who reads it without pytest."""
    mine, other = (x if isinstance(x, str) else json.dumps(x) for x in (ours, theirs))
    at = next((i for i, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    begin = max(0, at - 40)
    return f"through the proxy …{mine[begin : at + 40]}…, bare …{other[begin : at + 40]}…"


def same(engine: Any, proxy: Any, path: str, body: dict[str, Any]) -> httpx.Response:
    """A few tries: floating-point sums, and with them a token, may come out otherwise when the engine's batch or prefix cache differ."""
    for last in (False, False, False, True):
        direct, through = ask(engine.url, path, body), ask(proxy.url, path, body)
        assert through.status_code == direct.status_code
        assert fields(through) == fields(direct), apart(fields(through), fields(direct))
        if said(through) == said(direct):
            break
        if last and isinstance(said(direct), dict):
            gist = joined if path.endswith("completions") else merged
            assert gist(through.text) == gist(direct.text)
        elif last:
            assert said(through) == said(direct), apart(said(through), said(direct))
    return through
