"""Every axis letter in the trainer's names stands in the package's legend."""

from __future__ import annotations

import re
from pathlib import Path

import slipstream_trainer

FOLDER = Path(str(slipstream_trainer.__file__)).parent
SUFFIX = re.compile(r"\b(?!lora_)[a-z][a-z_]*_([A-Z]{1,3})\b")


def test_every_letter_is_explained() -> None:
    legend = set(re.findall(r"^    ([A-Z])   ", str(slipstream_trainer.__doc__), re.M))
    used = {letter for p in FOLDER.rglob("*.py") for found in SUFFIX.findall(p.read_text()) for letter in found}
    assert used <= legend, used - legend
    assert legend <= used | {"H"}, f"explained, and used nowhere: {legend - used}"
