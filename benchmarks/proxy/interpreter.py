"""Which Python runs the proxy under test: the fastest of this version that the machine has.

Distributions build theirs with profile-guided optimisation; one that was built from source often has none, and then pure Python takes a
fifth longer. How an interpreter was built is not always written down in it, so each runs the same loop for a moment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

LOOP = """
import json, sys, time
def work():
    table, text = {}, []
    for i in range(60000):
        table[i & 255] = (i, str(i))
        text.append(table[i & 127][1] if i & 127 in table else "")
    return len("".join(text).split("1"))
times = []
for _ in range(7):
    start = time.perf_counter(); work(); times.append(time.perf_counter() - start)
print(json.dumps([sys.version.split()[0], min(times)]))
"""


@dataclass(frozen=True)
class Interpreter:
    path: str
    version: str
    seconds: float
    """That the loop takes."""

    @property
    def env(self) -> dict[str, str]:
        """The environment in which it finds the packages of the one that runs this."""
        if os.path.samefile(self.path, sys.executable):
            return {}
        here = [sysconfig.get_path("purelib"), *filter(None, sys.path)]
        return {"PYTHONPATH": os.pathsep.join(p for p in dict.fromkeys(here) if not standard(p))}

    def runs(self) -> bool:
        """Whether it runs a worker's modules: its compiled packages must be of the same make."""
        command = [self.path, "-c", "import slipstream_proxy.data.plane"]
        env = {**os.environ, **self.env}
        return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0


def standard(path: str) -> bool:
    """Whether this is a part of the standard library, of which each interpreter has its own."""
    library = Path(sysconfig.get_path("stdlib"))
    return Path(path) in (library, library / "lib-dynload") or path.endswith(".zip")


def measured(path: str) -> Interpreter | None:
    """None: it is another version, or does not run."""
    try:
        done = subprocess.run([path, "-I", "-c", LOOP], capture_output=True, text=True, check=True, timeout=60)
        version, seconds = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    ours = sys.version_info[:2]
    return Interpreter(path, version, seconds) if version.split(".")[:2] == [str(n) for n in ours] else None


def fastest() -> Interpreter:
    """Ours, unless another one is faster by more than 5 %."""
    ours = measured(sys.executable)
    assert ours is not None
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    others = {shutil.which(name, path=folder) for folder in ("/usr/bin", "/usr/local/bin", "/opt/bin")}
    found = [x for path in others if path and Path(path).exists() and (x := measured(path)) is not None]
    best = min(found, key=lambda x: x.seconds, default=ours)
    return best if best.seconds < 0.95 * ours.seconds and best.runs() else ours


def chosen(path: Path | None) -> Interpreter:
    """That one, or the fastest. Raises ``SystemExit`` where it cannot run the proxy."""
    if path is None:
        return fastest()
    found = measured(str(path))
    if found is None or not found.runs():
        raise SystemExit(f"{path} cannot run the proxy: it needs the version and make of {sys.executable}")
    return found
