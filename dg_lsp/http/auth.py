"""Access control: API key, allowed hosts and allowed origins.

Any web page that the user opens can send requests to this machine. It cannot hide its `Origin`, and after DNS
rebinding (its name resolves to this machine) it still sends that name as `Host`.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from dg_lsp.http.errors import ApiError
from dg_lsp.system import LOOPBACK


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The access rules of one server."""

    api_key: str = ""  # empty requires no key and ignores any key that is sent
    hosts: tuple[str, ...] = LOOPBACK
    """Allowed `Host` names without a port. Not checked when a key is required: a foreign page has no key."""
    origins: tuple[str, ...] = ()  # web pages that may send requests from a browser
    max_queued: int = 32  # requests at a time, running and waiting; further ones are refused

    def error(self, path: str, headers: Headers) -> ApiError | None:
        """The response to a request that is not allowed; None for one that is."""
        host, origin = headers.get("host"), headers.get("origin")
        if not self.api_key and host is not None and host_name(host) not in self.hosts:
            return ApiError(403, "this Host is not allowed; use 127.0.0.1, or start the server with --allow-host")
        if origin is not None and origin not in self.origins:
            return ApiError(403, "this Origin is not allowed; start the server with --allow-origin to allow it")
        # a supervisor has no key; llama.cpp's server requires none for this path either
        if self.api_key and path not in ("/health", "/v1/health") and not self._is_key_in(headers):
            return ApiError(401, "this server requires a key; send it as Authorization: Bearer KEY")
        return None

    def is_known(self, headers: Headers) -> bool:
        """Whether the client has the key, or needs none; for requests that are allowed."""
        return not self.api_key or self._is_key_in(headers)

    def _is_key_in(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        sent = (headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else "")
        return any(hmac.compare_digest(key.encode("latin-1"), self.api_key.encode()) for key in sent)


def host_name(host: str) -> str:
    """`Host` in lower case, without its port and the brackets of an IPv6 address."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def allowed_hosts(address: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names of loopback, the address that the server binds, and the names that the user allows."""
    bound = host_name(address) if address.count(":") < 2 else address.lower()
    return (*LOOPBACK, bound, *(name.lower() for name in names))
