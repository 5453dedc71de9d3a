"""Connections with limits of time and number: a client that is idle or does not read keeps no other from connecting."""

import asyncio
import itertools
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_lsp.http.errors import ApiError, error_response

HEAD_SECONDS = 10.0
"""For the head of a request, from the connection or its first byte on."""
MAX_CONNECTIONS = 640
"""Idle ones included; more could use up the files of the process."""
READ_BYTES = 65_536
"""Bytes that are read from a connection at a time: parsing more of them in small chunks would delay other clients."""
MAX_FRAMING_BYTES = 131_072
"""Bytes of a request that are not its body, and an eighth of the body more: a chunk of one byte has six."""
WRITE_SECONDS = 30.0
"""For a client that does not read its response."""
MAX_PIPELINED = 8
"""Requests that a client sends without waiting for responses; after so many the connection is closed."""
MAX_WAITING = 128
"""Connections whose clients send no request, or do not read the response. Of more, the oldest is closed, if it has
waited for `GRACE_SECONDS`; those that have sent a key come last."""
GRACE_SECONDS = 1.0
"""Of many connections at once, even one whose request is here already has not been read yet."""
_MESSAGES = {
    400: "the request is not valid HTTP/1.1",
    431: "the head is too long; send fewer headers",
    501: "of the transfer encodings only chunked is supported",
}
"""By the status that h11 suggests."""


_numbers = itertools.count(1)


class Connection(H11Protocol):
    """A connection of uvicorn that ends if the head of a request, or reading the response, takes too long."""

    since = 0.0
    """When the connection was made, its last request was answered, or the client stopped reading, in loop time."""
    number = 0  # no two connections of a process have the same; a port may be used again
    has_key = False
    """A request on this connection had a key."""
    _num_pipelined = 0
    _num_bytes = _num_body_bytes = 0  # received since the last response
    _writing: asyncio.TimerHandle | None = None  # while the client does not read
    _timeout: asyncio.TimerHandle | None = None  # while a head is awaited

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the oldest of too many connections that wait; refuses one more than can be open if none waits."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since, self.number = self.loop.time(), next(_numbers)
        self.app_state = {"connection": self}
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.is_waiting]
        oldest = min(waiting, key=lambda one: (one.has_key, one.since))
        is_over = len(self.connections) > MAX_CONNECTIONS
        if is_over and oldest is self:
            self._send_error(503, "too many connections are open; try again later")
            return
        if is_over or (len(waiting) > MAX_WAITING and self.since - oldest.since >= GRACE_SECONDS):
            oldest.transport.abort()
            self.connections.discard(oldest)  # others may be made before it is lost
        self._start_timeout()

    def data_received(self, data: bytes) -> None:
        """Measures the time of the head, and the bytes that are not the body."""
        if self._timeout is None and not self._has_request:
            self._start_timeout()
        num_before = len(self.cycle.body) if self._has_request else 0
        super().data_received(data)
        if not self._has_request:
            return
        self._stop_timeout()
        self._num_bytes += len(data)
        self._num_body_bytes += len(self.cycle.body) - num_before
        if self._num_bytes - self._num_body_bytes > MAX_FRAMING_BYTES + self._num_body_bytes // 8:
            self._send_error(400, "the body has too many small chunks; send it at once")

    def pause_writing(self) -> None:
        """Gives a client that does not read some time."""
        super().pause_writing()
        self.since = self.loop.time()
        self._writing = self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Ends that time."""
        super().resume_writing()
        self._stop_writing()

    def on_response_complete(self) -> None:
        """Notes since when the client may send its next request, and whether it has sent it already."""
        has_next, _ = self.conn.trailing_data
        self._num_pipelined = self._num_pipelined + 1 if has_next else 0
        if self._num_pipelined > MAX_PIPELINED:
            self.transport.close()
        self._num_bytes = self._num_body_bytes = 0
        super().on_response_complete()
        self.since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the measurement."""
        self._stop_timeout()
        self._stop_writing()
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
        """Without a request, or with a response that the client does not read."""
        return self._writing is not None or not self._has_request

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timeout(self) -> None:
        self._timeout = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
