"""The open store and its ingester. Whoever needs either asks here, so that both are replaced in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream_proxy.control.problem import Problem

if TYPE_CHECKING:
    from slipstream_proxy.control.ingest import Ingester
    from slipstream_proxy.store.sqlstore import Store

RETRY = {"retry-after": "5"}


class StoreHandle:
    """``current`` is None while the store cannot be opened: the spool keeps everything until it can."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.current: Store | None = None
        self.ingester: Ingester | None = None

    def replace(self, store: Store | None, ingester: Ingester | None) -> None:
        self.current, self.ingester = store, ingester

    @property
    def shared(self) -> bool:
        """Other proxies use it too. While it cannot be opened, its URL says so."""
        return self.current.shared if self.current is not None else self.url.startswith("postgres")

    def require(self) -> Store:
        """Raises ``Problem`` 503 while there is none."""
        if self.current is None:
            raise Problem(
                503, "the store cannot be opened; the spool keeps calls and rewards until it can", headers=RETRY
            )
        return self.current
