"""What vLLM's own LoRA manager does with adapters: no engine is started, the model's modules alone are made.

``python -m tests.support.lora_manager MODEL ADAPTER…`` prints one line of JSON for each model: adapter → problem, or
null where every tensor has a module.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(VLLM_LOGGING_LEVEL="ERROR", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")


def manager_of(model: Path, targets: list[str] | None = None) -> Any:
    """vLLM's ``LRUCacheWorkerLoRAManager`` on a model with random weights."""
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
    from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading

    config = EngineArgs(
        model=str(model), dtype="bfloat16", enable_lora=True, max_loras=2, max_lora_rank=16, enforce_eager=True, block_size=32,
        lora_target_modules=targets,
    ).create_engine_config()  # fmt: skip
    with set_current_vllm_config(config):
        if not torch.distributed.is_initialized():
            place = tempfile.NamedTemporaryFile(delete=False)
            init_distributed_environment(1, 0, f"file://{place.name}", 0, "gloo")
            with set_current_vllm_config(VllmConfig()):  # of no model: it makes the experts' group, too
                initialize_model_parallel()
        torch.set_default_dtype(torch.bfloat16)
        made = initialize_model(vllm_config=config, model_config=config.model_config)
        torch.set_default_dtype(torch.float32)
        process_weights_after_loading(made, config.model_config, torch.device("cpu"))
        manager = LRUCacheWorkerLoRAManager(config, torch.device("cpu"), made.embedding_modules)
        manager.create_lora_manager(made, config)
    return manager


def problem(manager: Any, adapter: Path, number: int) -> str | None:
    """Why vLLM refuses the adapter, or which of its modules vLLM ignores."""
    from vllm.lora.request import LoRARequest

    try:
        loaded = manager._load_adapter(LoRARequest(adapter.name, number, str(adapter)))
        manager._adapter_manager.add_adapter(loaded)
        manager._adapter_manager.activate_adapter(number)
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    ignored = sorted(set(loaded.loras) - set(manager._adapter_manager.modules))
    return f"ignored: {' '.join(ignored)}" if ignored else None


def main(paths: list[str]) -> None:
    manager, found, number = None, {}, 0
    for path in map(Path, paths):
        if (path / "adapter_config.json").is_file():
            number += 1
            found[path.name] = problem(manager, path, number) if manager else "no model"
            continue
        try:
            manager = manager_of(path)
        except Exception as e:
            print(json.dumps({"model": path.name, "error": f"{type(e).__name__}: {e}"[:400]}), flush=True)
            manager = None
            continue
        print(
            json.dumps(
                {
                    "model": path.name,
                    "modules": sorted({n.rsplit(".", 1)[-1] for n in manager._adapter_manager.modules}),
                }
            ),
            flush=True,
        )
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
