"""The plug-ins of this tree, where the environment was installed before one of them came.

``importlib.metadata`` reads what the last installation wrote. Tests, and the processes that they start, read a copy of
that with the entry points of ``pyproject.toml``.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

from slipstream.plugins import ENTRY_POINT_GROUP

ROOT = Path(__file__).parents[2]


def see_this_tree() -> None:
    """Nothing is done where the installation has them all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named: dict[str, str] = project["entry-points"][ENTRY_POINT_GROUP]
    there = importlib.metadata.distribution("slipstream")
    found = {p.name: p.value for p in there.entry_points if p.group == ENTRY_POINT_GROUP}
    if found == named:
        return
    folder = Path(tempfile.mkdtemp(prefix="slipstream-tree-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    copy = folder / f"slipstream-{project['version']}.dist-info"
    copy.mkdir()
    (copy / "METADATA").write_text(there.read_text("METADATA") or "")
    lines = [f"[{ENTRY_POINT_GROUP}]", *(f"{name} = {value}" for name, value in named.items())]
    for point in there.entry_points:
        if point.group != ENTRY_POINT_GROUP:
            lines += [f"[{point.group}]", f"{point.name} = {point.value}"]
    (copy / "entry_points.txt").write_text("\n".join(lines))
    paths = [str(folder), *(str(path) for path in sorted((ROOT / "plugins").iterdir()))]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
