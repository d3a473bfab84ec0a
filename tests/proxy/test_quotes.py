"""A side call that quotes a run's replies belongs to that run; what quotes nothing, or an agent's memory, does not."""

from __future__ import annotations

import json
import random

import pytest

from slipstream_proxy.data.episode.memory import EpisodeMemory
from slipstream_proxy.data.episode.shared_table import SharedTable
from slipstream_proxy.data.wire.identity import Tags
from slipstream_proxy.dialects import BY_NAME
from slipstream_proxy.dialects.purpose import order, orders, purpose, quoted, quotes

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
TASK = "Write hello into the file hello.txt and check it."
WORDS = "the file a folder step hello check then write look first next line and test of it run shows".split()
SUMMARIES = {
    "pi": (
        "You are a context summarization assistant. Read the conversation.",
        "[User]: {task}\n\n[Assistant]: {said}",
    ),
    "cline": (
        "Summarize the provided coding session into a concise continuation note.",
        "[Bot]: {said}\n[Tool result]: x",
    ),
    "json": ("Create a summary of this conversation.", '{{"role": "assistant", "content": "{said}"}}'),
    "title": ("Generate a title for this conversation.", "ASSISTANT: {said}"),
}


class World:
    """Runs of one task at the same time, at any of some workers; every request is what a client would send."""

    def __init__(self, memories, rng):
        self.memories, self.rng = memories, rng

    def call(self, body, reply):
        """→ The episode of a call that gets this reply."""
        memory, dialect = self.rng.choice(self.memories), BY_NAME["chat"]
        turn = dialect.turn(body)
        episode = memory.of("key", Tags(), turn, body)
        answer = json.dumps({"choices": [{"index": 0, "message": reply, "finish_reason": "stop"}]}).encode()
        memory.remember(episode, turn, dialect.said(answer, stream=False))
        return episode.id

    def say(self, text, command=None):
        calls = [
            {"id": "x", "type": "function", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        ]
        return {"role": "assistant", "content": text} | ({"tool_calls": calls} if command else {})


@pytest.fixture(params=["alone", "three workers"])
def memories(request, tmp_path):
    if request.param == "alone":
        yield [EpisodeMemory()]
        return
    tables = [SharedTable(tmp_path / "table", 60.0) for _ in range(3)]
    yield [EpisodeMemory(shared=table) for table in tables]
    for table in tables:
        table.close()


@pytest.mark.parametrize("form", SUMMARIES)
def test_a_summary_of_one_of_many_runs_is_in_that_run(memories, form):
    rng = random.Random(form)
    world = World(memories, rng)
    system, template = SUMMARIES[form]
    runs = []
    for _ in range(30):
        talk = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": TASK}]
        first = " ".join(rng.choices(WORDS, k=14))
        reply = world.say(
            f"I begin with the task as it was asked for now.\n{first}" if rng.random() < 0.3 else first, first
        )
        runs.append((world.call({"messages": talk, "tools": TOOLS}, reply), talk, reply))
    assert len({episode for episode, _, _ in runs}) == 30
    rng.shuffle(runs)
    strayed = 0
    for episode, talk, reply in runs:
        told = template.format(task=TASK, said=reply["content"])
        body = {"messages": [{"role": "system", "content": system}, {"role": "user", "content": told}]}
        own = " ".join(rng.choices(WORDS, k=12))
        summary = world.say(f"The user wants a greeting in a file, as all users do.\n{own}")
        found = world.call(body, summary)
        assert found == episode or found not in {e for e, _, _ in runs}, "never in another's"
        strayed += found != episode
        after = [talk[0], {"role": "user", "content": f"Another model wrote this:\n\n{summary['content']}\n\nGo on."}]
        if found == episode and form != "title":  # its first line is that of all summaries
            assert world.call({"messages": after, "tools": TOOLS}, world.say("ok")) == episode
    assert strayed <= 12, "only those whose first words many say, and which call nothing"


def test_what_quotes_no_reply_is_new(memories):
    world = World(memories, random.Random(0))
    said = "The greeting goes into the file hello.txt, as the user of this folder wants."
    talk = [{"role": "system", "content": "You are an agent."}, {"role": "user", "content": TASK}]
    first = world.call({"messages": talk, "tools": TOOLS}, world.say(said))
    for body in (
        {"messages": talk, "tools": TOOLS},
        {"messages": [{"role": "user", "content": f"Is this a good answer?\n{said}"}]},
        {"messages": [{"role": "system", "content": f"What you know: {said}"}, talk[1]], "tools": TOOLS},
        {"messages": [{"role": "user", "content": "Summarize this conversation: hi"}]},
    ):
        assert world.call(body, world.say("ok")) != first


def test_labels_escapes_and_wrappers_do_not_hide_a_quote():
    said = "I looked at the folder and will now go on with step one."
    (wanted,) = quotes({"role": "assistant", "content": said})
    for text in (
        said,
        f"[Assistant]: {said}",
        f"  > **assistant**: {said}</turn>",
        f'{{"role":"assistant","content":"{said}"}}',
    ):
        assert wanted in quoted(text), text
    assert wanted not in quoted(said.replace("folder", "file")) and quotes({"content": "Too short."}) == []
    assert purpose("You are a helpful assistant. Write a poem about a session.") is None


def handed(text):
    arguments = json.dumps({"description": "count", "prompt": text})
    call = {"id": "x", "type": "function", "function": {"name": "agent", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def opened(text):
    """As Qwen Code begins: a context, and an answer that no model gave."""
    began = [{"role": "user", "content": "The context."}, {"role": "assistant", "content": "Got it."}]
    return {"tools": TOOLS, "messages": [{"role": "system", "content": "s"}, *began, {"role": "user", "content": [{"type": "text", "text": text}]}]}  # fmt: skip


def test_a_sub_agent_is_in_the_run_whose_tool_call_told_it_what_to_do(memories):
    world = World(memories, random.Random(1))
    told = "Count the files in this folder and report how many there are.\nThen stop."
    run, other = (world.call(opened(f"{n}: {TASK} Then do it all once more."), handed(told + n)) for n in "ab")
    assert world.call(opened(told + "b"), world.say("It has two files, as far as I can see.")) == other != run
    assert world.call(opened(told + "a"), world.say("It has two files, as far as I can see.")) == run
    tags, body = Tags(), opened(told + "a")
    memories[0].of("key", tags, BY_NAME["chat"].turn(body), body)
    assert tags.kind == "subagent"


def test_a_task_that_an_agent_repeats_in_a_call_makes_no_run_of_it_a_sub_agent(memories):
    world = World(memories, random.Random(1))
    task = "Write hello into the file hello.txt and check it well."
    first = world.call(opened(task), handed(task))
    assert first != world.call(opened(task), handed(task)) != world.call(opened(task), handed(task)) != first
    assert orders(handed("too short")) == []


@pytest.mark.parametrize(
    "reply",
    [
        [handed("Count all of the files that are in here.")],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "input": {"prompt": "Count all of the files that are in here."}}]}],
        [{"type": "function_call", "arguments": '{"message": "Count all of the files that are in here."}'}],
        [{"role": "model", "parts": [{"functionCall": {"name": "a", "args": {"p": "Count all of the files that are in here."}}}]}],
    ],
    ids=["chat", "messages", "responses", "gemini"],
)  # fmt: skip
def test_what_a_tool_call_hands_on_is_found_in_each_format(reply):
    assert orders(reply) == [order("Count all of the files that are in here.\n")]
