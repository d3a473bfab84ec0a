from __future__ import annotations

import urllib.request

from slipstream_judge.model.metrics import JudgeMetrics


def test_served_under_their_own_prefix():
    metrics = JudgeMetrics()
    metrics.looked_up("hit")
    metrics.looked_up("miss")
    metrics.groups.labels("scored").inc()
    port, server = metrics.serve(0)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    finally:
        server.shutdown()
        server.server_close()
    assert "slipstream_judge_cache_hit_rate 0.5" in text
    assert 'slipstream_judge_groups_total{outcome="scored"} 1.0' in text
    assert all(line.startswith(("#", "slipstream_judge_")) for line in text.splitlines())


def test_two_judges_in_one_process_do_not_meet():
    first, second = JudgeMetrics(), JudgeMetrics()
    first.repairs.inc()
    assert second.repairs._value.get() == 0
