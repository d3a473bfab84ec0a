"""TRL as we use it: imported without vLLM, which it would load to generate with (ten seconds and hundreds of megabytes); our tokens come captured."""

from __future__ import annotations

import warnings

from trl import import_utils


def _absent(*_: object, **__: object) -> bool:
    return False


_found = import_utils.is_vllm_available
import_utils.is_vllm_available = _absent
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl import GRPOConfig, GRPOTrainer
finally:
    import_utils.is_vllm_available = _found

__all__ = ["GRPOConfig", "GRPOTrainer"]
