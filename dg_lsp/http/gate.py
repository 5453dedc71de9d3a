"""Who may come in: a page in a browser may not, nor whoever lacks the key.

A page that a user happens to look at can send requests to this machine. It cannot hide its `Origin`, and after its
name was made to point here (DNS rebinding) it still says that name as `Host`.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from dg_lsp.http.refusal import error_object, headers_of
from dg_lsp.http.wire import answer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPEN_PATHS = ("/health",)
"""Asked without a key, as of llama.cpp: a supervisor has none."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one server."""

    api_key: str = ""
    """Empty asks for none; any key is then as good as no key."""
    hosts: tuple[str, ...] = LOOPBACK
    """What `Host` may be, without the port. Who asks for a key need not look at it: a foreign page has none."""
    origins: tuple[str, ...] = ()
    """Pages that may ask from a browser."""
    max_requests: int = 64
    """Requests in the house at a time, those that only ask for the server's health included."""


class Gate:
    """ASGI middleware, outside of everything that reads a body."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._key = rules.api_key.encode()
        self._num_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, or answers it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        if refused is not None:
            status, message = refused
            await answer(error_object(status, message), status, headers_of(status))(scope, receive, send)
            return
        self._num_inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_inside -= 1

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers, rules = Headers(scope=scope), self._rules
        host = headers.get("host")
        if not self._key and host is not None and host_name(host) not in rules.hosts:
            return 403, "this Host is not served; ask for 127.0.0.1, or start the server with --allow-host"
        origin = headers.get("origin")
        if origin is not None and origin not in rules.origins:
            return 403, "pages are not served; start the server with --allow-origin to let this one in"
        if self._key and scope["path"] not in OPEN_PATHS and not self._has_key(headers):
            return 401, "this server asks for a key; send it as Authorization: Bearer KEY"
        if self._num_inside >= rules.max_requests:
            return 503, "too many requests at a time; ask again later"
        return None

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", "")]
        if scheme.lower() == "bearer":
            given.append(token.strip())
        # each is compared in a time that says nothing of where it differs
        return any(hmac.compare_digest(one.encode("latin-1"), self._key) for one in given)


def host_name(host: str) -> str:
    """`Host` without its port and an IPv6 address's brackets, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def allowed_hosts(bound: str, more: Sequence[str]) -> tuple[str, ...]:
    """Loopback's names, the address that is listened on, and what the user allows."""
    return (*LOOPBACK, host_name(bound) if bound.count(":") < 2 else bound.lower(), *(one.lower() for one in more))
