"""Why a server does not answer, as a sentence, and whether asking again may help."""

import re
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

from dg_lsp.errors import RemoteError

_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT = 60.0
_TOO_LONG = re.compile(rb"exceed_context|context_length|context (length|size|window)|too (long|large)", re.IGNORECASE)
"""What llama-server, vLLM, SGLang and OpenAI say of a prompt that is longer than their context."""
_EXPIRED, _OTHER_HOSTS = (10,), (62, 64)
"""OpenSSL's reasons to distrust a certificate."""


class Refused(RemoteError):  # noqa: N818  (it is an answer)
    """No answer."""

    def __init__(self, message: str, *, is_passing: bool = False, retry_after: float = 0.0) -> None:
        """`retry_after` in seconds, as the server wants it."""
        super().__init__(message)
        self.is_passing = is_passing
        self.retry_after = retry_after


def of_status(status: int, headers: Mapping[str, str], path: str, body: bytes = b"") -> Refused:
    """An HTTP status that is not 200; of what is said with it, only whether it is about length is looked at."""
    if status == 400 and _TOO_LONG.search(body):
        status = 413
    if 300 <= status < 400:
        return Refused(f"it sends us elsewhere (status {status}); set remote.url to where it really is")
    said = {
        400: "it does not take the request (status 400); try another remote.api, remote.fim or remote.model",
        401: "it wants a key (status 401); put it into the variable that remote.key_variable names",
        403: "it refuses the key (status 403); set another one",
        404: f"it has no {path} or no such model (status 404); check remote.url, remote.api and remote.model",
        405: f"it has no {path} (status 405); choose another remote.api",
        413: "the prompt is too long for it; lower remote.max_prompt_tokens",
        422: "it does not take the request (status 422); try another remote.api, remote.fim or remote.model",
        501: "it cannot do that with its model (status 501); choose another remote.api",
        429: "it has too much to do (status 429)",
        503: "it is not ready (status 503)",
    }.get(status, f"it fails with status {status}")
    if status not in _PASSING:
        return Refused(said)
    return Refused(said, is_passing=True, retry_after=_seconds(headers.get("retry-after", "")))


def of_connection(error: Exception) -> Refused:
    """What httpx raised. Only its kind is told."""
    name = type(error).__name__
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _of_certificate(cause.verify_code)
        if isinstance(cause, ssl.SSLError):
            return Refused("it does not speak TLS as we do; is remote.url http:// there, or another port?")
    if name == "ConnectTimeout":
        return Refused("it does not take connections in time", is_passing=True)
    if name in ("ConnectError", "ProxyError"):
        return Refused("nobody answers there; is the server running?", is_passing=True)
    if name in ("InvalidURL", "UnsupportedProtocol"):
        return Refused("remote.url is no address")
    return Refused(f"the connection broke ({name})", is_passing=True)


def _of_certificate(code: int) -> Refused:
    if code in _EXPIRED:
        return Refused("its certificate has expired; it has to be renewed there")
    if code in _OTHER_HOSTS:
        return Refused("its certificate is another host's; set remote.url to the name that stands in it")
    return Refused("its certificate is not trusted; set remote.ca_file")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _seconds(text: str) -> float:
    """`Retry-After`, seconds or a date, in seconds from now; 0 where it is neither."""
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_WAIT)
    with suppress(ValueError, OverflowError):
        return min(max(0.0, parsedate_to_datetime(text).timestamp() - time.time()), _LONGEST_WAIT)
    return 0.0
