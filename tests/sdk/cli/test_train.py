from __future__ import annotations

import pytest

from slipstream.cli import main


def test_a_wrong_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--once", "--set", "trainer.los=grpo"]) == 2
    assert (
        capsys.readouterr().err
        == "slipstream train: --set trainer.los: unknown setting trainer.los; did you mean trainer.loss?\n"
    )
