"""What is said instead of an answer: one error object, in the shape that llama.cpp's and OpenAI's clients read.

Never an empty completion: clients keep those and do not ask again for the same place.
"""

from typing import Any

from starlette.exceptions import HTTPException

from dg_lsp.errors import DgLspError, ModelError, ModelUnsupportedError, RemoteError, RequestError

CANCELLED = 499
"""As nginx calls a request that its client gave up; no client asks again because of it."""

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    CANCELLED: "cancelled_error",
    501: "not_supported_error",
    503: "unavailable_error",
    504: "timeout_error",
}


_SAID_WITH = {
    401: {"WWW-Authenticate": "Bearer"},
    415: {"Accept-Encoding": "identity"},
    429: {"Retry-After": "1"},
    501: {"X-Should-Retry": "false"},  # OpenAI's client would ask twice more
    503: {"Retry-After": "1"},
}


class Refusal(HTTPException):
    """An HTTP status, a sentence that says what to do next, and the field that is wrong, if one is."""

    def __init__(self, status: int, message: str, *, field: str = "", retry_after: int = 0) -> None:
        """`retry_after` is in seconds; 0 is the usual: a second where asking again helps, else nothing."""
        super().__init__(status, message, headers_of(status, retry_after))
        self.field = field


def headers_of(status: int, retry_after: int = 0) -> dict[str, str] | None:
    """What a refusal has to say beside its error object."""
    headers = dict(_SAID_WITH.get(status, {}))
    return {**headers, "Retry-After": str(retry_after)} if retry_after else headers or None


def loading() -> Refusal:
    """The model is not there yet; in llama.cpp's very words, which its clients look for."""
    return Refusal(503, "Loading model")


def refusal_of(error: BaseException) -> Refusal:
    """Our own errors speak for themselves; of others only the kind is named, for they may quote a buffer."""
    if isinstance(error, RequestError):
        return Refusal(400, str(error))
    if isinstance(error, ModelUnsupportedError):
        return Refusal(501, str(error))
    if isinstance(error, ModelError | RemoteError):
        return Refusal(503, str(error))
    return Refusal(500, str(error) if isinstance(error, DgLspError) else f"internal error: {type(error).__name__}")


def error_object(status: int, message: str, field: str = "") -> dict[str, Any]:
    """`{"error": {...}}`."""
    error: dict[str, Any] = {"code": status, "message": message, "type": _KINDS.get(status, "server_error")}
    return {"error": {**error, "param": field} if field else error}
