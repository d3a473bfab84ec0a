"""Each script of findings/ has the form that its README asks for. `make findings` runs them, which needs downloads."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support import ROOT

SCRIPTS = sorted((ROOT / "findings").glob("*.sh"))
HEADER_LINES = 6


def test_there_are_some() -> None:
    assert len(SCRIPTS) >= 25


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_finding_has_its_form(script: Path) -> None:
    first, *lines = script.read_text().splitlines()
    header = lines[: lines.index("set -eu")]
    assert first == "#!/bin/sh" and os.access(script, os.X_OK)
    assert 3 <= len(header) <= HEADER_LINES and all(line.startswith("# ") for line in header)
    for word in ("Guess", "Is", "Seen in|Seen with", "Here"):
        assert re.search(f"^# ({word})\\b", "\n".join(header), re.MULTILINE), word
    text = "\n".join(lines[len(header) :])
    assert "folder=$(mktemp -d)" in text and "trap 'rm -rf \"$folder\"' EXIT" in text
    installs = re.findall(r"pip install .*\\\n(.*)", text)
    assert installs and all(re.fullmatch(r"'[\w.\[\]-]+==[\w.!]+'", p) for line in installs for p in line.split())
    assert "slipstream" not in text
    assert 'print("behaviour: ' in text and 'sys.exit("CHANGED' in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_files_that_a_finding_names_are_there(script: Path) -> None:
    header = script.read_text().split("set -eu")[0]
    named = re.findall(r"\b(?:proxy|judge|trainer|engine|sdk|plugins|docs|tests|benchmarks)/[\w/.]+\.(?:py|md)", header)
    assert named and all((ROOT / name).is_file() for name in named)


def test_the_readme_knows_each() -> None:
    told = set(re.findall(r"^\| `([a-z0-9-]+)\.sh`", (ROOT / "findings" / "README.md").read_text(), re.MULTILINE))
    assert told == {script.stem for script in SCRIPTS}


def test_a_changed_behaviour_fails_the_table(tmp_path: Path) -> None:
    for folder in ("scripts", "findings"):
        (tmp_path / folder).mkdir()
    (tmp_path / "scripts" / "findings.sh").write_text((ROOT / "scripts" / "findings.sh").read_text())
    for name, code in (("stays", 0), ("went", 1)):
        script = tmp_path / "findings" / f"{name}.sh"
        script.write_text(f"#!/bin/sh\necho 'behaviour: It {name}.'\nexit {code}\n")
        script.chmod(0o755)
    run = ["sh", str(tmp_path / "scripts" / "findings.sh")]
    both = subprocess.run(run, capture_output=True, text=True, check=False)
    rows = [[cell.strip() for cell in line.split("|")] for line in both.stdout.splitlines()[2:]]
    assert [(row[1], row[2], row[4]) for row in rows] == [("stays", "0", "It stays."), ("went", "1", "It went.")]
    assert both.returncode == 1
    assert subprocess.run([*run, "stays"], capture_output=True, check=False).returncode == 0
