from __future__ import annotations

import pytest

from slipstream.cli import main


def test_without_a_model_there_is_nothing_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--port", "0"]) == 2
    assert (
        capsys.readouterr().err
        == "slipstream up: no model: give --model PATH_OR_NAME, or --engine URL of an engine that already runs\n"
    )


def test_a_setting_that_can_not_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--port", "70000"]) == 2
    assert capsys.readouterr().err.startswith("slipstream up: --set proxy.port: proxy.port: Input should be less")
