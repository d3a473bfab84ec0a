"""A call's parts, each written by one owner, and the result that record, metrics, traces and log see."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from tests.support.dataplane import ASK, post

import slipstream_proxy.data.call.result as module
from slipstream_proxy.data.call.parts import AskedCall, CallRoute
from slipstream_proxy.data.call.reply import EngineReply
from slipstream_proxy.data.call.result import CallResult
from slipstream_proxy.data.call.step import CallStep, CallSteps


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
    assert isinstance(call, CallResult)
    asked, route, reply = call.asked, call.route, call.reply
    assert (call.model, call.adapter, asked.episode.id, asked.episode.task) == ("gpt-4o", "tiny", "e1", "t")
    assert asked.split == "train" and route.tries == 1 and route.upstream == fake.url and not reply.stream
    assert asked.started <= route.forwarded <= reply.first <= reply.replied and reply.body()
    (frame,) = await proxy.record(1)
    assert frame.head["id"] == asked.id and frame.head["body_hash"] == asked.body_hash.decode()


def written_by(kind: type) -> set[str]:
    """Attributes that a class assigns to."""
    nodes = ast.walk(ast.parse(inspect.getsource(kind)))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}


def test_the_type_checker_lets_nobody_change_it():
    (init,) = [n for n in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(n, ast.FunctionDef)]
    assigned = [n for n in init.body if isinstance(n, ast.AnnAssign)]
    assert {n.target.attr for n in assigned} == written_by(CallResult)  # type: ignore[union-attr]
    assert {ast.unparse(n.annotation) for n in assigned} == {"Final"}


PARTS = {"asked": AskedCall, "route": CallRoute, "reply": EngineReply}


def test_each_part_is_written_by_its_own_methods_alone():
    """In all of the data plane nobody assigns to an attribute of ``x.asked``, ``x.route`` or ``x.reply``."""
    written = []
    for path in (Path(module.__file__).parents[1]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in (leaf for t in targets if isinstance(t, ast.AST) for leaf in ast.walk(t)):
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    owner = target.value
                    named = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                    kind = PARTS.get(named)
                    if kind is not None and target.attr in written_by(kind):
                        written.append(f"{path.name}:{target.lineno} {ast.unparse(target)}")
    assert not written
