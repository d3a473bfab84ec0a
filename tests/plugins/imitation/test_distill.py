from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.support.tiny import make_config

from slipstream.contract import CallRecord, EpisodeDetail, FeedbackIn, Reward
from slipstream.errors import StartError
from slipstream_imitation.distill import distill, edits_of, lines_of, told
from slipstream_trainer.run import export_training

NOWHERE = "http://127.0.0.1:9"
SHOWN = [{"role": "user", "content": "w3"}, {"role": "assistant", "content": "w4"}]
"""What the agent shows as an example: the model never said it."""


def call(episode: str, number: int, messages: list, reply: str, **changes: object) -> dict:
    return {
        "id": f"{episode}-{number}", "episode": episode, "number": number, "at": float(number), "seconds": 1.0, "dialect": "chat", "model": "gpt",
        "adapter": None, "status": 200, "outcome": "ok", "trainable": False, "untrainable_reason": "external", "messages": messages,
        "reply": [{"role": "assistant", "content": reply, "refusal": None}],
    } | changes  # fmt: skip


def episode(name: str, says: str = "w9", reward: float | None = 1.0, **changes: object) -> dict:
    """Two calls: the second goes on with the first."""
    asked = [*SHOWN, {"role": "user", "content": [{"type": "text", "text": "w5"}]}]
    after = [*asked, {"role": "assistant", "content": f"{says} {says}"}, {"role": "user", "content": "w7"}]
    return {
        "id": name, "key": "-", "task": "t", "split": "train", "model": "gpt", "adapter": None, "state": "done", "started": 0.0, "ended": 1.0,
        "calls": 2, "reward": reward, "call_list": [call(name, 0, asked, f"{says} {says}"), call(name, 1, after, says)],
    } | changes  # fmt: skip


def written(path: Path, episodes: list[dict]) -> Path:
    path.write_text("\n".join(map(json.dumps, episodes)))
    return path


def good_and_bad(n: int = 12) -> list[dict]:
    return [
        episode(f"e{i}", "w9" if i % 2 else "w20", float(i % 2), task=f"t{i // 2}", rewards=[]) for i in range(2 * n)
    ]


def says(config, adapter: Path, word: str) -> float:
    """How likely the adapted model is to begin its reply so, less what the base model does."""
    import torch

    from slipstream_trainer.model.adapter import load_adapter
    from slipstream_trainer.model.policy import load_policy

    model, tokenizer = load_policy(config)
    load_adapter(model, adapter)
    text = tokenizer.apply_chat_template(
        [*SHOWN, {"role": "user", "content": "w5"}], add_generation_prompt=True, tokenize=False
    )
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    place = tokenizer.convert_tokens_to_ids(word)
    with torch.no_grad(), model.disable_adapter():
        base = model(ids).logits[0, -1].log_softmax(-1)[place]
    with torch.no_grad():
        return float(model(ids).logits[0, -1].log_softmax(-1)[place] - base)


@pytest.mark.parametrize("method", ["sft", "dpo", "kto"])
def test_the_better_runs_are_learned(tiny, tmp_path, method: str, monkeypatch) -> None:
    told, publish = [], export_training.publish_adapter
    monkeypatch.setattr(export_training, "publish_adapter", lambda *a: (told.append(a[-1]), publish(*a))[1])
    config = make_config(tiny, tmp_path / "data", learning_rate="auto")
    source = written(tmp_path / "x.jsonl", good_and_bad())
    figures = distill(config, source, method=method, teacher="gpt", out=tmp_path / "out")  # type: ignore[arg-type]
    assert figures["loss"] < figures["loss_base"] - 0.01
    assert len({(e.key, e.episode) for e in told[0]}) == figures["runs"], "so that forgetting one finds the version"
    assert figures["rows"] == (24 if method == "kto" else 12)
    assert figures["left_out"] == ({"not_chosen": 12} if method == "sft" else {})
    assert says(config, tmp_path / "out", "w9") > says(config, tmp_path / "out", "w20") + 0.02
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_replies_alone_count_and_calls_that_go_on_are_one_sequence(tiny, tmp_path) -> None:
    from slipstream_imitation.distill import RunReader, _speech

    tokenizer, ends = _speech(str(tiny))
    run = RunReader(tokenizer, ends, 1000, None).run(EpisodeDetail.model_validate(episode("e")))
    (line,) = run.imitated
    words = tokenizer.convert_ids_to_tokens(line.ids)
    assert [w for w, said in zip(words, line.said, strict=True) if said] == ["w9", "w9", "<end>", "w9", "<end>"]
    assert words.count("w4") == 1 and words.count("w5") == 1  # the example and the parts of a content are there
    assert lines_of([]) == []


def test_what_is_left_out_says_why(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "data")
    picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
    thumb = {"name": "thumbs", "value": -1.0, "episode": "down", "at": 2.0}
    rows = [
        episode("good"), episode("worse", reward=0.5), episode("none", reward=None), episode("test", split="eval"),
        episode("open", state="open"), episode("down", rewards=[thumb]),
        episode("seen", call_list=[call("seen", 0, picture, "w9")]),
        episode("other", call_list=[call("other", 0, SHOWN[:1], "w9", model="else")]),
        episode("gone", call_list=[call("gone", 0, SHOWN[:1], "[DAY]", untrainable_reason="redacted")]),
        episode("failed", call_list=[call("failed", 0, SHOWN[:1], "w9", outcome="error")]),
    ]  # fmt: skip
    found = distill(config, written(tmp_path / "x.jsonl", rows), teacher="gpt", least=0.8, dry_run=True)
    assert found["runs"] == 1
    assert found["left_out"] == {"low_reward": 1, "no_reward": 1, "eval": 1, "open": 1, "thumbs_down": 1, "nothing_to_learn": 4}  # fmt: skip
    assert found["calls_left_out"] == {"not_text": 1, "other_model": 1, "failed": 1, "redacted": 1}
    assert not (tmp_path / "data").exists()
    with pytest.raises(StartError, match=r"no run of gpt can be trained on by dpo.*the only run of their task"):
        distill(config, written(tmp_path / "y.jsonl", rows[:1]), method="dpo", teacher="gpt")
    with pytest.raises(StartError, match=r"all 1 runs are good.*--min-reward"):
        distill(config, tmp_path / "y.jsonl", method="kto")


def test_an_edit_is_preferred_to_what_it_replaces(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "data", learning_rate=1e-2)
    edit = {
        "name": "score",
        "value": 0.0,
        "source": "human",
        "call": "e0-0",
        "meta": {"edited": "w30 w31"},
        "at": 1.0,
    }
    rows = [episode(f"e{i}", reward=None, rewards=[edit | {"episode": f"e{i}", "call": f"e{i}-0"}]) for i in range(4)]
    figures = distill(config, written(tmp_path / "x.jsonl", rows), method="dpo", out=tmp_path / "dpo")
    assert (figures["runs"], figures["rows"]) == (4, 4)
    assert says(config, tmp_path / "dpo", "w30") > says(config, tmp_path / "dpo", "w9")
    distill(config, tmp_path / "x.jsonl", method="sft", out=tmp_path / "sft")
    assert says(config, tmp_path / "sft", "w30") > 1.0
    calls = [CallRecord.model_validate(c) for c in rows[0]["call_list"]]
    assert edits_of(calls, EpisodeDetail.model_validate(rows[0]).rewards) == {"e0-0": "w30 w31"}
    said = FeedbackIn(reply="w40", call="e0-1").reward("user").model_dump(exclude={"done"})
    assert edits_of(calls, [Reward.model_validate(said | {"episode": "e0", "at": 9.0})]) == {"e0-1": "w40"}


@pytest.mark.parametrize(
    ("thumbs", "edited", "imitated", "labels"),
    [
        ([("e-0", "down"), ("e-1", "up")], None, [["w9", "<end>"]], {("w9 w9 <end>", False), ("w9 <end>", True)}),
        ([("e-1", "up"), ("e-0", "down")], None, [["w9", "<end>"]], {("w9 w9 <end>", False), ("w9 <end>", True)}),
        ([(None, "down")], None, [], {("w9 w9 <end> w9 <end>", False)}),
        ([("e-1", "up"), (None, "down")], None, [], {("w9 w9 <end> w9 <end>", False)}),
        ([("e-0", "down"), ("e-0", "up")], None, [["w9", "w9", "<end>", "w9", "<end>"]], {("w9 w9 <end>", True)}),
        (
            [(None, "down")],
            "e-0",
            [["w30", "<end>"]],
            {("w30 <end>", True), ("w9 w9 <end>", False), ("w9 <end>", False)},
        ),
        ([("e-0", "down")], "e-0", [["w30", "<end>"], ["w9", "<end>"]], {("w30 <end>", True), ("w9 w9 <end>", False)}),
    ],
)
def test_a_thumb_is_about_its_call(tiny, thumbs, edited, imitated, labels) -> None:
    from slipstream_imitation.distill import RunReader, _speech, lesson_of

    given = [FeedbackIn(thumb=thumb, call=call) for call, thumb in thumbs]
    given += [FeedbackIn(reply="w30", call=edited)] if edited else []
    rewards = [
        said.reward("user").model_dump(exclude={"done"}) | {"episode": "e", "at": float(at)}
        for at, said in enumerate(given)
    ]
    run = EpisodeDetail.model_validate(episode("e", reward=None, rewards=rewards))
    tokenizer, ends = _speech(str(tiny))
    other = EpisodeDetail.model_validate(episode("x", "w20", reward=None, rewards=[]))
    opposite = "down" if all(good for _, good in labels) else "up"
    other.rewards = [
        Reward.model_validate(
            FeedbackIn(thumb=opposite).reward("user").model_dump(exclude={"done"}) | {"episode": "x", "at": 0.0}
        )
    ]

    def said(row) -> list[str]:
        words = tokenizer.convert_ids_to_tokens(row["ids"])
        return [word for word, counts in zip(words, row["said"], strict=True) if counts]

    found = lesson_of([run], RunReader(tokenizer, ends, 1000, None), "sft", None)
    assert sorted(said(row) for part in found.parts for row in part) == sorted(imitated)
    found = lesson_of([run, other], RunReader(tokenizer, ends, 1000, None), "kto", None)
    assert {(" ".join(said(row)), row["good"]) for row in found.parts[0]} == labels


def test_clear_errors(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "data")
    with pytest.raises(StartError, match=r"x.jsonl:1: key: Field required; give what `slipstream export"):
        distill(config, written(tmp_path / "x.jsonl", [{"id": "a"}]))
    with pytest.raises(StartError, match="does not exist: give an existing folder"):
        distill(make_config(tmp_path / "none", tmp_path / "data"), tmp_path / "x.jsonl")
    mute = shutil.copytree(tiny, tmp_path / "mute")
    (mute / "chat_template.jinja").unlink()
    with pytest.raises(StartError, match="has no chat template"):
        distill(make_config(mute, tmp_path / "data"), tmp_path / "x.jsonl")
    (tmp_path / "out").mkdir()
    with pytest.raises(StartError, match="is there already"):
        distill(config, tmp_path / "x.jsonl", out=tmp_path / "out")


def test_every_reason_has_words() -> None:
    from slipstream_imitation.distill import LEFT_OUT, Material

    lesson = Material()
    lesson.left_out.update(LEFT_OUT)
    assert len(list(told(lesson))) == 1 + len(LEFT_OUT)
