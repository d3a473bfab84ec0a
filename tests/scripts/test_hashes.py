"""Wheels of the images have hashes, and images of others digests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import ROOT
from tests.support.rendering import load_script

SHA = "a" * 64
DIGEST = f"sha256:{SHA}"


@pytest.fixture
def hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = load_script(ROOT / "scripts" / "hashes.py")
    monkeypatch.setattr(script, "LOCK", tmp_path / "lock.txt")
    monkeypatch.setattr(script, "HASHES", tmp_path / "lock-hashes.txt")
    (tmp_path / "lock.txt").write_text("# versions\nFoo_Bar==1.0\nbaz==2.0.post1\ntorch==2.13.0\n")
    return script


def one(name: str, version: str, url: str = "https://files.example/x.whl") -> dict:
    about = {"url": url, "archive_info": {"hashes": {"sha256": SHA}}}
    return {"metadata": {"name": name, "version": version}, "download_info": about}


def run(script, monkeypatch: pytest.MonkeyPatch, *args: str) -> int:
    monkeypatch.setattr(sys, "argv", ["hashes.py", *args])
    return script.main()


def test_every_locked_package_but_torch_has_a_hash() -> None:
    argv = [sys.executable, "scripts/hashes.py", "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"run `python scripts/hashes.py`\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("image", ["proxy", "judge", "trainer", "engine-cpu"])
def test_an_image_installs_all_that_it_names_by_hash(image: str, tmp_path: Path) -> None:
    """What the Dockerfile's line finds, on the files that it finds it in."""
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    command = re.search(
        rf"RUN (awk .* requirements/{image}\.txt requirements/lock-hashes\.txt) > hashed\.txt", dockerfile
    )
    assert command, "the image installs without hashes"
    lines = subprocess.run(
        command[1], shell=True, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    named = (ROOT / "requirements" / f"{image}.txt").read_text().splitlines()
    wanted = [line for line in named if line and not line.startswith(("#", "torch=="))]
    assert sorted(line.split()[0] for line in lines) == sorted(wanted)
    assert all(re.fullmatch(r"\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)


def test_only_new_versions_are_asked_for(hashes, monkeypatch, capsys) -> None:
    asked: list[list[str]] = []

    def ask(wanted: list[str]) -> dict[str, str]:
        asked.append(wanted)
        return dict.fromkeys(wanted, SHA)

    monkeypatch.setattr(hashes, "ask", ask)
    assert run(hashes, monkeypatch, "--check") == 1
    assert run(hashes, monkeypatch) == 0 and run(hashes, monkeypatch, "--check") == 0
    hashes.LOCK.write_text("Foo_Bar==1.1\nbaz==2.0.post1\n")
    capsys.readouterr()
    assert run(hashes, monkeypatch, "--check") == 1
    assert capsys.readouterr().out.splitlines() == ["stale: Foo_Bar==1.0", "stale: Foo_Bar==1.1"]
    assert run(hashes, monkeypatch) == 0 and run(hashes, monkeypatch, "--all") == 0
    assert asked == [["Foo_Bar==1.0", "baz==2.0.post1"], ["Foo_Bar==1.1"], ["Foo_Bar==1.1", "baz==2.0.post1"]]
    assert f"\nbaz==2.0.post1 --hash=sha256:{SHA}\n" in hashes.HASHES.read_text()


def test_a_file_of_this_machine_and_one_that_is_missing_are_no_hash(hashes) -> None:
    report = {"install": [one("foo-bar", "1.0"), one("baz", "2.0.post1")]}
    assert hashes.read(report, hashes.pins()) == {"Foo_Bar==1.0": SHA, "baz==2.0.post1": SHA}
    with pytest.raises(SystemExit, match="baz"):
        hashes.read({"install": report["install"][:1]}, hashes.pins())
    with pytest.raises(SystemExit, match="lies on this machine"):
        hashes.read({"install": [one("baz", "2.0.post1", "file:///wheels/baz.whl")]}, ["baz==2.0.post1"])


def test_an_image_gets_its_digest_and_keeps_its_tag_as_a_comment() -> None:
    digests = load_script(ROOT / "scripts" / "digests.py")
    text = f"a:\n  image: vllm/engine:v1.2\n  image: slipstream-proxy:0.1.0\n  - image: db@{DIGEST}  # 17.1\n"
    assert digests.undigested(text) == ["vllm/engine:v1.2"]
    after = digests.rewritten(text, {"vllm/engine:v1.2": DIGEST})
    assert after == text.replace("vllm/engine:v1.2", f"vllm/engine@{DIGEST}  # vllm/engine:v1.2")
    assert digests.undigested(after) == []
    for path in digests.files():
        assert set(digests.undigested(path.read_text())) <= {"vllm/vllm-openai:v0.32.0"}, path
