"""Which proxy runs on a data folder: the proxy's parent writes ``proxy.json``, everybody else reads it. Beside it, an
engine says that it has its memory.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from slipstream.errors import StartError
from slipstream.shared.processes.process import is_alive

PROXY_FILE_NAME = "proxy.json"
SETTLED_FILE = "engine.settled"
"""There once the engine of a stack has its memory, and lets the trainer take some."""


def announce_proxy(root: Path, url: str) -> None:
    temp = root / f"{PROXY_FILE_NAME}.tmp"
    temp.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    temp.replace(root / PROXY_FILE_NAME)


def running_proxy(root: Path, pid: int | None = None) -> str | None:
    """URL of the proxy that runs on ``root``, without ``/v1``. ``pid``: only if it is this process.

    Raises ``StartError`` for a folder of another user.
    """
    try:
        found = json.loads((root / PROXY_FILE_NAME).read_bytes())
        url, owner = str(found["url"]), int(found["pid"])
    except PermissionError as e:
        raise StartError(f"data_dir {root} is another user's: run this as that user, or give --url") from e
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if pid is not None:
        return url if owner == pid else None
    return url if is_alive(owner) else None
