"""Error responses: one JSON object in the shape that clients of llama.cpp and OpenAI read.

An error is never an empty completion: clients cache those and do not request the same position again.
"""

from collections.abc import Mapping
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse, Response

from dg_lsp.errors import DgLspError, ModelError, ModelUnsupportedError, OptionError, RemoteError, RequestError
from dg_lsp.http.request_schemas import SAMPLER_FIELDS

CANCELLED = 499
"""nginx's status for a request that its client gave up; no client retries because of it."""
STATUSES = {
    400: ("invalid_request_error", "A field or the body is invalid, or the model cannot take the request."),
    401: ("authentication_error", "The key is missing or wrong."),
    403: ("permission_error", "The Host or the Origin is not allowed."),
    404: ("not_found_error", "The path does not exist."),
    405: ("invalid_request_error", "The path does not support this method."),
    408: ("timeout_error", "The body did not arrive in time."),
    413: ("invalid_request_error", "The body is too long."),
    415: ("invalid_request_error", "The body is compressed."),
    431: ("invalid_request_error", "The head is too long."),
    429: ("rate_limit_error", "This client has too many open requests."),
    CANCELLED: ("cancelled_error", "A newer request for the same document replaced this one."),
    500: ("server_error", "The engine failed."),
    501: ("not_supported_error", "The model does not support this."),
    503: ("unavailable_error", "The model is loading, or too many requests are open."),
    504: ("timeout_error", "Nothing was finished at the deadline."),
}
"""Type and meaning of each status."""
HEADERS = {
    401: {"WWW-Authenticate": "Bearer"},
    408: {"Connection": "close"},
    413: {"Connection": "close"},
    415: {"Accept-Encoding": "identity"},
    429: {"Retry-After": "1"},
    501: {"X-Should-Retry": "false"},  # OpenAI's client would retry twice
    503: {"Retry-After": "1"},
}


class ApiError(HTTPException):
    """A status, a message with the next step for the user, and the invalid field, if one is invalid."""

    def __init__(self, status: int, message: str, *, field: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, message, headers or HEADERS.get(status))
        self.field = field


def api_error(error: BaseException) -> ApiError:
    """The response to an error of the engine. Foreign messages are left out: they may quote a buffer."""
    if not isinstance(error, DgLspError):
        return ApiError(500, f"internal error: {type(error).__name__}")
    if isinstance(error, OptionError):
        name = SAMPLER_FIELDS.get(error.option, error.option)
        return ApiError(400, f"Field '{name}' {error.problem}", field=name)
    statuses = {RequestError: 400, ModelUnsupportedError: 501, ModelError: 503, RemoteError: 503}
    return ApiError(next((status for kind, status in statuses.items() if isinstance(error, kind)), 500), str(error))


def error_object(error: ApiError) -> dict[str, Any]:
    """`{"error": {...}}`."""
    kind, _ = STATUSES.get(error.status_code, ("server_error", ""))
    fields = {"code": error.status_code, "message": error.detail, "type": kind}
    return {"error": {**fields, "param": error.field} if error.field else fields}


def error_response(error: ApiError) -> Response:
    """The error as a response."""
    return JSONResponse(error_object(error), error.status_code, error.headers)
