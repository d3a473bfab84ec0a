"""What record, metrics, traces and log see of a call."""

from __future__ import annotations

import ast
import inspect

from tests.support.dataplane import ASK, post

import slipstream_proxy.data.call.view as module
from slipstream_proxy.data.call.step import CallStep, CallSteps
from slipstream_proxy.data.call.view import CallView


class Looks(CallStep):
    def __init__(self) -> None:
        self.seen = []

    def ended(self, call, status, outcome):
        self.seen.append(call)


async def test_it_says_how_the_call_was(start, fake):
    proxy = await start(models={"gpt-4o": {"trained": "tiny"}})
    looks = Looks()
    proxy.plane.services.steps = CallSteps([*proxy.plane._steps(), looks])
    await post(proxy.url, {**ASK, "model": "gpt-4o"}, headers={"x-slipstream-episode": "e1", "x-slipstream-task": "t"})
    (call,) = looks.seen
    assert isinstance(call, CallView)
    assert (call.model, call.adapter, call.episode.id, call.episode.task) == ("gpt-4o", "tiny", "e1", "t")
    assert call.split == "train" and call.tries == 1 and call.upstream == fake.url and not call.stream
    assert call.started <= call.forwarded <= call.first <= call.replied and call.reply.body()
    (frame,) = await proxy.record(1)
    assert frame.head["id"] == call.id and frame.head["body_hash"] == call.body_hash


def test_the_type_checker_lets_nobody_change_it():
    (init,) = [n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.FunctionDef)]
    assigned = [n for n in init.body if isinstance(n, ast.AnnAssign)]
    assert {n.target.attr for n in assigned} == set(CallView.__slots__)  # type: ignore[union-attr]
    assert {ast.unparse(n.annotation) for n in assigned} == {"Final"}
