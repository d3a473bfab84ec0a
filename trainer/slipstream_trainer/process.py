"""The trainer's process, alone or one of several."""

from __future__ import annotations

import os
import signal
import sys

from slipstream.client import Client
from slipstream.config import Config
from slipstream_trainer.checkpoint import only_one
from slipstream_trainer.policy import check_lora


def main(config: Config, url: str | None = None, key: str | None = None) -> int:
    """Train until told to stop. Raises ``StartError`` and ``ConfigError``; otherwise returns the exit code."""
    check_lora(config)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from slipstream_trainer.process_group import follow, is_first, lead, leave
    from slipstream_trainer.start import start_trainer

    try:
        if not is_first():
            return follow(start_trainer(config, None)[0])
        with only_one(config.checkpoints_dir), Client(url, key) as client:
            worker = lead(config, client, *start_trainer(config, client))
            worker.handle_signals()
            return worker.run()
    finally:
        leave()
