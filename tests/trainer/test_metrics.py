from __future__ import annotations

import urllib.request

from slipstream_trainer.versions.events import Metrics


def test_figures_are_served() -> None:
    metrics = Metrics()
    metrics.note(
        "step",
        3,
        {"loss": 0.5, "kl": 0.01, "tokens": 100, "memory_mib": 2.5, "seconds": 1.5, "untrainable": {"top_k": 2}},
    )
    metrics.note("skipped", 3, {})
    text = (
        urllib.request.urlopen(f"http://127.0.0.1:{metrics.serve('127.0.0.1', 0)}/metrics", timeout=30).read().decode()
    )
    for line in (
        'slipstream_trainer_batches_total{outcome="step"} 1.0', 'slipstream_trainer_batches_total{outcome="skipped"} 1.0', "slipstream_trainer_step 3.0",
        "slipstream_trainer_loss 0.5", "slipstream_trainer_tokens_total 100.0", 'slipstream_trainer_untrainable_total{reason="top_k"} 2.0',
        "slipstream_trainer_step_seconds_count 1.0", "slipstream_trainer_memory_bytes 2.62144e+06",
    ):  # fmt: skip
        assert line in text
