"""Steps: what a class overrides is called, and nothing else."""

from __future__ import annotations

import json

from tests.support.dataplane import ASK, post

from slipstream_proxy.data.call.step import CallStep, CallSteps
from slipstream_proxy.data.wire.errors import RequestRefused

HOOKS = CallSteps.__slots__


class Marks(CallStep):
    """A header both ways, a filter and a note of each end: all that a feature needs stands in one class."""

    def __init__(self) -> None:
        self.ends = []

    def request(self, call):
        if call.asked.payload is not None and call.asked.payload.get("seed") == 13:
            raise RequestRefused(400, "seed: 13 brings bad luck", param="seed")
        return False

    def forward(self, call, fields):
        return fields + b"x-mark: to the engine\r\n"

    def response_head(self, call, fields):
        return fields + b"x-mark: to the client\r\n"

    def event(self, call, event):
        return None if b"hidden" in event else event.replace(b"Hello", b"Howdy")

    def response_body(self, call, status, body):
        return body.replace(b"Hello", b"Howdy")

    def ended(self, call, status, outcome):
        self.ends.append((call.model, status, outcome))


class More(Marks):
    """Inherits its hooks."""


def test_a_hook_that_is_not_overridden_costs_nothing():
    assert all(getattr(CallSteps([CallStep(), CallStep()]), hook) == [] for hook in HOOKS)
    marks, more = Marks(), More()
    steps = CallSteps([CallStep(), marks, more])
    assert steps.forward == steps.event == steps.ended == steps.request == [marks, more]
    assert steps.choose == steps.rejected == steps.replied == steps.recorded == []


def test_every_hook_has_its_list():
    hooks = {name for name in vars(CallStep) if not name.startswith("_")}
    assert hooks == set(HOOKS)


def mark(proxy) -> Marks:
    marks = Marks()
    plane = proxy.plane
    plane.services.steps = CallSteps([*plane._steps(), marks])
    return marks


async def test_one_class_adds_a_feature(start, fake):
    proxy = await start()
    marks = mark(proxy)
    status, headers, body = await post(proxy.url, ASK)
    assert status == 200 and headers["x-mark"] == "to the client"
    assert json.loads(body)["choices"][0]["message"]["content"].startswith("Howdy")
    assert fake.seen[0][1]["x-mark"] == "to the engine"
    status, _, body = await post(proxy.url, {**ASK, "stream": True})
    assert b"Howdy" in body and b"Hello" not in body and b"[DONE]" in body
    status, _, body = await post(proxy.url, {**ASK, "seed": 13})
    assert status == 400 and json.loads(body)["error"]["param"] == "seed"
    assert marks.ends == [("tiny", 200, "ok"), ("tiny", 200, "ok"), ("tiny", 400, "error")]


async def test_the_record_keeps_what_the_engine_said(start, fake):
    proxy = await start()
    mark(proxy)
    await post(proxy.url, ASK)
    (frame,) = await proxy.record(1)
    assert b"Hello" in frame.reply and b"Howdy" not in frame.reply
