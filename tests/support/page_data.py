"""What the page's tests show: runs as an agent makes them, with branches, sub-agents and compactions, spooled as the data plane does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from tests.support.adapters import write_adapter
from tests.support.plane import Plane, until
from tests.support.store_writes import pin

from slipstream_proxy.log.ids import new_id
from slipstream_proxy.log.records import CallHead, Kind

EVIL = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script><b id="planted">bold</b>'
SYSTEM = {"role": "system", "content": "You sort the inbox. Use the tools."}
HELPER = {"role": "system", "content": "You look things up and answer in one line."}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": f"{name} a mail", "parameters": {"type": "object", "properties": {}}},
    }
    for name in ("search", "move", "ask_helper")
]
Message = dict[str, Any]


class Words:
    """A tokenizer of words: the same text has the same ids, so that a longer conversation begins with the shorter one's."""

    def __init__(self, texts: dict[int, str]) -> None:
        """``texts`` is filled: id → text."""
        self.known: dict[str, int] = {}
        self.texts = texts
        texts[1] = "<end>"

    def ids(self, text: str) -> list[tuple[int, str]]:
        pieces = re.findall(r"\s*\S+|\s+", text)
        found = [(self.known.setdefault(piece, len(self.known) + 10), piece) for piece in pieces]
        self.texts |= dict(found)
        return found

    def prompt(self, messages: list[Message]) -> list[int]:
        found: list[int] = []
        for m in messages:
            found += [n for n, _ in self.ids(f"<{m['role']}>")] + self.said(m) + [1]
        return found + [n for n, _ in self.ids("<assistant>")]

    def said(self, message: Message) -> list[int]:
        return [n for n, _ in self.ids(text_of(message))]


def text_of(message: Message) -> str:
    uses = [u["function"]["name"] + u["function"]["arguments"] for u in message.get("tool_calls") or ()]
    return " ".join([message.get("content") or "", *uses])


def uses(name: str, number: int = 1, **args: object) -> Message:
    call = {"id": f"use-{name}-{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Runs:
    """Writes calls into a plane's spool, each later than the one before."""

    def __init__(self, plane: Plane, hours: float = 6.0) -> None:
        self.plane = plane
        self.words = Words(plane.engine.texts)
        self.clock = plane.deps.now() - hours * 3600

    async def call(
        self, episode: str, messages: list[Message], *replies: Message, tools: list[Any] | None = None, **head: Any
    ) -> str:
        """``replies``: the samples. Other arguments are the record's own fields."""
        self.clock += 1.0
        request = {
            "model": "gpt-4o",
            "messages": messages,
            "temperature": 1.0,
            "tools": TOOLS if tools is None else tools,
        }
        choices = [self._choice(n, reply) for n, reply in enumerate(replies)]
        body = {
            "id": new_id(),
            "object": "chat.completion",
            "model": "tiny",
            "prompt_token_ids": self.words.prompt(messages),
            "choices": choices,
            "usage": {"prompt_tokens": len(self.words.prompt(messages)), "completion_tokens": 9, "total_tokens": 9},
        }
        if head.get("outcome", "ok") != "ok":
            body = {"error": {"message": "the engine is out of memory", "type": "server_error"}}
        fields: dict[str, Any] = {
            "id": new_id(), "key": "-", "episode": episode, "task": "sort", "split": "train", "tags": {}, "model": "gpt-4o",
            "trained": "tiny", "adapter": "tiny", "arm": "live", "pin": "control", "dialect": "chat", "stream": False, "at": self.clock,
            "seconds": 0.8, "first_byte": 0.1, "status": 200, "outcome": "ok", "upstream": self.plane.engine.url, "done": False, "grouped": True,
        }  # fmt: skip
        record = CallHead(**{**fields, **head})
        parts = json.dumps(request).encode(), json.dumps(body).encode()
        assert await self.plane.writer.put(Kind.CALL, record, *parts)
        return record.id

    def _choice(self, number: int, reply: Message) -> dict[str, Any]:
        tokens = [*self.words.ids(text_of(reply)), (1, "<end>")]
        content = [
            {"token": text, "logprob": -0.05 - 1.3 * (1 + math.sin(n + number)), "bytes": list(text.encode()), "top_logprobs": []}
            for n, (_, text) in enumerate(tokens)
        ]  # fmt: skip
        reason = "tool_calls" if reply.get("tool_calls") else "stop"
        ids = [n for n, _ in tokens]
        return {
            "index": number,
            "finish_reason": reason,
            "message": reply,
            "token_ids": ids,
            "logprobs": {"content": content},
        }

    async def reward(self, episode: str, value: float, **more: object) -> None:
        await self.plane.seen(episode)
        status, body = await self.plane.ask("POST", f"/episodes/{episode}/rewards", {"value": value, **more})
        assert status == 200, body

    async def talk(self, episode: str, turns: int = 2, *, evil: str = "", **head: Any) -> None:
        """A plain run: each turn is a tool call and its result."""
        messages: list[Message] = [SYSTEM, user(f"Sort mail number {episode}. {evil}".strip())]
        if chances := head.get("chances"):  # the control plane chose the arm, and wrote it down, before the first call
            arm, adapter = head.get("arm", "live"), head["adapter"]
            pin(self.plane.deps.store, "-", episode, "tiny", adapter, arm, self.clock, chances)
        for n in range(turns):
            reply = uses("search", n, query=f"mail {n} {evil}")
            await self.call(episode, messages, reply, **head)
            messages = [*messages, reply, tool(reply, f"found {n} {evil}")]
        await self.call(episode, messages, says(f"Moved it to Work. {evil}"), **head)


def tool(use: Message, text: str) -> Message:
    return {"role": "tool", "tool_call_id": use["tool_calls"][0]["id"], "content": text}


async def make_tangle(runs: Runs, episode: str = "tangle") -> dict[str, str]:
    """A run with everything in it. Name of each special call → its id."""
    ids: dict[str, str] = {}
    start = [SYSTEM, user("Sort the mail of today.")]
    ask = uses("ask_helper", 1, who="four helpers")
    ids["start"] = await runs.call(episode, start, ask)
    for n in range(4):
        first = [HELPER, user(f"Look up sender {n}.")]
        reply = uses("search", n, sender=n)
        ids[f"helper{n}"] = await runs.call(episode, first, reply, tools=TOOLS[:1])
        follow = [*first, reply, tool(reply, f"sender {n} is known")]
        ids[f"helper{n}b"] = await runs.call(episode, follow, says(f"Sender {n} is a friend."), tools=TOOLS[:1])
    second = [*start, ask, tool(ask, "all four are friends")]
    ids["failed"] = await runs.call(episode, second, outcome="error", status=500)
    ids["retry"] = await runs.call(episode, second, says("All sorted. Shall I archive?"))
    third = [*second, says("All sorted. Shall I archive?"), user("Yes, archive them.")]
    ids["turn"] = await runs.call(episode, third, says("Archived."))
    other = [*second, says("All sorted. Shall I archive?"), user("No, leave them where they are.")]
    ids["edit"] = await runs.call(episode, other, says("Left as they are."))
    ids["samples"] = await runs.call(
        episode, [*third, says("Archived."), user("Suggest a rule.")], says("From: friend."), says("To: me.")
    )
    brief = [
        SYSTEM,
        user("Summary so far: today's mail is sorted and archived, and a rule is suggested. Now write the report."),
    ]
    ids["compaction"] = await runs.call(episode, brief, says("Here is the report."), done=True)
    await runs.plane.seen(episode)

    async def whole() -> bool:
        detail = (await runs.plane.ask("GET", f"/episodes/{episode}"))[1]
        return len(detail["call_list"]) == len(ids)

    await until(whole)
    return ids


async def step_event(plane: Plane, number: int, batch: str, **more: object) -> None:
    data = {
        "step": number, "batch": batch, "adapter": f"tiny@{number}", "loss": 0.02 / number, "kl": 0.004 * number, "entropy": 0.7 - 0.03 * number,
        "clipped": 0.02, "staleness": 0.4, "logprob_gap": 0.003, "logprob_gap_max": 0.2, "tokens": 9000, "tokens_per_second": 5200.0 + 90 * number,
        "grad_norm": 0.4, "learning_rate": 1e-5, "reward": 0.3 + 0.05 * number, "seconds": 12.0, **more,
    }  # fmt: skip
    assert (await plane.ask("POST", "/training/events", {"kind": "step", "data": data}))[0] == 200


async def train_batch(plane: Plane, episodes: dict[str, float], number: int) -> str:
    """Lease what is ready, and say that it made adapter ``number``. Episode → its advantage."""
    body = {"worker": "w1", "model": "tiny", "min_groups": 1, "max_wait": 0}

    async def leased():
        reply = await plane.client.post("/slipstream/v1/batches/lease", json=body, headers=plane.as_())
        return reply if reply.status == 200 else None

    reply = await until(leased)
    batch = reply.headers["x-slipstream-batch"]
    ack = {
        "lease": reply.headers["x-slipstream-lease"],
        "outcome": "trained",
        "adapter": f"tiny@{number}",
        "step": number,
        "advantages": episodes,
    }
    assert (await plane.ask("POST", f"/batches/{batch}/ack", ack))[0] == 200
    await tell_gaps(plane, batch, ack["lease"], episodes)
    await step_event(plane, number, batch)
    write_adapter(plane.config.adapters_dir / f"tiny@{number}", fill=number)
    parent = {"parent": f"tiny@{number - 1}"} if number > 1 else {}
    made = {"path": f"tiny@{number}", "step": number, "batches": [batch], **parent}
    assert (await plane.ask("POST", "/adapters?wait=60", made))[0] in (200, 201)
    return str(batch)


async def tell_gaps(plane: Plane, batch: str, lease: str, episodes: Iterable[str]) -> None:
    """What a trainer says of the tokens that it trained on."""
    calls = []
    for name in episodes:
        for call in (await plane.ask("GET", f"/episodes/{name}", params={"tokens": "true"}))[1]["call_list"]:
            gaps = [round(0.25 * math.sin(3 * n) ** 5, 4) for n in range(len(call["completion_ids"][0]))]
            calls.append({"key": "-", "episode": name, "call": call["id"], "gaps": gaps})
    status, kept = await plane.ask("POST", f"/batches/{batch}/gaps", {"lease": lease, "calls": calls})
    assert status == 200 and 0 < kept["kept"] <= len(calls), kept  # of the batch's own runs


PLANE = {
    "groups": {"size": 4, "max_age": 86_400},
    "trainer": {"min_groups": 1, "max_groups": 4},
    "gate": {"mode": "manual"},
}
"""Settings of a plane that the demo's data suit. The calls are some hours old; no group ends before it is full."""


async def make_demo(plane: Plane, batches: int = 3) -> dict[str, str]:
    """A day of an inbox agent: groups of four, three steps, an adapter taken back, and one tangled run."""
    runs = Runs(plane)
    for n in range(1, batches + 1):
        adapter = "tiny" if n == 1 else f"tiny@{n - 1}"
        names = [f"run-{n}-{m}" for m in range(4)]
        for m, name in enumerate(names):
            tags = {"lang": "en" if m % 2 else "de"}
            await runs.talk(name, 1 + m % 3, task=f"inbox-{n}", adapter=adapter, tags=tags)
        for m, name in enumerate(names):
            value = round(min(1.0, 0.2 * n + 0.25 * m), 2)
            await runs.reward(name, value, reason=f"{m + 1} of 4 mails stand where they belong")
            await judge(runs, name, min(1.0, value + 0.1 * (m == 1)), m)
        for m in range(2):
            name = f"check-{n}-{m}"
            await runs.talk(name, 1, task=f"inbox-{n}", adapter=adapter, split="eval")
            await runs.reward(name, round(0.3 + 0.15 * n + 0.1 * m, 2))
        advantages = {name: round((m - 1.5) / 1.1, 3) for m, name in enumerate(names)}
        await train_batch(plane, advantages, n)
        if n < batches:
            assert (await plane.ask("POST", f"/adapters/tiny@{n}/promote", {"reason": "it is better"}))[0] == 200
    await make_trial(runs, f"tiny@{batches}", f"tiny@{batches - 1}" if batches > 1 else "tiny")
    await runs.reward("run-1-3", 1.0, source="human", name="person", reason="as I would have done it")
    await report(plane)
    return await make_tangle(runs)


async def judge(runs: Runs, name: str, value: float, number: int) -> None:
    """What a judge says of a run: the median of three votes, and why."""
    votes = [round(max(0.0, value + by), 2) for by in (-0.05 * number, 0.0, 0.1)]
    reason = (
        "It asked before it moved a mail, and moved the right one."
        if value > 0.5
        else "It moved a mail that was not asked for."
    )
    await runs.reward(
        name,
        value,
        name="judge",
        source="judge",
        reason=reason,
        meta={"values": votes, "cost": 0.026, "tokens": 4000, "judged_with": 4},
    )


async def report(plane: Plane) -> None:
    """A judge that is at work now. It is forgotten after a minute."""
    spent = {"calls": 36, "tokens": 48_200, "dollars": 0.31, "tokens_limit": 2_000_000, "dollars_limit": 5.0}
    body = {
        "worker": "judge-1", "names": ["judge"], "model": "openai/gpt-4o-mini", "concurrency": 4, "working": 1, "groups_per_minute": 6.5, "seconds_per_group": 8.2,
        "cost_per_group": 0.026, "spread": 0.06, "scored": 12, "postponed": 1, "spent": spent, "audit": {"value": 0.83, "pairs": 8},
    }  # fmt: skip
    assert (await plane.ask("POST", "/judge/report", body))[0] == 200


async def make_trial(runs: Runs, tested: str, control: str) -> None:
    """Episodes of two arms, of which the tested one does better: the gate has something to look at.

    They are of now: a reward that comes hours after its run comes too late for the gate.
    """
    runs.clock = runs.plane.deps.now() - 60
    for n in range(24):
        arm = {"adapter": control, "arm": "control"} if n % 3 == 2 else {"adapter": tested}
        name, value = f"trial-{n:02}", 0.55 + 0.15 * math.sin(n) + (0.0 if n % 3 == 2 else 0.12)
        await runs.talk(name, 0, task="inbox-trial", chances="live=0.7 control=0.3", done=True, **arm)
        await runs.reward(name, round(value, 2))
