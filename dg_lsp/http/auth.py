"""Access control: API keys, allowed hosts and allowed origins.

Any web page that the user opens can send requests to this machine. It cannot hide its `Origin`, and after DNS
rebinding (its name resolves to this machine) it still sends that name as `Host`.
"""

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from starlette.datastructures import Headers

from dg_lsp.http.errors import ApiError
from dg_lsp.system import LOOPBACK

MAX_PER_CLIENT = 8
"""Open requests of one client, where there are several keys."""
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::\d*)?")
"""A name or address, an IPv6 address in brackets, and a port."""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The access rules of one server."""

    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys by the names of the clients that send them. Without keys none is required, and any that is sent is ignored.

    The first one is the operator's.
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
            if any(hmac.compare_digest(each.encode("latin-1"), key.encode()) for each in sent):
                return name
        return ""

    @property
    def operator(self) -> str:
        """The name of the client that sees the numbers of all clients; empty without keys."""
        return next(iter(self.keys), "")

    @property
    def max_per_client(self) -> int:
        """Most open requests of one client."""
        return MAX_PER_CLIENT if len(self.keys) > 1 else self.max_queued


def host_name(host: str) -> str:
    """`Host` in lower case, without its port and the brackets of an IPv6 address; empty for what is no host."""
    found = _HOST.fullmatch(host)
    if found is None:
        return ""
    address, name = found.groups()
    return (name.removesuffix(".") if address is None else address).lower()


def allowed_hosts(address: str, names: Sequence[str]) -> tuple[str, ...]:
    """The names of loopback, the address that the server binds, and the names that the user allows."""
    bound = host_name(address) if address.count(":") < 2 else address.lower()
    return (*LOOPBACK, bound, *(name.lower() for name in names))
