"""The plug-in's part in the control plane."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.contract import FunnelLine
from slipstream.contract.funnel import Severity
from slipstream.settings.proxy import ModelRoute
from slipstream_proxy.control.api.plugins import ControlPlugin
from slipstream_proxy.control.deps import Deps
from slipstream_proxy.control.storage.spool_reader import Item
from slipstream_proxy.store.read.status import FunnelCounts
from slipstream_proxy.store.read.wording import plural
from slipstream_siblings.metrics import SiblingMetrics
from slipstream_siblings.sampler import SiblingSampler


class SiblingsPlugin(ControlPlugin):
    """Samples steps of the models that ask for it, and says how far it is."""

    def __init__(self, deps: Deps, settings: None) -> None:
        super().__init__(deps, settings)
        metrics = SiblingMetrics(deps.metrics.registry)
        self.sampler = SiblingSampler(
            deps, deps.mutations.writer, deps.rollout.registry, deps.engines, deps.rollout.rehearsals, metrics
        )
        deps.rollout.rehearsals.watchers.append(self.sampler.agents_came)

    async def start(self) -> None:
        self.sampler.start()

    async def stop(self) -> None:
        await self.sampler.stop()

    def committed(self, items: Sequence[Item]) -> None:
        self.sampler.saw(items)

    async def funnel(self, counts: FunnelCounts, *, judged: bool) -> Sequence[FunnelLine]:
        routes = [r for r in self.deps.config.models.values() if r.explore == "siblings"]
        return [await self._line(counts, routes, judged=judged)] if routes else []

    async def _line(self, counts: FunnelCounts, routes: Sequence[ModelRoute], *, judged: bool) -> FunnelLine:
        if not judged:
            text = "siblings of agents' steps train nothing: no judge compares them"
            needed = "set judge.model or judge.function"
            shown = {"stage": "judge", "cause": "siblings", "count": counts.siblings, "severity": Severity.SLOWS}
            return FunnelLine(**shown, text=text, fix=needed)
        spent, most = sum((await self.sampler.today()).values()), sum(r.explore_tokens for r in routes)
        text = (
            f"{plural(counts.siblings, 'sibling', 'siblings')} of agents' steps so far, {spent} of {most} tokens today"
        )
        fix: str | None = None
        if waiting := len(self.sampler.waiting) + self.sampler.busy:
            text += f"; {plural(waiting, 'step waits', 'steps wait')} for the engine's idle time"
        elif counts.calls and not counts.siblings:
            fix = "wait for calls; only chat completions with recorded token ids have siblings"
        if spent >= most:
            fix = 'wait for tomorrow (UTC), or raise models."<name>".explore_tokens'
        return FunnelLine(stage="groups", cause="siblings", count=counts.siblings, text=text, fix=fix)
