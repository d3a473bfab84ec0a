"""The data plane's hot modules compiled to C by mypyc: ``python -m slipstream_proxy.process.compiled`` makes them, and
workers use them from then on.

The sources stay what is read and tested. Compiled modules lie in a folder named after a hash of those sources and of
the interpreter, so that none is ever used for sources that it was not made of; without the folder the worker runs the
sources. All modules of ``data/`` and ``dialects/`` are compiled. One that cannot be, as a subclass of a class of
aiohttp's, says so in its docstring: ``Not compiled: `` and the reason. It cannot subclass what is compiled.
``SLIPSTREAM_COMPILED=0`` turns them off. Building needs mypy, setuptools and a C compiler, and takes about a minute.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

PACKAGE_FOLDER = Path(__file__).parents[1]
_TREE = ("data/**/*.py", "dialects/**/*.py")
_READ = (*_TREE, "*.py", "log/*.py")
"""What the compiler reads of it: of the modules that stay Python, the types."""
_SHARED = ("assignment.py", "keys.py", "log/segments.py", "log/spool.py", "parse_weight.py")
"""On a call's way too, beside modules that are not."""
_CANNOT = b"Not compiled: "
"""Stands in the docstring of a module that is left out, before the reason."""


def _left_out(path: Path) -> bool:
    return _CANNOT in path.read_bytes().partition(b'"""')[2].partition(b'"""')[0]


def hot_modules(package: Path = PACKAGE_FOLDER) -> tuple[str, ...]:
    """The modules on a call's way: what is in the tree, but for those that say in their docstring, or in their
    folder's, that they are left out.

    They are compiled together, so that calls among them are C calls, and a class can have its subclasses in other
    modules.
    """
    files = sorted(path for pattern in _TREE for path in package.glob(pattern) if path.name != "__init__.py")
    hot = {folder for folder in {path.parent for path in files} if not _left_out(folder / "__init__.py")}
    found = [path for path in files if path.parent in hot and not _left_out(path)]
    return (*(path.relative_to(package).as_posix() for path in found), *_SHARED)


COMPILED_MODULES = hot_modules()

_INI = (
    "[mypy]\nexplicit_package_bases = True\nnamespace_packages = True\nignore_missing_imports = True\nmypy_path = {}\n"
)

_FLAGS = "-g0 -fno-plt -fno-semantic-interposition"
"""A call of a compiled function, or of the interpreter's, is no jump through a table."""


def folder(modules: tuple[str, ...] = COMPILED_MODULES) -> Path:
    """Where the compiled form of these very sources lies, if it was made."""
    found = hashlib.sha256(f"{sys.version} {sys.platform} {modules}".encode())
    for name in sorted(
        {*modules, *(p.relative_to(PACKAGE_FOLDER).as_posix() for t in _READ for p in PACKAGE_FOLDER.glob(t))}
    ):
        found.update((PACKAGE_FOLDER / name).read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "slipstream" / "compiled" / found.hexdigest()[:24]


def _name(path: Path) -> str:
    """A module's dotted name by its file."""
    return ".".join((*path.parts[:-1], path.name.partition(".")[0]))


class _Finder(MetaPathFinder):
    def __init__(self, paths: dict[str, Path]) -> None:
        self.paths = paths

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self.paths.get(fullname)
        return spec_from_file_location(fullname, found) if found is not None else None


def use(modules: tuple[str, ...] = COMPILED_MODULES) -> bool:
    """Import the compiled modules in place of their sources. Call it before any is imported. → Are they there?"""
    names = {_name(Path("slipstream_proxy") / name) for name in modules}
    if os.environ.get("SLIPSTREAM_COMPILED") == "0" or not sys.modules.keys().isdisjoint(names):
        return False
    try:
        home = folder(modules)
        if not (home / "ready").exists():
            return False
        found = {_name(path.relative_to(home)): path for path in home.rglob("*" + EXTENSION_SUFFIXES[0])}
    except (OSError, RuntimeError):  # sources that cannot be read, no home
        return False
    if not found.keys() >= names:
        return False
    sys.meta_path.insert(0, _Finder(found))
    return True


def build(modules: tuple[str, ...] = COMPILED_MODULES) -> Path:
    """Compile, unless that is done. Raises ``subprocess.CalledProcessError`` with the compiler's ``output``."""
    home = folder(modules)
    if (home / "ready").exists():
        return home
    import slipstream

    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as name:
        work, made = Path(name) / "work", Path(name) / "made"
        shutil.copytree(PACKAGE_FOLDER, work / "slipstream_proxy", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        (work / "mypy.ini").write_text(_INI.format(f"{work}:{Path(slipstream.__file__).parents[1]}"))
        command = [sys.executable, "-m", "mypyc", *(f"slipstream_proxy/{m}" for m in modules)]
        env = {"MYPYC_OPT_LEVEL": "2", "CFLAGS": _FLAGS, **os.environ}
        subprocess.run(
            command, cwd=work, env=env, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for path in work.rglob("*.so"):
            if "build" not in path.relative_to(work).parts:
                target = made / path.relative_to(work)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        (made / "ready").touch()
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)
    return home


def main() -> int:
    try:
        print(build())
    except (subprocess.CalledProcessError, OSError) as e:
        print(f"not compiled, the sources are used: {e}\n{(getattr(e, 'output', None) or '')[-2000:]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
