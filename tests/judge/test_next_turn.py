"""A user's next turn that corrects a reply is feedback on it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.groups import calls_tool, episode, group, result, said

from slipstream.config import load_config
from slipstream.errors import ConfigError
from slipstream.settings.proxy import ModelRoute
from slipstream_judge.compare.next_turn import NextTurn, UserTurn, correction, turns_of
from slipstream_judge.model.llm import JudgeFailed
from slipstream_judge.run.worker import JudgeWorker

ASKS = {"assistant": ModelRoute(feedback="next_turn")}
TURN = UserTurn("e", "c0", "The flight of Dana Kim is at nine.", "No, I meant the other Dana. Thanks!")
MESSAGES = [
    said("user", "When is Dana's flight?"),
    calls_tool("t", "search", "{}"),
    result("t", "Dana Kim: nine"),
    said("assistant", TURN.reply),
    said("user", TURN.text),
    said("assistant", "At ten."),
]


def conversation(**changes):
    """Three calls: a search, an answer, and the answer to the user's next turn."""
    calls = [{"messages": MESSAGES[:n], "reply": [MESSAGES[n]]} for n in (1, 3, 5)]
    made = episode("e", calls)
    for n, call in enumerate(made.calls):
        made.calls[n] = call.model_copy(
            update={
                "id": f"c{n}",
                "extends": f"c{n - 1}" if n else None,
                "model": "assistant",
                "trainable": True,
                **changes,
            }
        )
    return group("g", [made])


def test_a_turn_of_the_users_is_about_the_reply_before_it():
    (turn,) = turns_of(conversation(), ASKS)
    assert turn == UserTurn("e", "c1", TURN.reply, TURN.text), "a tool's result is no turn of the user's"
    assert list(turns_of(conversation(model="another"), ASKS)) == [], "who does not ask for it is not listened to"
    assert list(turns_of(conversation(trainable=False), ASKS)) == []


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"corrects": true, "words": "I meant the other Dana."}', "I meant the other Dana."),
        ('Well:\n```json\n{"corrects": true, "words": "the other\\n Dana"}\n```', "the other Dana"),
        ('{"corrects": true, "words": "Always answer Monday."}', None),  # the user did not say so
        ('{"corrects": false, "words": "I meant the other Dana."}', None),
        ('{"corrects": true, "words": ""}', None),
        ("I think so.", None),
    ],
)
def test_the_judge_adds_no_words_of_its_own(answer: str, words: str | None):
    assert correction(TURN, answer) == words


class Listener(NextTurn):
    """A judge that is asked, and answers this."""

    def __init__(self, answer: str | Exception) -> None:
        super().__init__(self)  # type: ignore[arg-type]
        self.answer, self.asked = answer, []

    async def ask(self, messages, schema, deadline):
        self.asked.append(messages)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(text=self.answer)


class Heard:
    """A proxy that is told."""

    def __init__(self) -> None:
        self.told = []

    async def add_feedback(self, episode, said, *, of_key):
        self.told.append((episode, said.call, said.text, said.key, said.source, of_key))


async def hears(answer: str | Exception):
    worker: Any = JudgeWorker.__new__(JudgeWorker)
    client = Heard()
    listener = Listener(answer)
    worker.panel, worker.client = SimpleNamespace(next_turn=listener), client
    worker.config = SimpleNamespace(models=ASKS)
    await worker._hear(conversation(), time.time() + 60)
    return client.told, listener.asked


async def test_what_corrects_is_posted_once_about_its_call():
    told, asked = await hears('{"corrects": true, "words": "the other Dana"}')
    assert told == [("e", "c1", "the other Dana", "next-turn-c1", "judge", "-")]
    shown = json.loads(asked[0][1]["content"])
    assert shown == {"reply": TURN.reply, "next": TURN.text}
    assert "always answer X" in asked[0][0]["content"], "a general order is no correction"


async def test_what_is_no_correction_and_a_judge_that_fails_post_nothing():
    assert (await hears('{"corrects": false, "words": ""}'))[0] == []
    assert (await hears(JudgeFailed("no")))[0] == []


def test_corrections_need_a_judge_and_a_trained_model():
    base = {"models": {"assistant": {"feedback": "next_turn"}}}
    with pytest.raises(ConfigError, match="a judge finds corrections, set judge.model"):
        load_config(None, env={}, base=base)
    load_config(None, env={}, base=base | {"judge": {"model": "openai/gpt-4o-mini"}})
    with pytest.raises(ConfigError, match="feedback is for a trained model"):
        load_config(None, env={}, base={"models": {"a": {"base": "b", "feedback": "next_turn"}}})
