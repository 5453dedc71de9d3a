"""Why a server does not answer, as a sentence, and whether asking again may help."""

import ssl
from collections.abc import Mapping

from dg_lsp.errors import RemoteError

_PASSING = (408, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT = 60.0


class Refused(RemoteError):  # noqa: N818  (it is an answer)
    """No answer."""

    def __init__(self, message: str, *, is_passing: bool = False, retry_after: float = 0.0) -> None:
        """`retry_after` in seconds, as the server wants it."""
        super().__init__(message)
        self.is_passing = is_passing
        self.retry_after = retry_after


def of_status(status: int, headers: Mapping[str, str], path: str) -> Refused:
    """An HTTP status that is not 200."""
    if 300 <= status < 400:
        return Refused(f"it sends us elsewhere (status {status}); set remote.url to where it really is")
    said = {
        400: "it does not take the request (status 400); try another remote.api, remote.fim or remote.model",
        401: "it wants a key (status 401); put it into the variable that remote.key_variable names",
        403: "it refuses the key (status 403); set another one",
        404: f"it has no {path} or no such model (status 404); check remote.url, remote.api and remote.model",
        405: f"it has no {path} (status 405); choose another remote.api",
        413: "the prompt is too long for it (status 413); lower remote.max_prompt_tokens",
        422: "it does not take the request (status 422); try another remote.api, remote.fim or remote.model",
        429: "it has too much to do (status 429)",
        503: "it is not ready (status 503)",
    }.get(status, f"it fails with status {status}")
    return Refused(said, is_passing=status in _PASSING, retry_after=_seconds(headers.get("retry-after", "")))


def of_connection(error: Exception) -> Refused:
    """What httpx raised. Only its kind is told."""
    name = type(error).__name__
    if _is_about_certificate(error):
        return Refused("its certificate is not trusted; set remote.ca_file")
    if name == "ConnectTimeout":
        return Refused("it does not take connections in time", is_passing=True)
    if name in ("ConnectError", "ProxyError"):
        return Refused("nobody answers there; is the server running?", is_passing=True)
    if name in ("InvalidURL", "UnsupportedProtocol"):
        return Refused("remote.url is no address")
    return Refused(f"the connection broke ({name})", is_passing=True)


def _is_about_certificate(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _seconds(text: str) -> float:
    """`Retry-After` in seconds; a date is not read."""
    return min(float(text), _LONGEST_WAIT) if text.isascii() and text.isdigit() else 0.0
