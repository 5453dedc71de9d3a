"""Why a server gives no answer: error messages, whether a retry may help, and a circuit breaker.

Messages follow the name of the server: "HOST is busy (status 429)". They quote nothing that the server sent, because it
may contain the user's code.
"""

import re
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Self

from dg_lsp.errors import RemoteError

MAX_FAILURES = 3
"""Failures in a row that open the circuit breaker."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_REFUSALS = (429, 503)
_MAX_RETRY_AFTER = 60.0
_TOO_LONG = re.compile(rb"exceed_context|context_length|context (length|size|window)|too (long|large)", re.IGNORECASE)
"""How llama-server, vLLM, SGLang and OpenAI report a prompt that is longer than the context."""
_REJECTED = "rejects the request (status {status}); try another remote.api, remote.fim or remote.model"
_MESSAGES = {
    300: "redirects to another address (status {status}); set remote.url to that address",
    400: _REJECTED,
    401: "requires a key (status 401); put it into the environment variable of remote.key_source",
    403: "rejects the key (status 403); set another one",
    404: "has no {path} or no such model (status 404); check remote.url, remote.api and remote.model",
    405: "has no {path} (status 405); choose another remote.api",
    413: "has a shorter context than this prompt; lower remote.max_prompt_tokens",
    422: _REJECTED,
    429: "is busy (status 429)",
    501: "does not support this request with its model (status 501); choose another remote.api",
    503: "is not ready (status 503)",
}
_CERTIFICATES = {
    10: "has an expired certificate; it must be renewed on the server",
    62: "has the certificate of another host; set remote.url to the name in the certificate",
    64: "has the certificate of another host; set remote.url to the name in the certificate",
}
"""By OpenSSL's code of the verification error."""


class RemoteRequestError(RemoteError):
    """A request without an answer."""

    def __init__(
        self, message: str, *, is_transient: bool = False, retry_after: float = 0.0, is_refusal: bool = False
    ) -> None:
        """`retry_after` are the seconds that the server asks for; `is_refusal` where the server has too much work."""
        super().__init__(message)
        self.is_transient = is_transient
        self.retry_after = retry_after
        self.is_refusal = is_refusal

    @classmethod
    def at(cls, host: str, error: RemoteError) -> Self:
        """The error with the name of the server before its message."""
        return cls(f"{host} {error}", is_refusal=isinstance(error, RemoteRequestError) and error.is_refusal)


def status_error(status: int, headers: Mapping[str, str], path: str, body: bytes = b"") -> RemoteRequestError:
    """The error of an HTTP status other than 200; `body` only decides whether the prompt is too long."""
    if status == 400 and _TOO_LONG.search(body):
        status = 413
    redirection = _MESSAGES[300] if 300 <= status < 400 else "fails with status {status}"
    message = _MESSAGES.get(status, redirection).format(status=status, path=path)
    if status not in _TRANSIENT:
        return RemoteRequestError(message)
    retry_after = _retry_after(headers.get("retry-after", ""))
    return RemoteRequestError(message, is_transient=True, retry_after=retry_after, is_refusal=status in _REFUSALS)


def connection_error(error: Exception) -> RemoteRequestError:
    """The error of an exception that httpx raised; only its type enters the message."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            untrusted = "has a certificate that is not trusted; set remote.ca_file"
            return RemoteRequestError(_CERTIFICATES.get(cause.verify_code, untrusted))
        if isinstance(cause, ssl.SSLError):
            return RemoteRequestError("does not speak TLS on this port; set remote.url to http:// or another port")
        cause = cause.__cause__ or cause.__context__
    name = type(error).__name__
    if name == "ConnectTimeout":
        return RemoteRequestError(
            "does not accept connections in time; check its address and the network", is_transient=True
        )
    if name in ("ConnectError", "ProxyError"):
        return RemoteRequestError(
            "does not accept connections; start the server, or correct its address", is_transient=True
        )
    if name in ("InvalidURL", "UnsupportedProtocol"):
        return RemoteRequestError("is not an address; correct remote.url")
    return RemoteRequestError(
        f"broke the connection ({name}); try again, and read the log of the server", is_transient=True
    )


@dataclass(slots=True)
class CircuitBreaker:
    """Blocks requests for a pause after some failures in a row; the first request after the pause is the test."""

    pause: float  # seconds
    clock: Callable[[], float] = time.monotonic
    num_failures: int = 0
    blocked_until: float = 0.0
    reason: str = ""  # the last failure

    @property
    def seconds_left(self) -> float:
        """Of the pause; 0 where requests are allowed."""
        return max(0.0, self.blocked_until - self.clock())

    def record_success(self) -> None:
        """Closes the breaker."""
        self.num_failures = 0
        self.blocked_until = 0.0

    def record_failure(self, reason: str, retry_after: float = 0.0) -> None:
        """Blocks requests for `retry_after` seconds, after too many failures for the pause."""
        self.reason = reason
        self.num_failures += 1
        pause = self.pause if self.num_failures >= MAX_FAILURES else 0.0
        self.blocked_until = max(self.blocked_until, self.clock() + max(retry_after, pause))


def _retry_after(value: str) -> float:
    """The header `Retry-After`, seconds or a date, in seconds from now; 0 where it is neither."""
    if value.isascii() and value.isdigit():
        return min(float(value), _MAX_RETRY_AFTER)
    with suppress(ValueError, OverflowError):
        return min(max(0.0, parsedate_to_datetime(value).timestamp() - time.time()), _MAX_RETRY_AFTER)
    return 0.0
