"""The FastAPI application: routes, middleware, and errors, which are JSON and never a traceback."""

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dg_lsp import __version__
from dg_lsp.http import chat, completions, status
from dg_lsp.http.auth import AccessMiddleware, AccessRules
from dg_lsp.http.errors import CANCELLED, HEADERS, STATUSES, ApiError, api_error, error_response
from dg_lsp.http.metrics import MetricsMiddleware
from dg_lsp.http.schemas import ErrorResponse
from dg_lsp.http.service import Service

MAX_BODY_BYTES = 8 * 2**20
ROUTERS = (completions.router, chat.router, status.router)
_MESSAGES = {
    400: "the request body is not valid JSON",
    404: "unknown path; GET /openapi.json lists all paths",
    405: "this path does not support this method",
}
"""Messages for errors that FastAPI raises."""


class HttpApp(FastAPI):
    """FastAPI that documents the key, which is optional for a server without one."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        tree = super().openapi()
        tree["security"] = [{}, {"key": []}]
        tree["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        return tree


def create_app(service: Service, rules: AccessRules) -> FastAPI:
    """The application of a service whose model may still load."""
    paths = frozenset(route.path for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
    middleware = [
        Middleware(MetricsMiddleware, metrics=service.metrics, paths=paths | {"/openapi.json"}),
        Middleware(AccessMiddleware, rules=rules),
        Middleware(BodyMiddleware),
    ]
    if rules.origins:  # outside of access control: the browser's preflight request has no key
        cors = Middleware(CORSMiddleware, allow_origins=rules.origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(1, cors)
    app = HttpApp(
        title="dg-lsp",
        version=__version__,
        license_info={"name": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_documented_errors(),
        middleware=middleware,
        exception_handlers={
            HTTPException: _http_error,
            RequestValidationError: _invalid_body,
            ClientDisconnect: _disconnected,
            Exception: _internal_error,
        },
    )
    for router in ROUTERS:
        app.include_router(router)
    app.state.service = service
    return app


class BodyMiddleware:
    """ASGI middleware: refuses long and compressed bodies, parses any body as JSON, and answers HEAD as GET."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"]}
        headers, num_bytes = MutableHeaders(scope=scope), 0
        too_long = ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes; send less context")
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            await error_response(ApiError(415, "the body is compressed; send it uncompressed"))(scope, receive, send)
            return
        if int(headers.get("content-length", "0")) > MAX_BODY_BYTES:
            await error_response(too_long)(scope, receive, send)
            return
        headers["content-type"] = "application/json"  # curl sends another one; llama.cpp's server ignores it

        async def receive_limited() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > MAX_BODY_BYTES:
                raise too_long
            return message

        await self._app(scope, receive_limited, send)


async def _http_error(_request: Request, error: HTTPException) -> Response:
    if isinstance(error, ApiError):
        return error_response(error)
    own = ApiError(error.status_code, _MESSAGES.get(error.status_code, error.detail))
    own.headers = error.headers
    return error_response(own)


async def _invalid_body(_request: Request, error: RequestValidationError) -> Response:
    """Names the first invalid field. pydantic's messages quote no value."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        position = f"{first['ctx']['error']} at character {first['loc'][1]}"
        return error_response(ApiError(400, f"{_MESSAGES[400]}: {position}"))
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:])
    field = "".join(parts).removeprefix(".")
    subject = f"Field '{field}'" if field else "the request body"
    return error_response(ApiError(400, f"{subject}: {first['msg']}", field=field))


async def _disconnected(_request: Request, _error: ClientDisconnect) -> Response:
    return Response(status_code=CANCELLED)


async def _internal_error(_request: Request, error: Exception) -> Response:
    return error_response(api_error(error))


def _documented_errors() -> dict[int | str, dict[str, Any]]:
    documented: dict[int | str, dict[str, Any]] = {
        "default": {"model": ErrorResponse, "description": "Any other error."}
    }
    for number, (_, description) in STATUSES.items():
        headers = {name: {"required": True, "schema": {"type": "string"}} for name in HEADERS.get(number, {})}
        documented[number] = {"model": ErrorResponse, "description": description, "headers": headers}
    return documented
