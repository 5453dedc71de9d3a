"""Connections of clients that have not sent a request yet: they have little time, and take no places of others."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""For the head of a request, from the connection or its first byte on."""
MAX_WAITING = 128
"""Connections without a request; of more, the oldest is closed."""


class Connection(H11Protocol):
    """A connection of uvicorn that ends if the head of a request takes too long."""

    since = 0.0  # when the connection was made, in seconds of the loop
    _timeout: asyncio.TimerHandle | None = None  # while a head is awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the oldest of too many connections without a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since = self.loop.time()
        self._start_timeout()
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.cycle is None]
        if len(waiting) > MAX_WAITING:
            min(waiting, key=lambda one: one.since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Measures the time of the head."""
        if self._timeout is None and not self._has_request:
            self._start_timeout()
        super().data_received(data)
        if self._has_request:
            self._stop_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the measurement."""
        self._stop_timeout()
        super().connection_lost(exc)

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
