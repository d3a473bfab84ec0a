"""Nothing that somebody hands over is unpickled: reading a pickle runs what its maker wrote into it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNNERS = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
OWN = {
    "proxy/slipstream_proxy/store/conversation/calls.py",  # its own temporary file, which has no name
    "engine/slipstream_vllm/forks.py",  # its own fork's pipe
}
"""They read back what the same process wrote, where nobody else can write."""


def runs(source: str) -> list[str]:
    """What of a module could run what a file holds."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [name for name in names if name.split(".")[0] in RUNNERS]
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
            said = {k.arg: ast.unparse(k.value) for k in node.keywords}
            safe = said.get("weights_only") == "True" if "torch" in ast.unparse(node.func) else True
            if not safe or said.get("allow_pickle", "False") != "False":
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("package", ["sdk", "proxy", "judge", "trainer", "engine", "plugins", "examples", "scripts"])
def test_no_file_is_unpickled(package: str) -> None:
    sources = [p for p in (ROOT / package).rglob("*.py") if str(p.relative_to(ROOT)) not in OWN]
    assert sources
    assert {str(p): found for p in sources if (found := runs(p.read_text()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import joblib.x",
        "torch.load(f)",
        "torch.load(f, weights_only=False)",
    ],
)
def test_the_lint_sees_it(source: str) -> None:
    assert runs(source)
    assert not runs("torch.load(f, weights_only=True)")
