"""``proxy.redact``: no secret passes it by, whatever the format, the field and the pieces that it comes in."""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib

import pytest
from tests.support.dataplane import post, redact_with
from tests.support.planted import SIGNS, case, dumped

from slipstream import contract as c
from slipstream_proxy.control.api.app import installed_routes
from slipstream_proxy.control.api.plugins import control_parts
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.log.records import CallHead
from slipstream_proxy.redaction import FREE_TEXT_FIELDS, Redaction, make_texts, redacted_body

CASES = int(os.environ.get("REDACTION_CASES", "400"))
"""``REDACTION_CASES=100000`` tries as many."""


def redaction_of(secret: str) -> Redaction:
    return Redaction(lambda record: {name: text.replace(secret, "[GONE]") for name, text in record.items()}, b"key")


def secret_of(rng: random.Random) -> str:
    body = "".join(rng.choice(SIGNS) for _ in range(rng.randint(5, 24)))
    return f"q{body}z"


def leaves(value: object) -> list[str]:
    """All texts in it, those too in JSON that is a text."""
    if isinstance(value, dict):
        return [x for pair in value.items() for part in pair for x in leaves(part)]
    if isinstance(value, list):
        return [x for part in value for x in leaves(part)]
    if isinstance(value, str):
        try:
            return [value, *leaves(json.loads(value))]
        except ValueError:
            return [value]
    return [str(value)]


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("seed", range(4))
def test_no_secret_is_stored_whatever_it_is_and_however_it_comes(seed):
    rng = random.Random(seed)
    for _ in range(CASES // 4):
        secret = secret_of(rng)
        name, stream, reply = case(rng, secret)
        request = dumped(
            rng,
            {
                "model": "tiny",
                "stream": stream,
                "messages": [{"role": "user", "content": f"it is {secret}", "x": json.dumps({"k": secret})}],
            },
        ).encode()
        tags = {"a": secret}
        dialect = BY_NAME[name]
        asked, kept, note = make_texts(redaction_of(secret), request, reply, tags, stream=dialect if stream else None)
        assert note == "redacted" and tags == {"a": "[GONE]"}
        head = CallHead(
            "i",
            "-",
            "e",
            None,
            "train",
            {},
            "tiny",
            None,
            None,
            "live",
            "sole",
            name,
            stream,
            0.0,
            0.0,
            None,
            200,
            "ok",
            "u",
        )
        parsed = dialect.parse(asked, kept, head)
        assert parsed.error is None, (name, parsed.error)
        texts = leaves([json.loads(asked), kept.decode(), parsed.messages, [c.message for c in parsed.choices]])
        assert not [text for text in texts if secret in text], (name, secret, kept)
        assert (
            "[GONE]" in json.dumps([c.message for c in parsed.choices])
            or name == "gemini"
            or not stream
            or "thinking" in kept.decode()
        )
        assert not parsed.prompt_ids and not any(c.completion_ids or c.logprobs for c in parsed.choices)
        for part in (b'"token":', b'"bytes":', b'"tokens":'):
            assert part not in kept


SECRET = "4111-1111-1111-1111"
HALVES = [SECRET[:7], SECRET[7:]]
ESCAPED = "".join(f"\\u{ord(sign):04x}" for sign in SECRET)
PARTS = [{"type": "text", "text": half} for half in HALVES]


def stored(value: object, coding: str = "utf-8") -> bytes:
    """What is kept of a reply."""
    _, kept, note = make_texts(redaction_of(SECRET), b"{}", json.dumps(value).encode(coding))
    assert note == "redacted"
    return kept


@pytest.mark.parametrize("coding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_secret_is_seen_in_each_coding_that_a_reader_of_json_takes(coding):
    kept = stored({"choices": [{"message": {"content": SECRET, "x": json.dumps({"a": SECRET})}}]}, coding)
    assert SECRET.encode() not in kept and SECRET.encode(coding)[4:] not in kept
    assert json.loads(kept)["choices"][0]["message"]["content"] == "[GONE]"


@pytest.mark.parametrize("blank", ["", " ", "\n", "\t", "\r\n", " \t "])
def test_a_secret_is_seen_in_json_behind_any_blank(blank):
    kept = stored({"tool_calls": [{"function": {"arguments": f'{blank}{{"card": "{ESCAPED}"}}'}}]})
    assert json.loads(json.loads(kept)["tool_calls"][0]["function"]["arguments"]) == {"card": "[GONE]"}


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": PARTS}]},
        {"messages": [{"role": "assistant", "content": half} for half in HALVES]},
        {"messages": [{"role": "user", "content": [PARTS[0]]}, {"role": "user", "content": [PARTS[1]]}]},
        {"contents": [{"role": "model", "parts": [{"text": sign}]} for sign in SECRET]},
        {"content": [{"type": "thinking", "thinking": half} for half in HALVES]},
        {"output": [{"type": "message", "content": [{"type": "output_text", "text": half}]} for half in HALVES]},
    ],
)
def test_a_secret_is_seen_that_lies_in_several_parts(value):
    kept = stored(value).decode()
    assert "[GONE]" in kept and not [half for half in HALVES if f'"{half}"' in kept]


def test_parts_of_different_speakers_or_choices_are_not_taken_for_one_text():
    apart: list[dict[str, list[dict[str, object]]]] = [
        {
            "messages": [
                {"role": role, "content": half} for role, half in zip(("user", "assistant"), HALVES, strict=True)
            ]
        },
        {"choices": [{"index": number, "text": half} for number, half in enumerate(HALVES)]},
    ]
    for value in apart:
        said = json.dumps(value, separators=(",", ":")).encode()
        assert make_texts(redaction_of(SECRET), said, b"{}") == (said, b"{}", None)


@pytest.mark.parametrize(
    "reply",
    [
        b"".join(b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % half.encode() for half in HALVES),
        b"".join(b'{"choices":[{"delta":{"content":"%b"}}]}\n' % half.encode() for half in HALVES),
        gzip.compress(SECRET.encode()),
        zlib.compress(SECRET.encode()),
    ],
    ids=["events", "lines", "gzip", "deflate"],
)
def test_what_cannot_be_shown_as_it_reads_is_not_stored(reply):
    assert make_texts(redaction_of(SECRET), b'{"model":"tiny"}', reply) == (b"{}", b"", "redaction failed")


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_without_a_secret_says_the_same_as_before(seed):
    """Text, ids and log-probabilities, usage and how it ended: the call trains as it would without ``proxy.redact``."""
    rng = random.Random(100 + seed)
    for _ in range(40):
        name, stream, reply = case(rng, "nothing-to-hide")
        if not stream:
            continue
        dialect = BY_NAME[name]
        _, kept, note = make_texts(Redaction(lambda record: record), b'{"messages":[]}', reply, stream=dialect)
        head = CallHead(
            "i",
            "-",
            "e",
            None,
            "train",
            {},
            "tiny",
            None,
            None,
            "live",
            "sole",
            name,
            True,
            0.0,
            0.0,
            None,
            200,
            "ok",
            "u",
        )
        before, after = dialect.parse(b'{"messages":[]}', reply, head), dialect.parse(b'{"messages":[]}', kept, head)
        assert (note, after) == (None, before)


async def test_no_name_that_is_kept_or_shown_holds_a_secret(start, fake, caplog):
    secret = "4111-1111-1111-1111"
    proxy = await start(proxy={"metric_tags": ["user"]})
    redact_with(proxy.plane, lambda record: {name: text.replace(secret, "CARD") for name, text in record.items()})
    named = {
        "x-slipstream-task": f"pay with {secret}", "x-slipstream-episode": f"run of {secret}", "x-slipstream-kind": f"kind-{secret}",
        f"x-slipstream-tag-{secret}": "v", "x-slipstream-tag-user": secret, "x-stainless-retry-count": "0", "idempotency-key": f"once {secret}",
    }  # fmt: skip
    ask = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    status, headers, _ = await post(proxy.url, ask, headers=named)
    assert status == 200 and secret not in json.dumps(dict(headers))
    await post(proxy.url, {**ask, "model": f"no model {secret}"}, headers={"x-slipstream-episode": secret})
    await post(proxy.url, ask, headers={"x-slipstream-episode": f"run of {secret}"})
    await post(proxy.url, ask, headers={"x-slipstream-episode": f"another run of {secret}"})
    frames = await proxy.record(4)
    spool = b"".join(p.read_bytes() for p in proxy.config.spool_dir.iterdir())
    shown = json.dumps(proxy.plane.metrics.snapshot()) + caplog.text
    assert secret[:6] not in shown and secret[:6].encode() not in spool  # four digits alone are in many a time
    assert frames[0].head["task"].startswith("pay-with-CARD"), "tasks that differ in a secret are one"
    assert frames[0].head["episode"] == frames[2].head["episode"] != frames[3].head["episode"], "runs stay apart"
    assert frames[0].head["tags"]["episode-text"] == "run of CARD"


CARD = "4111-1111-1111-1111"
OF_PROGRAMS = {c.JudgeReport, c.BatchAck}
"""Bodies whose words our own programs choose."""
WRITTEN_FIELDS = {"reason", "text", "failed", "reply"}
"""Fields of bodies in which people, agents and judges write."""


def test_what_is_written_in_any_body_of_the_api_is_redacted():
    bodies = {route.body for route in installed_routes() if route.body is not None}
    written = {body for body in bodies if WRITTEN_FIELDS & body.model_fields.keys()}
    of_plugins = {body for part in control_parts() for body in part.free_texts}
    assert {c.RewardIn, c.GateIn, c.ScoresIn, c.RerunIn} <= written
    assert written == {*FREE_TEXT_FIELDS, *of_plugins, c.ScoresIn, *OF_PROGRAMS}


def test_words_of_judges_and_of_who_takes_a_version_back_are_redacted():
    redaction = redaction_of(CARD)
    score = c.Score(episode="e", value=0.5, reason=f"it put together {CARD}", meta={"note": [CARD]})
    bodies = [
        c.ScoresIn(lease="l", scores=[score]),
        c.ScoresIn(lease="l", failed=f"the model said {CARD}"),
        c.RerunIn(id="r", text=f"task {CARD}"),
        c.GateIn(reason=f"it says {CARD}", group=f"tag.card={CARD}"),
        c.GateIn(group=f"tag.{CARD}=a b"),
        c.GateIn(group=f"task=pay {CARD}"),
    ]
    for body in bodies:
        after = redacted_body(redaction, body)
        assert CARD not in after.model_dump_json() and type(after).model_validate(after.model_dump()), body
    other = c.GateIn(group="tag.customer=acme & co")
    assert redacted_body(redaction, other) == other
