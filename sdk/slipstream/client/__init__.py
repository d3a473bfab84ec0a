"""The control API's client: ``Client`` (sync) and ``AsyncClient``, for users, the judge and the trainer."""

from slipstream.client.requests import LeasedBatch
from slipstream.client.sessions import DEFAULT_URL, AsyncClient, Client

__all__ = ["DEFAULT_URL", "AsyncClient", "Client", "LeasedBatch"]
