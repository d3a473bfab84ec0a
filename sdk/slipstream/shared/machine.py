"""What this machine has: a free port, a GPU, a package."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def has_gpu() -> bool:
    """True where NVIDIA's driver is; importing torch to ask would take seconds."""
    return Path("/dev/nvidiactl").exists() and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def installed(module: str) -> bool:
    """Also what lies in the working directory, where ``python -m`` would find it."""
    return importlib.util.find_spec(module) is not None or (Path.cwd() / module).is_dir()
