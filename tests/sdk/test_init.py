from __future__ import annotations

import importlib.metadata

import slipstream


def test_what_is_public_is_there() -> None:
    assert all(hasattr(slipstream, name) for name in slipstream.__all__)
    assert slipstream.__version__ == importlib.metadata.version("slipstream")
