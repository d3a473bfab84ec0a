from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.control import FakeControl, serve
from tests.support.tiny import conversation, make_config, table

from slipstream.errors import StartError
from slipstream_trainer.run.export_training import train

NOWHERE = "http://127.0.0.1:9"


def export(path: Path, episodes: int = 8, reward: bool = True) -> Path:
    rows = []
    for i in range(episodes):
        call = {"id": f"e{i}-0", "number": 0, "prompt_ids": [3, 4, 5, 6 + i % 2], "completion_ids": [[9 + i, 12, 1]], "logprobs": [[-4.0, -4.0, -4.0]],
                "outcome": "ok", "trainable": True, "sampling": {}}  # fmt: skip
        rows.append(
            {"id": f"e{i}", "task": f"t{i % 2}", "reward": float(i > 3) if reward else None, "call_list": [call]}
        )
    path.write_text("\n".join(json.dumps(r) for r in rows))
    return path


def test_an_export_becomes_an_adapter(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "data", max_ratio=1e6, max_kl=1e6)
    assert train(config, from_export=export(tmp_path / "x.jsonl"), out=tmp_path / "out", url=NOWHERE) == 0
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert train(config, from_export=tmp_path / "x.jsonl", url=NOWHERE) == 0
    assert (tmp_path / "data" / "adapters" / "tiny@1" / "adapter_config.json").is_file()


def test_what_is_registered_names_its_episodes_and_its_parent(tiny, tmp_path) -> None:
    found = export(tmp_path / "x.jsonl", 4)
    rows = [
        json.loads(line) | {"key": "-", "group": f"g{n % 2}"} for n, line in enumerate(found.read_text().split("\n"))
    ]
    found.write_text("\n".join(json.dumps(row | {"reward": float(n > 1)}) for n, row in enumerate(rows)))
    with serve(FakeControl()) as control:
        config = make_config(tiny, tmp_path / "data", max_ratio=1e6, max_kl=1e6)
        assert train(config, from_export=found, url=control.url) == 0
        start = str(config.adapters_dir / "tiny@1")
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"init_adapter": start})})
        assert train(config, from_export=found, url=control.url) == 0
        first, second = control.registered
    assert sorted((e["key"], e["episode"], e["group"], e["reward"]) for e in first["episodes"]) == [
        ("-", f"e{n}", f"g{n % 2}", float(n > 1)) for n in range(4)
    ]
    assert (first["parent"], second["parent"], second["meta"]) == (None, "tiny@1", {"offline": True})


def test_once_then_resume_is_the_same_as_in_one_go(tiny, tmp_path) -> None:
    found = export(tmp_path / "x.jsonl")
    made = []
    for name, runs in {"whole": [{}], "parts": [{"once": True}, {"resume": True}]}.items():
        config = make_config(tiny, tmp_path / name, min_groups=1, max_groups=1, max_ratio=1e6, max_kl=1e6)
        for i, flags in enumerate(runs):  # type: ignore[arg-type]
            assert train(config, from_export=found, out=tmp_path / f"{name}{i}", url=NOWHERE, **flags) == 0
        made.append((tmp_path / f"{name}{len(runs) - 1}" / "adapter_model.safetensors").read_bytes())  # type: ignore[arg-type]
    assert made[0] == made[1]


def test_sft_makes_the_chosen_more_likely(tiny, tmp_path) -> None:
    from tests.support.tiny import make_trainer

    from slipstream_trainer.algorithm.learning_rate import StepPace
    from slipstream_trainer.batch.dataset import read_rows, samples_of
    from slipstream_trainer.step.step import train as step

    found = export(tmp_path / "x.jsonl")
    trainer = make_trainer(make_config(tiny, tmp_path / "d", algorithm="sft", max_kl=100.0), warm=False)
    losses = []
    for i in range(5):
        result = step(trainer, samples_of(read_rows(found), trainer.processing_class, sft=True), StepPace(), i)
        assert result.outcome == "step", result.reason
        losses.append(result.figures["loss"])
    assert losses[-1] < losses[0] - 0.1
    assert result.figures["untrainable"] == {"not_chosen": 4}


def test_one_step_online(tiny, tmp_path) -> None:
    with serve(FakeControl()) as control:
        config = make_config(tiny, tmp_path)
        assert train(config, once=True, url=control.url) == 1
        control.add("b0", table(conversation(0)))
        control.add("b1", table(conversation(1)))
        assert train(config, once=True, url=control.url) == 0
        assert control.done == {"b0": "trained"}


def test_what_cannot_be_trained_on_is_refused(tiny, tmp_path) -> None:
    config = make_config(tiny, tmp_path / "d")
    with pytest.raises(StartError, match="no such file"):
        train(config, from_export=tmp_path / "none.jsonl", url=NOWHERE)
    with pytest.raises(StartError, match="no_reward"):
        train(config, from_export=export(tmp_path / "x.jsonl", reward=False), url=NOWHERE)


def test_distillation_from_episodes_that_have_only_their_text_and_on_from_there(tiny, tmp_path) -> None:
    """An external model's episodes are imitated by the command; the next run starts from that adapter."""
    from slipstream.cli import main

    ask = {"role": "user", "content": "w4 w5"}
    rows = [
        {
            "episode": f"x{i}",
            "task": "t",
            "reward": reward,
            "messages": [ask, {"role": "assistant", "content": f"w{word} w9"}],
        }
        for i, (word, reward) in enumerate(((7, 1.0), (8, 0.0)))
    ]
    (tmp_path / "big.jsonl").write_text("\n".join(json.dumps(r) for r in rows))
    common = ["train", "--from-export", str(tmp_path / "big.jsonl"), "--url", NOWHERE, "--set", "trainer.algorithm=sft"]
    common += [
        f"--set={k}={v}"
        for k, v in {"data_dir": tmp_path / "d", "engine.model": tiny, "engine.name": "tiny", "trainer.threads": 1, "trainer.lora_rank": 8,
                     "trainer.learning_rate": 0.002, "trainer.max_kl": 1e6}.items()
    ]  # fmt: skip
    assert main([*common, "--out", str(tmp_path / "first")]) == 0
    assert main([*common, "--init-adapter", str(tmp_path / "first"), "--out", str(tmp_path / "second")]) == 0
    assert main([*common, "--out", str(tmp_path / "second")]) == 2, "adapters are immutable"

    def likelihood(adapter: str | None) -> list[float]:
        from tests.support.tiny import make_trainer

        from slipstream_trainer.batch.dataset import read_rows, samples_of

        trainer = make_trainer(make_config(tiny, tmp_path / "l", init_adapter=adapter), warm=False)
        samples = samples_of(read_rows(tmp_path / "big.jsonl"), trainer.processing_class, sft=True)
        return [_likelihood(trainer, s) for s in samples]

    none, first, second = (likelihood(a and str(tmp_path / a)) for a in (None, "first", "second"))
    assert none[0] < first[0] < second[0], "the good one is imitated, more so after the second run"
    assert second[0] - none[0] > second[1] - none[1], "and more than the bad one"


def _likelihood(trainer, s) -> float:
    import torch

    from slipstream_trainer.batch.layout import make_plan

    work = trainer.start(make_plan([s]))
    with torch.no_grad():
        return sum(float(trainer.forward(micro, work)[0].sum()) for micro in work.plan.micro)
