"""Connections with limits of time and number: an idle client does not keep others from connecting."""

import asyncio
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_lsp.http.errors import ApiError, error_response

HEAD_SECONDS = 10.0
"""For the head of a request, from the connection or its first byte on."""
MAX_CONNECTIONS = 640
"""Idle ones included; more could use up the files of the process."""
MAX_WAITING = 128
"""Connections without a request, those that had one included; of more, the oldest is closed, if it had time to send
one."""
GRACE_SECONDS = 1.0
"""That time. Of many connections at once, even one whose request is here already has not been read yet."""
_MESSAGES = {
    400: "the request is not valid HTTP/1.1",
    431: "the head is too long; send fewer headers",
    501: "of the transfer encodings only chunked is supported",
}
"""By the status that h11 suggests."""


class Connection(H11Protocol):
    """A connection of uvicorn that ends if the head of a request takes too long."""

    since = 0.0  # when the connection was made, or its last request answered, in seconds of the loop
    _timeout: asyncio.TimerHandle | None = None  # while a head is awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the oldest of too many connections without a request; refuses one more than can be open."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since = self.loop.time()
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.is_waiting]
        oldest = min(waiting, key=lambda one: one.since)
        if len(waiting) > MAX_WAITING and self.since - oldest.since >= GRACE_SECONDS:
            oldest.transport.abort()
        elif len(self.connections) > MAX_CONNECTIONS:
            self._send_error(503, "too many connections are open; try again later")
            return
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Measures the time of the head."""
        if self._timeout is None and not self._has_request:
            self._start_timeout()
        super().data_received(data)
        if self._has_request:
            self._stop_timeout()

    def on_response_complete(self) -> None:
        """Notes since when the client may send its next request."""
        super().on_response_complete()
        self.since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the measurement."""
        self._stop_timeout()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no HTTP as any other error; called while the error of h11 is handled."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        self._send_error(status, _MESSAGES.get(status, msg))

    def _send_error(self, status: int, message: str) -> None:
        """Sends an error in JSON, unless an answer is on its way, and closes."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = error_response(ApiError(status, message))
            headers = [*response.raw_headers, (b"connection", b"close")]
            for event in (
                h11.Response(status_code=response.status_code, headers=headers),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def is_waiting(self) -> bool:
        """Open, without a request."""
        return not (self._has_request or self.transport.is_closing())

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None
