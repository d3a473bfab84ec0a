"""Side calls are told from the agent's own: by what they say, by what they go on with, and by how they begin."""

from __future__ import annotations

import json

import pytest
from tests.support.records import NOW, call

from slipstream_proxy.store.conversation.kinds import EpisodeKinds, Opening
from slipstream_proxy.store.values import EpisodeFilter

TOOLS = [{"type": "function", "function": {"name": "bash"}}]
SYSTEM = {
    "role": "system",
    "content": "You are a coding agent. Keep the conversation short, and summarize what you did.",
}
TASK = {"role": "user", "content": "Fix the test"}
ASKED = [
    ("title", "You are a title generator. You output ONLY a thread title. Nothing else.", "Fix the test"),
    ("title", "Generate a concise, sentence-case title (3-7 words) that captures the main topic or goal of this coding session.", "x"),
    ("title", "Analyze if this message indicates a new conversation topic. If it does, extract a 2-3 word title.", "x"),
    ("title", "", "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history."),
    ("title", "", "Generate a title for this conversation:\n"),
    ("compaction", "You are the component that summarizes internal chat history into a given structure.", "x"),
    ("compaction", "You are a context summarization assistant. Read a conversation between a user and an assistant.", "x"),
    ("compaction", "Summarize the provided coding session into a concise continuation note with detailed next steps", "x"),
    ("compaction", "", "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM."),
    ("summary", "", "*Briefly* summarize this partial conversation about programming."),
    ("summary", "You are a helpful AI assistant tasked with summarizing conversations.", "x"),
    ("main", "You are a helpful assistant.", "Write a title for my blog about cats"),
    ("main", "You are a helpful assistant.", "Summarize the plot of Hamlet"),
    ("main", "", "Summarize the history of Rome"),
    ("main", "Answer from the context.", "Using the context below, summarize the answer."),
    ("main", "", "What is 2 + 2?"),
]  # fmt: skip


def opening(system: str, user: str, *, tools: bool = False) -> Opening:
    messages = [{"role": "system", "content": system}] if system else []
    return Opening([*messages, {"role": "user", "content": user}], tools=tools)


@pytest.mark.parametrize(("kind", "system", "user"), ASKED)
def test_an_instruction_says_what_a_call_without_tools_is_for(kind, system, user):
    assert EpisodeKinds().of(opening(system, user), None, "") == kind
    parts = [{"type": "text", "text": user[:5]}, {"type": "text", "text": user[5:]}]
    found = Opening(
        [{"role": "system", "content": system}, {"role": "user", "content": [{"type": "image_url"}, *parts]}],
        tools=False,
    )
    assert EpisodeKinds().of(found, None, "") == kind
    long = user + "\nsaid in the dialog" * 1000
    assert kind == "main" or EpisodeKinds().of(opening(system, long), None, "") == kind
    # an agent with tools that is told to summarize is the agent
    assert EpisodeKinds().of(opening(system, user, tools=True), None, "") == "main"


def test_a_run_with_side_calls():
    kinds = EpisodeKinds()

    def add(name: str, opened: Opening, extends: str | None = None, said: str = "") -> str:
        found = kinds.of(opened, extends, said)
        kinds.note(name, found, opened)
        return found

    lead = Opening([SYSTEM, TASK], tools=True)
    assert add("title", opening("You are a title generator for the conversation", "Fix the test")) == "title"
    assert add("a", lead) == "main"
    assert add("b", lead, "a") == "main"
    assert add("s1", opening("You search files.", "Where is the test?", tools=True)) == "subagent"
    assert add("s2", opening("You search files.", "Where is the test?", tools=True), "s1") == "subagent"
    assert add("side", opening("Is this command safe?", "rm -rf /")) == "side"
    assert add("clock", Opening([{"role": "system", "content": "It is 12:01."}, TASK], tools=True)) == "main"
    ask = {
        "role": "user",
        "content": "Your task is to create a detailed summary of the conversation so far, paying attention",
    }
    assert add("c", Opening([SYSTEM, TASK, ask], tools=True), "b") == "compaction"
    after = {"role": "user", "content": "This session is being continued. The summary: …"}
    assert add("d", Opening([SYSTEM, after], tools=True)) == "main"
    assert add("e", Opening([SYSTEM, after], tools=True), "c") == "main"
    assert add("own", opening("", "x"), said="planner") == "planner"


@pytest.mark.parametrize(
    "strange", [["text"], [None], [{}], [{"role": 5, "content": {"a": 1}}], [], [{"role": "system"}], [[1]]]
)
def test_any_messages_have_a_kind(strange):
    assert EpisodeKinds().of(Opening(strange, tools=False), None, "") == "main"


def test_side_calls_are_stored_as_such_found_and_not_rivals(opened):
    """Eight title calls of one text do not become a group, and a run's title is not trained on."""
    store = opened()
    say = [{"role": "system", "content": "You are a title generator. You output ONLY a thread title."}, TASK]
    alone = [call(f"ep-{n}", messages=say, task=None, grouped=False, at=NOW + n, done=True) for n in range(4)]
    run = [
        call("run", messages=say, id="A" * 26, at=NOW + 20),
        call("run", messages=[SYSTEM, TASK], tools=TOOLS, id="B" * 26, at=NOW + 21, done=True),
        call("named", kind="planner", at=NOW + 22, done=True),
    ]
    store.ingest([*alone, *run], {})
    detail = store.episodes.get("-", "run")
    assert [(c.kind, c.trainable, c.untrainable_reason) for c in detail.call_list] == [
        ("title", False, "a title call"),
        ("main", True, None),
    ]
    found = {
        kind: {e.id for e in store.episodes.page(EpisodeFilter(kind=kind)).episodes}
        for kind in ("title", "main", "planner", "x")
    }
    assert found == {
        "title": {"run", *(f"ep-{n}" for n in range(4))},
        "main": {"run"},
        "planner": {"named"},
        "x": set(),
    }
    with store.db.read() as tx:
        assert dict(tx.all("SELECT kind, count(*) FROM calls GROUP BY kind")) == {"title": 5, "main": 1, "planner": 1}
        assert tx.all("SELECT id FROM t_episodes WHERE id LIKE 'ep-%' AND grp IS NOT NULL") == []


def test_a_run_is_told_apart_after_a_restart_too(opened):
    """And calls of a kind that is trained on are."""
    ask = {"role": "user", "content": "Where is the test?"}
    for untrained in (frozenset(), frozenset({"subagent"})):
        store = opened(untrained_kinds=untrained)
        store.ingest([call("r", messages=[SYSTEM, TASK], tools=TOOLS, at=NOW)], {})
        store.ingest([call("r", messages=[{"role": "system", "content": "Search."}, ask], tools=TOOLS, at=NOW + 1)], {})
        found = store.episodes.get("-", "r")
        store.close()
    kinds = [(c.kind, c.untrainable_reason) for c in found.call_list]
    assert kinds == [("main", None), ("subagent", None), ("main", None), ("subagent", "a subagent call")]


def test_one_that_asks_what_a_tool_call_handed_on_is_a_sub_agent_s():
    """Qwen Code's sub-agents begin with the same first message as the run."""
    kinds = EpisodeKinds()
    task, told = ("Write hello into the file %s and check it." % name for name in "ab")

    def began(system, text):
        context = [{"role": "user", "content": "context"}, {"role": "assistant", "content": "Got it."}]
        return Opening([{"role": "system", "content": system}, *context, {"role": "user", "content": text}], tools=True)

    call = {"function": {"name": "agent", "arguments": json.dumps({"prompt": told, "task": task})}}
    kinds.note("a", kinds.of(began("main", task), None, ""), began("main", task), [json.dumps({"tool_calls": [call]})])
    assert kinds.of(began("other", told), None, "") == "subagent"
    assert kinds.of(began("clock", task), None, "") == "main" == kinds.of(began("main", "x"), None, "")
