"""Where calls and adapters are kept."""

from __future__ import annotations

from pydantic import Field

from slipstream.settings.base import Positive, Section


class StoreConfig(Section):
    url: str | None = Field(None, description="duckdb:///path or postgresql://…; None: slipstream.duckdb in data_dir.")
    keep_days: int | None = Field(None, ge=1, description="Days to keep calls; None: for ever.")
    archive: str | None = Field(None, description="Folder that gets each day as Parquet before it is dropped.")
    memory_limit: str = Field("1GB", description="DuckDB's memory limit.")
    threads: int = Field(1, ge=1, description="DuckDB's threads.")
    sql_timeout: Positive = Field(10.0, description="Seconds for a query of `slipstream sql`.")


class AdaptersConfig(Section):
    dir: str | None = Field(None, description="Folder of adapters; None: adapters in data_dir.")
    patience: Positive = Field(
        60.0, description="Seconds after which an adapter is refused if the engine still answers 5xx."
    )
    keep: int = Field(20, ge=1, description="Retired adapters whose files are kept.")
