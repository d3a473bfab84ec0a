"""The plug-in's metrics."""

from prometheus_client import CollectorRegistry, Counter


class SiblingMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.siblings = Counter(
            "slipstream_siblings",
            "Further samples of agents' steps: sampled, failed, other_prompt (the prompt had other ids), budget (steps "
            "left out because the day's tokens are spent), redacted (thrown away).",
            ["outcome"],
            registry=self.registry,
        )
