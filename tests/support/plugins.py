"""Plug-ins that are installed for a test: a package and its entry point, on a path that ``importlib.metadata`` reads."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream import plugins as door


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, modules: Mapping[str, str], *, plugin: str = "PLUGIN"
) -> None:
    """Install the plug-in ``name``, whose package ``plug_NAME`` has these modules (name → source)."""
    package = folder / f"plug_{name}"
    package.mkdir(parents=True, exist_ok=True)
    for module, source in modules.items():
        (package / f"{module}.py").write_text(textwrap.dedent(source))
    points = folder / f"plug_{name}-1.0.dist-info"
    points.mkdir(exist_ok=True)
    (points / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plug-{name}\nVersion: 1.0\n")
    (points / "entry_points.txt").write_text(f"[{door.ENTRY_POINT_GROUP}]\n{name} = plug_{name}:{plugin}\n")
    show(monkeypatch, folder, f"plug_{name}")


def show(monkeypatch: pytest.MonkeyPatch, folder: Path, package: str) -> None:
    """Have what lies in a folder on the path, as it is there now."""
    if str(folder) not in sys.path:
        monkeypatch.syspath_prepend(str(folder))
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    importlib.invalidate_caches()
    door.installed.cache_clear()


def uninstall_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """No plug-in is there, ours neither."""
    monkeypatch.setattr(door, "entry_points", lambda group: ())
    door.installed.cache_clear()
