from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from tests.support.adapters import write_adapter


async def test_metrics_are_there_and_bounded(plane):
    await plane.call("e1")
    await plane.seen("e1")
    await plane.ask("POST", "/episodes/e1/rewards", {"value": 0.5})
    assert (await plane.seen("e1"))["reward"] == 0.5
    write_adapter(plane.config.adapters_dir / "tiny@1")
    await plane.ask("POST", "/adapters?wait=30", {"path": "tiny@1"})
    await plane.ask(
        "POST",
        "/training/events",
        {"kind": "step", "data": {"loss": 0.25, "clipped": 0.5, "text": "x", "kl": float(1)}},
    )
    for i in range(60):
        plane.deps.metrics.event(type("E", (), {"kind": f"kind{i}", "data": {}})())
    r = await plane.client.get("/internal/metrics")
    found = {}
    for family in text_string_to_metric_families(await r.text()):
        assert family.name.startswith(("slipstream_", "gen_ai_"))
        assert family.documentation
        for s in family.samples:
            found.setdefault(s.name, []).append((s.labels, s.value))
    value = {name: samples[0][1] for name, samples in found.items()}
    assert value["slipstream_adapter_swaps_total"] == 1
    assert value["slipstream_adapter_swap_seconds_count"] == 1
    assert value["slipstream_adapter_live_version"] == 1
    assert (
        value["slipstream_training_loss"],
        value["slipstream_training_clip_ratio"],
        value["slipstream_training_kl"],
    ) == (0.25, 0.5, 1.0)
    assert value["slipstream_training_steps_total"] == 1
    assert value["slipstream_ingest_records_total"] >= 3
    assert value["slipstream_store_up"] == 1
    assert found["slipstream_reward_mean"] == [({"adapter": "tiny", "split": "train", "arm": "live"}, 0.5)]
    assert len(found["slipstream_events_total"]) <= 31
    tokens = {(s[0]["adapter"], s[0]["direction"]): s[1] for s in found["slipstream_tokens_total"]}
    assert set(tokens) == {("tiny", "in"), ("tiny", "out")} and min(tokens.values()) > 0
    used = {s[0]["gen_ai_token_type"]: s[1] for s in found["gen_ai_client_token_usage_sum"]}
    assert used == {"input": tokens["tiny", "in"], "output": tokens["tiny", "out"]}
    label = {"source": "agent", "adapter": "tiny", "split": "train"}
    for name, expected in (
        ("slipstream_source_rewards", 1),
        ("slipstream_source_reward_mean", 0.5),
        ("slipstream_source_reward_std", 0),
    ):
        assert found[name] == [(label, expected)]
    assert value["slipstream_spool_pending_bytes"] == value["slipstream_spool_age_seconds"] == 0
