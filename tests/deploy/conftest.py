from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _as_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models by hub name, as in production, and a shell's own settings out of the way."""
    import os

    for name in list(os.environ):
        if name.startswith("SLIPSTREAM_") or name in {"HF_HUB_OFFLINE", "LD_PRELOAD", "VLLM_CPU_KVCACHE_SPACE"}:
            monkeypatch.delenv(name)
