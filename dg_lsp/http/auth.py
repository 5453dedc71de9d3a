"""Access control by API keys, allowed hosts and allowed origins, and the limits of connections.

Any web page that the user opens can send requests to this machine. It cannot hide its `Origin`, and after DNS
rebinding (its name resolves to this machine) it still sends that name as `Host`.
"""

import asyncio
import hmac
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from starlette.datastructures import Headers
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from dg_lsp.http.schemas import ApiError
from dg_lsp.system import LOOPBACK

MAX_PER_CLIENT = 8
"""Open requests of one client, where there are several keys."""
HEAD_SECONDS = 10.0
"""Time for the head of a request to arrive, counted from the connection or from its first byte."""
MAX_CONNECTIONS = 640
"""Open connections, idle ones included: more could use up the file descriptors of the process. When one more arrives,
the connection is closed that has waited longest for its client; those that have sent a key are closed last."""
READ_BYTES = 32_768
"""Bytes that are read from a connection at a time; parsing more of them would delay other clients."""
WRITE_SECONDS = 30.0
"""Time after which a connection is closed whose client does not read its response."""
OWN_USER = "the user of this process"
_PORT = re.compile(r":\d*$")
_TABLES = Path("/proc/net/tcp"), Path("/proc/net/tcp6")
_SOCKET = re.compile(r"\s+\d+: ([0-9A-F]+):([0-9A-F]{4}) ([0-9A-F]+):([0-9A-F]{4}) 01(?: \S+){3}\s+(\d+)")
"""A connection in Linux's table of TCP sockets: addresses and ports of both sides, and the user of the first one.

One that is being closed has no user there, but 0."""
_LOOPBACK = re.compile(r"(?:0000000000000000FFFF0000)?.{6}7F|0{24}01000000")
"""127.0.0.0/8, also as an IPv6 address, and ::1 in that table, whose words have the lowest byte first."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The access rules of one server."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by the names of the clients that send them. Without keys none is required, and any that is sent is ignored.

    The first one is that of the operator, who sees the numbers of all clients.
    """
    hosts: tuple[str, ...] = LOOPBACK
    """Allowed `Host` names without a port. Not checked when a key is required: a foreign page has no key."""
    origins: tuple[str, ...] = ()  # web pages that may send requests from a browser
    max_queued: int = 32  # requests at a time, running and waiting; further ones are refused

    def error(self, path: str, headers: Headers) -> ApiError | None:
        """The response to a request that is not allowed; None for one that is."""
        host, origin = headers.get("host"), headers.get("origin")
        if not self.keys and host is not None and host_name(host) not in self.hosts:
            return ApiError(403, "this Host is not allowed; use 127.0.0.1, or start the server with --allow-host")
        if origin is not None and origin not in self.origins:
            return ApiError(403, "this Origin is not allowed; start the server with --allow-origin to allow it")
        # a supervisor has no key; llama.cpp's server requires none for this path either
        if self.keys and path not in ("/health", "/v1/health") and not self.client(headers):
            return ApiError(401, "this server requires a key; send it as Authorization: Bearer KEY")
        return None

    def client(self, headers: Headers) -> str:
        """The name of the client whose key is sent; empty for none."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
        for name, key in self.keys.items():
            if any(hmac.compare_digest(value.encode("latin-1"), key.encode()) for value in sent):
                return name
        return ""

    @property
    def max_per_client(self) -> int:
        """Most open requests of one client."""
        return MAX_PER_CLIENT if len(self.keys) > 1 else self.max_queued


def host_name(host: str) -> str:
    """`Host` in lower case, without its port, the brackets of an IPv6 address and a dot at the end."""
    return _PORT.sub("", host).strip("[].").lower()


def allowed_hosts(address: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names of loopback, the address that the server binds, and the names that the user allows."""
    return (*LOOPBACK, address.lower(), *(name.lower() for name in names))


def is_of_this_user(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> bool:
    """Whether the user of this process holds the other side of a connection on this machine; false if unknown."""
    ports = (client[1], server[1]) if client and server else None
    for table in _TABLES:
        with suppress(OSError):
            for row in _SOCKET.finditer(table.read_text(encoding="ascii")):
                address, port, other_address, other_port, user = row.groups()
                is_local = _LOOPBACK.fullmatch(address) and _LOOPBACK.fullmatch(other_address)
                if is_local and (int(port, 16), int(other_port, 16)) == ports:
                    return int(user) == os.getuid()
    return False


_numbers = itertools.count(1)


class Connection(H11Protocol):
    """A connection of uvicorn that is closed if its client sends a head, or reads the response, too slowly."""

    since = 0.0
    """When the server began to wait for the client, in loop time."""
    has_key = False
    """A request on this connection had a key."""
    _timer: asyncio.TimerHandle | None = None
    """Closes the connection: while a head is awaited, and while the client does not read."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Closes the oldest of the connections that wait if too many are open; that may be this one."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.since = self.loop.time()
        self.app_state = {"connection": self}
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        if len(self.connections) > MAX_CONNECTIONS:
            waiting = [client for client in self.connections if isinstance(client, Connection) and client.is_waiting]
            oldest = min(waiting, key=lambda client: (client.has_key, client.since))
            oldest.transport.abort()
            self.connections.discard(oldest)  # others may be made before it is lost
        self._wait_at_most(HEAD_SECONDS)

    @override
    def data_received(self, data: bytes) -> None:
        had_request = self._has_request
        if not had_request and self._timer is None:
            self._wait_at_most(HEAD_SECONDS)
        super().data_received(data)
        if not had_request and self._has_request:
            self._wait_at_most(None)

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self.since = self.loop.time()
        self._wait_at_most(WRITE_SECONDS)

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_at_most(None)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.since = self.loop.time()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_at_most(None)
        super().connection_lost(exc)

    @cached_property
    def sender(self) -> int | str:
        """Who sends requests without a key: the user who runs this process, or this connection.

        llama.vim and other users of curl open a connection for each request. A port may be used again.
        """
        return OWN_USER if is_of_this_user(self.client, self.server) else next(_numbers)

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client: for a request, or to read the response."""
        return self._timer is not None or not self._has_request

    @property
    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_at_most(self, seconds: float | None) -> None:
        """Closes the connection after this time, unless it is called again before; None waits without a limit."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)
