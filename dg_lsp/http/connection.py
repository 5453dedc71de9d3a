"""One client's connection: what comes too slowly, too long or as no HTTP at all is told as JSON, and let go."""

import asyncio
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_lsp.http.refusal import error_object, headers_of
from dg_lsp.http.wire import answer, compact

HEAD_SECONDS = 10.0
"""For a request's head, from the connection or the head's first byte on."""
LINGER_SECONDS = 5.0
"""For the rest of a body that nobody reads any more: cut off at once, its client would not see the answer."""
WRITE_SECONDS = 30.0
"""For a client to take some of its answer."""
MAX_HEAD_BYTES = 65_536
MAX_CONNECTIONS = 512
"""Open ones, idle ones included: more could use up the process's files."""


class Clock:
    """Calls once when its time is over; to start it again while it runs changes nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self._loop = loop
        self._call = call
        self._timer: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """From now on."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._is_over)

    def stop(self) -> None:
        """Harmless where it does not run."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_over(self) -> None:
        self._timer = None
        self._call()


class Connection(H11Protocol):
    """uvicorn's, with clocks, and with our own error objects."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._reading = Clock(self.loop, self._is_slow)
        self._writing = Clock(self.loop, self._is_idle)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; one too many is told so when it asks."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self.app = _crowded
        self._reading.start(HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._reading.stop()
        self._writing.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a head or a body."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """An answer is on its way."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """The client takes nothing of its answer."""
        super().pause_writing()
        self._writing.start(WRITE_SECONDS)

    def resume_writing(self) -> None:
        """It does again."""
        self._writing.stop()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What came is no HTTP, or more of it than a head may be; h11's error says which."""
        status = getattr(sys.exception(), "error_status_hint", 400)
        if status == 431 and b"\n" not in self.conn.trailing_data[0]:
            status = 414
        self._refuse(status, _REASONS.get(status, _REASONS[400]))

    def _watch(self) -> None:
        """The clock runs while a head or an unread rest of a body comes in, and not while a request is answered."""
        if self.transport.is_closing():
            return
        theirs, is_answered = self.conn.their_state, self.conn.our_state is h11.DONE
        if theirs is h11.IDLE and self.conn.trailing_data[0]:
            self._reading.start(HEAD_SECONDS)
        elif theirs is h11.SEND_BODY and is_answered:
            self._reading.start(LINGER_SECONDS)
        else:
            self._reading.stop()

    def _is_slow(self) -> None:
        """Who has said nothing yet is not answered."""
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(408, f"the request's head did not arrive within {HEAD_SECONDS:.0f} s")
        else:
            self.transport.close()

    def _is_idle(self) -> None:
        """Whoever takes nothing of an answer gets no more of it."""
        self.transport.abort()

    def _refuse(self, status: int, message: str) -> None:
        """An answer to what never became a request; where another answer has begun, only its end."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = compact(error_object(status, message))
            headers = {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
                **(headers_of(status) or {}),
            }
            reason = HTTPStatus(status).phrase
            response = h11.Response(status_code=status, headers=list(headers.items()), reason=reason.encode())
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


_REASONS = {
    400: "this is no HTTP/1.1 request",
    414: f"the request's path is longer than {MAX_HEAD_BYTES} bytes",
    431: f"the request's head is longer than {MAX_HEAD_BYTES} bytes",
    501: "bodies come with a Content-Length or in chunks; no other Transfer-Encoding is understood",
}


async def _crowded(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {**(headers_of(503) or {}), "Connection": "close"}
    await answer(error_object(503, "too many connections; ask again later"), 503, headers)(scope, receive, send)
