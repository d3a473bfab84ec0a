"""The gate's modules compiled by mypyc, about three times as fast, where mypy and a C compiler are. Import this first."""

from __future__ import annotations

import os
import sys

from slipstream_proxy.process import compiled

GATE = (
    "scale baseline detector groups guards ratings evidence line rules state suspicion shares verdict comparison trial"
)
MODULES = ("assignment.py", *(f"control/gate/{name}.py" for name in GATE.split()))


def use_compiled() -> bool:
    """→ Whether the gate is compiled now."""
    try:
        if os.environ.get("SLIPSTREAM_COMPILED") != "0":
            compiled.build(MODULES)
    except Exception as e:
        print(f"not compiled, so slow: {e}", file=sys.stderr)
    compiled.use(MODULES)
    from slipstream_proxy.control.gate import detector

    return not str(detector.__file__).endswith(".py")


COMPILED = use_compiled()
