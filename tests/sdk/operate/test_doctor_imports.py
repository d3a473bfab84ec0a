"""What the doctor says of packages that are installed and cannot be imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slipstream.config import Config, load_config
from slipstream.errors import StartError
from slipstream.operate.doctor.imports import check_imports
from slipstream.operate.doctor.ports import Running
from slipstream.shared.functions import need
from slipstream.shared.imports import import_errors, torch_fix

NMS = "operator torchvision::nms does not exist"
NONE = Running()


def config(tmp_path: Path, *flags: str) -> Config:
    return load_config(env={}, flags=[f"data_dir={tmp_path}/data", *flags])


def package(folder: Path, name: str, text: str, version: str = "0.28.0") -> None:
    """An installed package whose import does what ``text`` says."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(text)
    (folder / f"{name}-{version}.dist-info").mkdir()
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands before all others, for this process and those that it starts."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", f"{folder}")
    return folder


def plant(site: Path) -> None:
    """An engine and a trainer that import a torchvision of another torch, as transformers does."""
    package(site, "torch", "", "2.13.0+cpu")
    package(site, "trl", "", "1.16.0")
    package(site, "torchvision", f"raise RuntimeError({NMS!r})")
    wraps = "try:\n    import torchvision\nexcept Exception as e:\n    raise ModuleNotFoundError('Could not import X') from e"
    for name in ("vllm", "slipstream_trainer"):
        package(site, name, wraps, "1")


def test_the_true_cause_of_parts_that_cannot_be_imported(site: Path, tmp_path: Path) -> None:
    plant(site)
    (bad,) = [f for f in check_imports(config(tmp_path), NONE) if f.level == "fail" and "torchvision" in f.what]
    assert bad.what.startswith(f"torchvision 0.28.0 does not load beside torch 2.13.0+cpu: RuntimeError: {NMS}")
    assert "agents get no answers" in bad.why
    assert "no step comes" in bad.why
    assert "pip uninstall -y torchvision" in bad.fix
    assert "'torch==2.13.0+cpu' torchvision --index-url https://download.pytorch.org/whl/cpu" in bad.fix


def test_another_package_that_breaks_is_named_for_its_part(site: Path, tmp_path: Path) -> None:
    for name in ("torch", "trl"):
        package(site, name, "")
    package(site, "vllm", "import a_part_that_is_missing")
    package(site, "slipstream_trainer", "")
    found = [f for f in check_imports(config(tmp_path), NONE) if f.level == "fail" and "engine" in f.what]
    assert [f.what for f in found] == [
        "the engine's packages can't be imported: ModuleNotFoundError: No module named 'a_part_that_is_missing'"
    ]


def test_what_is_not_started_is_not_imported(site: Path, tmp_path: Path) -> None:
    plant(site)
    off = config(tmp_path, "trainer.enabled=false", 'engine.urls=["http://127.0.0.1:9"]')
    assert not [f for f in check_imports(off, NONE) if "torchvision" in f.what]
    running = Running(engines=("http://127.0.0.1:9",))
    found = [f for f in check_imports(config(tmp_path), running) if "torchvision" in f.what]
    assert ["agents get no answers" in f.why for f in found] == [False], "the trainer alone"


def test_the_trainers_own_environment(site: Path, tmp_path: Path) -> None:
    plant(site)
    flags = ("trainer.python=" + sys.executable, 'engine.urls=["http://127.0.0.1:9"]')
    found = [f for f in check_imports(config(tmp_path, *flags), NONE) if f.level == "fail" and "torch" in f.what]
    assert [sys.executable in f.what and f"{sys.executable} -m pip" in f.fix for f in found] == [True]


def test_a_part_that_is_needed_and_breaks_says_why(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(site)
    monkeypatch.delitem(sys.modules, "slipstream_trainer", raising=False)
    package(site, "slipstream_none", "raise ModuleNotFoundError('Could not import X') from RuntimeError('broken')")
    with pytest.raises(StartError, match=r"packages of slipstream\[trainer\] can't be imported: RuntimeError: broken"):
        need("slipstream_none", "trainer")


def test_a_module_that_ends_python_is_told(site: Path) -> None:
    package(site, "ends", "import os; os._exit(3)")
    package(site, "loads", "print('noise')")
    assert import_errors(["ends", "loads"]) == {"ends": "its import ended Python with code 3"}


@pytest.mark.parametrize(
    ("torch", "index"),
    [
        ("2.13.0+cpu", " --index-url https://download.pytorch.org/whl/cpu"),
        ("2.13.0+cu130", "whl/cu130"),
        ("2.13.0", ""),
    ],
)
def test_the_builds_come_from_where_this_torch_came_from(torch: str, index: str) -> None:
    fix = torch_fix(["torchaudio"], torch)
    assert f"'torch=={torch}' torchaudio" in fix
    assert index in fix
    assert ("--index-url" in fix) == bool(index)
