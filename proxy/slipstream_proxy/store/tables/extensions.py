"""Tables that a plug-in brings, beside the core's own, and how an older form of them becomes this one.

A table ``runs`` of the plug-in ``report`` is ``t_plugin_report_runs`` in SQL. What its rows say of an episode goes when
the episode is forgotten, if the table has a column ``eid``; and the files are rewritten then, as the core's are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream_proxy.store.tables import schema
from slipstream_proxy.store.tables.driver import StoreError, Tx

if TYPE_CHECKING:
    from slipstream_proxy.log.records import Mutation

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_]*")
VERSION_KEY = "plugin/"
"""How ``t_meta`` names the version of a plug-in's tables."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """``tables``: name → columns (name → type as in ``schema.SQL_TYPES``) and key.

    ``migrations``: from version n to n + 1. ``mutations``: kind of a record in the spool → what writes it; it is called
    in the transaction that moves the spool's position, so a record counts once, and a store that is filled anew from
    the spool has it again. It raises ``ValueError`` for data that is none of its own.
    """

    name: str
    version: int = 1
    tables: Mapping[str, schema.ExtensionTable] = field(default_factory=dict)
    migrations: Mapping[int, Callable[[Tx], None]] = field(default_factory=dict)
    mutations: Mapping[str, Callable[[Tx, Mutation], None]] = field(default_factory=dict)

    def of_episodes(self) -> list[str]:
        """Its tables whose rows are of an episode each, by their names in SQL."""
        return [self.table(name) for name, table in self.tables.items() if "eid" in table.columns]

    def table(self, name: str) -> str:
        """Its name in SQL."""
        return f"{schema.EXTENSION_PREFIX}{self.name}_{name}"


def check(extension: Extension) -> None:
    """Raises ``StoreError`` for names and types that the databases do not share."""
    words = [extension.name, *extension.tables]
    for table in extension.tables.values():
        words += table.columns
        if wrong := set(table.columns.values()) - {*schema.SQL_TYPES.values(), "BIGINT"}:
            raise StoreError(f"the plug-in {extension.name}: a column is {', '.join(sorted(wrong))}")
        if table.key not in table.columns:
            raise StoreError(f"the plug-in {extension.name}: the key {table.key} is no column")
    for word in words:
        if not NAME_PATTERN.fullmatch(word):
            raise StoreError(f"the plug-in {extension.name}: {word!r} is no name of lower-case letters")


def prepare(tx: Tx, extension: Extension, *, keyed: bool) -> None:
    """Create what is missing and migrate what is older. Raises ``StoreError`` for tables that a newer one made."""
    check(extension)
    mark = VERSION_KEY + extension.name
    found = tx.all("SELECT value FROM t_meta WHERE name = ?", (mark,))
    if found and int(found[0][0]) > extension.version:
        text = f"its tables are version {found[0][0]}, and this plug-in {extension.name} knows {extension.version}"
        raise StoreError(f"{text}: install a newer one")
    for version in range(int(found[0][0]) if found else extension.version, extension.version):
        extension.migrations[version](tx)
    for name, table in extension.tables.items():
        schema.EXTENSION_TABLES[extension.table(name)] = table
        for statement in schema.create_sql(extension.table(name), keyed=keyed):
            tx.run(statement)
    tx.run("DELETE FROM t_meta WHERE name = ?", (mark,))
    tx.run("INSERT INTO t_meta VALUES (?, ?)", (mark, str(extension.version)))
