"""Success over adapter versions: the numbers from the store, and the picture of them."""

from __future__ import annotations

from pathlib import Path

from slipstream.client import AsyncClient


def version_of(adapter: str) -> int:
    return int(adapter.rpartition("@")[2]) if "@" in adapter else 0


async def success_curve(url: str) -> list[tuple[str, str, float, int]]:
    """(adapter, split, success, episodes) in the adapters' order."""
    query = (
        "select adapter, split, avg(reward) as success, count(*) as n from episodes where reward is not "
        "null and adapter is not null "
        "group by adapter, split"
    )
    async with AsyncClient(url) as client:
        rows = (await client.sql(query)).rows
    return sorted(((str(a), str(s), float(x), int(n)) for a, s, x, n in rows), key=lambda r: (version_of(r[0]), r[1]))


def plot(curve: list[tuple[str, str, float, int]], base: float, last: float, path: Path, held_out: int) -> None:
    """Success over adapter versions; the held-out figures as points at both ends."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    train = [(a, x, n) for a, s, x, n in curve if s == "train"]
    figure, axes = plt.subplots(figsize=(8, 4.5))
    names = [a for a, _, _ in train]
    axes.plot(
        range(len(train)), [x for _, x, _ in train], "o-", color="#2563eb", label="training tasks, while it learned"
    )
    axes.plot(
        [0, max(0, len(train) - 1)],
        [base, last],
        "D",
        color="#dc2626",
        markersize=9,
        label=f"held-out tasks ({held_out})",
    )
    axes.set_xticks(range(len(names)), [n.rpartition("@")[2] if "@" in n else "base" for n in names])
    axes.set(
        ylim=(0, 1.02),
        xlabel="adapter version",
        ylabel="success",
        title="The inbox agent, by the adapter that served it",
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
