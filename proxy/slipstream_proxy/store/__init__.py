"""The store: ``open_store`` gives the one that a URL names."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from slipstream.errors import StartError

if TYPE_CHECKING:
    from slipstream_proxy.store.store import Store
    from slipstream_proxy.store.values import Rules


def refuse_newer(url: str) -> None:
    """Raises ``StartError`` for a shared database that a newer program wrote; one that is away says nothing. Of a
    file, the data folder's format says it.
    """
    if urlsplit(url).scheme not in ("postgresql", "postgres"):
        return
    import psycopg

    from slipstream_proxy.store.tables.schema import SCHEMA_VERSION, NewerSchema

    sql = "SELECT name, value FROM t_meta WHERE name IN ('schema', 'program')"
    try:
        with psycopg.connect(url, connect_timeout=3) as connection:
            found: dict[str, str] = dict(connection.execute(sql).fetchall())
    except psycopg.Error:
        return
    if int(found.get("schema", 0)) > SCHEMA_VERSION:
        raise StartError(str(NewerSchema(int(found["schema"]), found.get("program"))))


def open_store(
    url: str,
    rules: Rules,
    *,
    memory_limit: str = "1GB",
    threads: int = 1,
    instance: str = "local",
    archive: str | None = None,
) -> Store:
    """Open ``duckdb:///path`` or ``postgresql://…``. ``instance`` tells proxies that share a database apart.
    ``archive``: where days are that left it; on DuckDB queries read them, too.

    Raises ``StoreError`` (one line) when it cannot be opened and ``ValueError`` for another kind of URL. A broken
    DuckDB file is set aside, and the store that comes back says ``rebuilt``.
    """
    scheme = urlsplit(url).scheme
    if scheme == "duckdb":
        from slipstream_proxy.store.backends.duckdb import DuckStore

        path = "/" + unquote(url.removeprefix("duckdb:")).lstrip("/")
        return DuckStore(path, rules, memory_limit=memory_limit, threads=threads, instance=instance, archive=archive)
    if scheme in ("postgresql", "postgres"):
        from slipstream_proxy.store.backends.postgres import PostgresStore

        return PostgresStore(url, rules, instance=instance)
    raise ValueError(f"store.url {url!r}: duckdb:///path or postgresql://…")
