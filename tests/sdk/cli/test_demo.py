from __future__ import annotations

from pathlib import Path

import pytest

from slipstream.cli import main


def test_a_typo_is_told_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("here/seed-0/success.png")
    before.parent.mkdir(parents=True)
    before.touch()
    assert main(["demo", "--data-dir", "here", "--set", "trainer.los=grpo"]) == 2
    err = capsys.readouterr().err
    assert err == "slipstream demo: --set trainer.los: unknown setting trainer.los; did you mean trainer.loss?\n"
    assert before.exists()


def test_a_seed_is_a_number() -> None:
    with pytest.raises(SystemExit) as e:
        main(["demo", "--seed", "one"])
    assert e.value.code == 2
