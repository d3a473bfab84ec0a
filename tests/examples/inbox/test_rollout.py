"""How a reply is read and carried out in process: as the agent does it with a server between."""

from __future__ import annotations

from inbox import inbox, rollout


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_the_good_moves_are_rewarded() -> None:
    task = inbox.make_task(4)
    episode = rollout.start(task)
    mail = next(m for m in task.mails if m.name == task.name)
    rollout.act(episode, call("search", f'{{"keywords": "{task.name}"}}'))
    assert episode.messages[-1]["content"] == f"mail {mail.id}: {mail.thing} {mail.name}"
    rollout.act(episode, call("read", f'{{"id": {mail.id}}}'))
    assert episode.messages[-1]["content"] == mail.body
    assert not episode.done
    rollout.act(episode, call("answer", f'{{"text": "{task.answer}"}}'))
    assert (episode.done, episode.reward, episode.calls) == (True, 1.0, 3)


def test_plain_text_and_the_last_call_end_an_episode_without_reward() -> None:
    episode = rollout.start(inbox.make_task(4))
    rollout.act(episode, "it is monday")
    assert (episode.done, episode.reward) == (True, 0.0)
    episode = rollout.start(inbox.make_task(4))
    for _ in range(rollout.MAX_CALLS):
        assert not episode.done
        rollout.act(episode, call("search", '{"keywords": "the"}'))
    assert (episode.done, episode.reward) == (True, 0.0)


def test_odd_answers_get_nothing() -> None:
    for arguments in ("[]", '{"day": "monday"}', "null"):
        episode = rollout.start(inbox.make_task(4))
        rollout.act(episode, call("answer", arguments))
        assert (episode.done, episode.reward) == (True, 0.0)
