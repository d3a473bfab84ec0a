"""What a user can see from outside while the agent works: the live adapter, the groups, the steps."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

COMPLETE = ("waiting_reward", "ready", "leased", "trained", "skipped", "stale", "dropped", "parked")
LOST = ("stale", "dropped", "parked")


def groups_lost(status: dict[str, Any]) -> float:
    """Share of the complete training groups that will never be trained on, for another reason than equal rewards."""
    groups = status.get("groups", {})
    complete = sum(groups.get(state, 0) for state in COMPLETE)
    return float(sum(groups.get(state, 0) for state in LOST) / max(1, complete))


@dataclass
class Watch:
    """Polls the control API once a second. Times are seconds since ``began``."""

    url: str
    began: float
    first_adapter: float | None = None
    live: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[tuple[float, list[str]]] = field(default_factory=list)
    """Each change of what ``status`` says that the next step waits for."""

    async def run(self) -> None:
        """Without end; cancel it."""
        async with httpx.AsyncClient(base_url=f"{self.url}/slipstream/v1", timeout=30) as http:
            while True:
                try:
                    await self.look(http)
                except httpx.HTTPError as error:
                    self.waiting.append((self.now(), [repr(error)]))
                await asyncio.sleep(1.0)

    def now(self) -> float:
        return round(time.monotonic() - self.began, 1)

    async def look(self, http: httpx.AsyncClient) -> None:
        live = (await http.get("/adapters")).raise_for_status().json()["live"]
        self.live = next(iter(live.values()), "")
        if self.first_adapter is None and "@" in self.live:
            self.first_adapter = self.now()
        self.status = (await http.get("/status")).raise_for_status().json()
        if not self.waiting or self.waiting[-1][1] != self.status["waiting"]:
            self.waiting.append((self.now(), self.status["waiting"]))

    async def read_events(self) -> None:
        """All training events so far, oldest first."""
        async with httpx.AsyncClient(timeout=30) as http:
            text = (await http.get(f"{self.url}/slipstream/v1/training/events")).raise_for_status().text
        self.events = [httpx.Response(200, text=line).json() for line in text.splitlines() if line]

    def steps(self) -> int:
        return sum(event["kind"] == "step" for event in self.events)
