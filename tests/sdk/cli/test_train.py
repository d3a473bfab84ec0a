from __future__ import annotations

import pytest

from slipstream.cli import main
from slipstream.client import Client
from slipstream.contract import TrainAgain, TrainAgainIn


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--once", "--set", "trainer.los=grpo"]) == 2
    assert (
        capsys.readouterr().err
        == "slipstream train: --set trainer.los: unknown setting trainer.los; did you mean trainer.loss?\n"
    )


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--task", "mail"], "add --from-store"),
        (["--epochs", "2"], "add --from-store"),
        (["--from-store", "--once"], "leave out the options"),
        (["--from-store", "--tag", "no"], "write KEY=VALUE"),
        (["--epochs", "0"], "add --from-store"),
        (["--from-store", "--stop", "--epochs", "2"], "leave out --epochs"),
        (["--from-store", "--epochs", "0"], "train: --epochs: Input should be greater than or equal to 1"),
        (["--from-store", "--epochs", "1001"], "train: --epochs: Input should be less than or equal to 1000"),
    ],
)
def test_options_that_do_not_go_together(args: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *args]) == 2
    assert why in capsys.readouterr().err


def test_stored_groups_go_to_the_running_trainer(capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    seen: list[tuple[TrainAgainIn, dict[str, object]]] = []

    def answer(_: Client, again: TrainAgainIn, **which: object) -> TrainAgain:
        seen.append((again, which))
        return TrainAgain(groups=2, passes=4, episodes=16, corrected=1, left_out={"trained": 3, "equal_rewards": 1})

    monkeypatch.setattr(Client, "train_again", answer)
    given = ["--from-store", "--epochs", "2", "--task", "mail", "--since", "1000", "--url", "http://127.0.0.1:9"]
    assert main(["train", *given]) == 0
    assert seen == [(TrainAgainIn(epochs=2), {"task": "mail", "since": 1000.0})]
    said = capsys.readouterr().out
    assert "2 groups of 16 episodes go to the trainer, 4 passes in all" in said
    assert "3 left out: trained on often enough" in said and "1 of them had other rewards" in said
