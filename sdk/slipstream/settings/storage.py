"""Where calls and adapters are kept, and how much of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from slipstream.settings.base import Positive, Section


class DataConfig(Section):
    max_gb: Positive | None = Field(
        None,
        description=(
            "Gigabytes (10⁹ bytes) that data_dir may take; None: no limit. Above it, old adapters' files go first, "
            "then the oldest days of calls. The newest day and what a rollback needs stay."
        ),
    )


class StoreConfig(Section):
    url: str | None = Field(None, description="duckdb:///path or postgresql://…; None: slipstream.duckdb in data_dir.")
    keep_days: int | None = Field(None, ge=1, description="Days to keep calls; None: for ever.")
    archive: str | None = Field(None, description="Folder that gets each day as Parquet before it is dropped.")
    memory_limit: str = Field("1GB", description="DuckDB's memory limit.")
    threads: int = Field(1, ge=1, description="DuckDB's threads.")
    sql_timeout: Positive = Field(10.0, description="Seconds for a query of `slipstream sql`.")
    forget: Literal["name", "retrain"] = Field(
        "name",
        description="What forgetting does with versions that were trained on it. name: it names them. retrain: it "
        "takes them back, and the trainer trains anew on what else they were trained on.",
    )


class AdaptersConfig(Section):
    dir: str | None = Field(None, description="Folder of adapters; None: adapters in data_dir.")
    patience: Positive = Field(
        60.0, description="Seconds after which an adapter is refused if the engine still answers 5xx."
    )
    keep: int = Field(20, ge=1, description="Retired adapters whose files are kept.")
    pin_seconds: Positive = Field(
        60.0,
        description=(
            "Seconds after a newer version took its place that a version keeps its slot for running episodes, even if "
            "the engine needs the slot. Then they move to the live version."
        ),
    )
