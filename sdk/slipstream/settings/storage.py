"""Where calls and adapters are kept, and how much of them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from slipstream.settings.base import Positive, Section, rare

ARCHIVE_SCHEMES = ("s3://", "gs://")


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
    archive: str | None = rare(
        None,
        description="Folder, s3://BUCKET/PATH or gs://BUCKET/PATH that gets each day as Parquet before it is dropped. "
        "`slipstream sql` reads it too, on DuckDB. S3 takes ?region= and ?endpoint_override=, and keys from AWS's "
        "environment.",
        when="old days should be kept as Parquet before they are dropped",
    )
    memory_limit: str = rare(
        "1GB",
        description="DuckDB's memory limit.",
        when="queries fail because memory ran out, or the machine has little",
    )
    threads: int = rare(1, ge=1, description="DuckDB's threads.", when="queries are slow and cores are free")
    sql_timeout: Positive = rare(
        10.0,
        description="Seconds for a query of `slipstream sql`.",
        when="queries of `slipstream sql` need more than ten seconds",
    )
    forget: Literal["name", "retrain"] = rare(
        "name",
        description="What forgetting does with versions that were trained on it. name: it names them. retrain: it "
        "takes them back, and the trainer trains anew on what else they were trained on.",
        when="versions that learned from forgotten runs must be trained anew",
    )

    @field_validator("archive")
    @classmethod
    def _archive_place(cls, archive: str | None) -> str | None:
        if archive and "://" in archive and not archive.startswith(ARCHIVE_SCHEMES):
            raise ValueError(f"a folder, or a place that begins with {' or '.join(ARCHIVE_SCHEMES)}")
        return archive

    def archive_of(self, *parts: str) -> str | None:
        """A folder inside the archive's."""
        if self.archive is None:
            return None
        place, mark, options = self.archive.partition("?") if "://" in self.archive else (self.archive, "", "")
        return "/".join([place.rstrip("/"), *parts]) + mark + options


class AdaptersConfig(Section):
    dir: str | None = rare(
        None,
        description="Folder of adapters; None: adapters in data_dir.",
        when="engines on other machines read adapters from a shared folder",
    )
    patience: Positive = rare(
        60.0,
        description="Seconds after which an adapter is refused if the engine still answers 5xx.",
        when="engines take more than a minute to fetch an adapter",
    )
    keep: int = rare(
        20,
        ge=1,
        description="Retired adapters whose files are kept.",
        when="older versions than the last twenty should stay, or disk is short",
    )
    pin_seconds: Positive = rare(
        60.0,
        description=(
            "Seconds after a newer version took its place that a version keeps its slot for running episodes, even if "
            "the engine needs the slot. Then they move to the live version."
        ),
        when="runs take longer than a minute and slots of adapters are short",
    )
