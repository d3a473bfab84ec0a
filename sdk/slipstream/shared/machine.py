"""What this machine has: a free port, a GPU, a package."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def why_taken(host: str, port: int) -> str | None:
    """Why nothing can listen there; None: it can."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            return e.strerror or str(e)
    return None


def has_gpu() -> bool:
    """True where NVIDIA's driver is; importing torch to ask would take seconds."""
    return Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def physical_memory() -> int:
    """Bytes; less where this process's group may have less (cgroup v2)."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(most, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # another system, or no limit
        return most


def installed(module: str) -> bool:
    """Also what lies in the working directory, where ``python -m`` would find it."""
    return importlib.util.find_spec(module) is not None or (Path.cwd() / module).is_dir()


LARGE_PACKAGES = ("torch", "transformers", "vllm")
"""Packages of thousands of modules, which engine and trainer import."""


def bytecode_env() -> dict[str, str]:
    """Environment by which child processes keep the bytecode of ``LARGE_PACKAGES``, where neither the installer nor
    Python does.

    An installer may leave it out, and Python writes none into a folder that is read-only, or where
    ``PYTHONDONTWRITEBYTECODE`` is set. Each process then compiles all that it imports again: half of its imports' time.
    Empty where Python keeps it by itself, and where the user's cache folder can't be written.
    """
    origins = [
        Path(s.origin) for name in LARGE_PACKAGES if (s := importlib.util.find_spec(name)) is not None and s.origin
    ]
    lacking = [o for o in origins if not Path(importlib.util.cache_from_source(str(o))).is_file()]
    kept = not sys.dont_write_bytecode and all(os.access(o.parent, os.W_OK) for o in lacking)
    if sys.pycache_prefix or not lacking or kept:
        return {}
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "slipstream" / "bytecode"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return {}
    return {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}


_VERSIONS = """
import importlib.metadata, json, sys
found = {d.metadata["Name"].lower(): d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
print(json.dumps({name: found.get(name) for name in sys.argv[1:]}))
"""


def versions(names: Iterable[str], python: str | None = None) -> dict[str, str | None]:
    """Package → its version, None where it is not installed: here, or in the environment of ``python``.

    Raises ``OSError`` or ``subprocess.SubprocessError`` for a Python that cannot be asked.
    """
    if python is not None:
        argv = [str(Path(python).expanduser()), "-c", _VERSIONS, *names]
        said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout
        return dict(json.loads(said))
    found: dict[str, str | None] = dict.fromkeys(names)
    for name in found:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
