"""The FastAPI application and the server that runs it. Errors are JSON and never a traceback; no content is logged."""

import asyncio
import logging
import socket
import sys
import time

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from typing_extensions import override

from dg_lsp import __version__
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.scheduler import OpenScheduler
from dg_lsp.errors import UsageError
from dg_lsp.http.auth import READ_BYTES, AccessRules, Connection
from dg_lsp.http.routes import router
from dg_lsp.http.schemas import CANCELLED, ApiError
from dg_lsp.http.service import Service
from dg_lsp.settings import Settings
from dg_lsp.system import LOOPBACK

BACKLOG = 128
BODY_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 75
MAX_BODY_BYTES = 8 * 2**20
MAX_HEAD_BYTES = 65_536
"""uvicorn counts those that have arrived when a head is incomplete; the next piece may complete it."""
STOP_SECONDS = 5
"""For responses that are being sent."""
_MESSAGES = {
    400: "the request body is not valid JSON",
    404: "unknown path; GET /openapi.json lists all paths",
    405: "this path does not support this method",
}
"""Messages for errors that FastAPI raises."""


class HttpServer(uvicorn.Server):
    """Listens at once, and answers with status 503 until its models are loaded."""

    def __init__(
        self,
        address: tuple[str, int],
        open_scheduler: OpenScheduler,
        settings: Settings,
        rules: AccessRules,
    ) -> None:
        """Port 0 takes a free one.

        Raises:
            UsageError: the address cannot be bound, or is open to other machines without a key.
        """
        host, port = address
        if host not in LOOPBACK and not rules.keys:
            raise UsageError(
                f"{host} is open to other machines: set DG_LSP_API_KEY, give --api-key-file, or use 127.0.0.1"
            )
        self._socket = _bind(host, port)
        self._note = "" if host in LOOPBACK else ", without encryption: put a proxy with https before it"
        self._service = Service(open_scheduler, settings, _log, rules)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            create_app(self._service),
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES - READ_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        super().__init__(config)

    @override
    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until a signal, or until any thread sets `should_exit`.

        Raises:
            ModelError, BackendError: a model cannot be opened.
            KeyboardInterrupt: Ctrl-C.
        """
        for name in ("uvicorn", "asyncio"):  # tracebacks may quote a buffer; none may reach standard error
            logger = logging.getLogger(name)
            logger.addHandler(logging.NullHandler())
            logger.propagate = False
        with self._socket:
            asyncio.run(self._serve_models())

    async def _serve_models(self) -> None:
        start = time.monotonic()
        serving = asyncio.create_task(self.serve([self._socket]))
        host = self._socket.getsockname()[0]
        _log(f"listening on http://{f'[{host}]' if ':' in host else host}:{self.port}{self._note}")
        opening = asyncio.create_task(self._open(start))
        await asyncio.wait({serving, opening}, return_when=asyncio.FIRST_COMPLETED)
        if opening.done() and (error := opening.exception()):
            self.should_exit = True
            await serving
            raise error
        await serving
        opening.cancel()

    async def _open(self, start: float) -> None:
        """Waits for the engines, and logs each."""
        for scheduler in self._service.models.schedulers:
            engine: Engine = await asyncio.wrap_future(scheduler.ready)
            _log(f"{engine.spec.name} ready after {time.monotonic() - start:.2f} s")

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops the model before it waits for responses, which wait for the model."""
        await asyncio.to_thread(self._service.close)
        await super().shutdown(sockets)


def create_app(service: Service) -> FastAPI:
    """The application of a service whose model may still load."""
    middleware = [Middleware(RequestMiddleware, service=service)]
    origins = service.rules.origins
    if origins:  # outside of access control: the browser's preflight request has no key
        cors = Middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(0, cors)
    app = FastAPI(
        title="dg-lsp",
        version=__version__,
        license_info={"name": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"description": "An error: an object with code, message and type."}},
        middleware=middleware,
        exception_handlers={
            RequestValidationError: _invalid_body,
            HTTPException: _http_error,
            Exception: _engine_error,
        },
    )
    app.include_router(router)
    app.state.service = service
    return app


class RequestMiddleware:
    """ASGI middleware: counts responses by path and status; refuses requests that are forbidden, long or slow.

    It treats every body as JSON, and a HEAD request as GET.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._metrics = service.metrics
        self._rules = service.rules
        self._paths = {"/openapi.json", *(route.path for route in router.routes if isinstance(route, APIRoute))}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request and counts it; unknown paths count as `other`."""
        start = time.monotonic()
        status = 0
        connection: Connection = scope["state"]["connection"]
        headers = MutableHeaders(scope=scope)
        error = self._rules.error(scope["path"], headers)
        client = self._rules.client(headers)
        connection.has_key = connection.has_key or bool(client)
        is_operator = bool(client) and client == next(iter(self._rules.keys))
        state = {"client": client or connection.sender, "is_operator": is_operator}
        scope = {**scope, "method": "GET" if scope["method"] == "HEAD" else scope["method"], "state": state}
        headers["content-type"] = "application/json"  # curl sends another one; llama.cpp's server ignores it

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(scope["state"].get("headers", {}))
            await send(message)

        app = self._app if error is None else error.response
        path = scope["path"] if scope["path"] in self._paths else "other"
        try:
            await app(scope, _limited(receive), send_and_note)
        finally:  # no response has begun where the application failed, or the client has disconnected
            status = status or (500 if sys.exception() else CANCELLED)
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - start)


def _limited(receive: Receive) -> Receive:
    """Receives a body, and raises an `ApiError` for one that is too long or too slow."""
    end = asyncio.get_running_loop().time() + BODY_SECONDS
    num_bytes = 0
    is_whole = False

    async def receive_limited() -> Message:
        nonlocal num_bytes, is_whole
        try:
            async with asyncio.timeout_at(None if is_whole else end):
                message = await receive()
        except TimeoutError:
            raise ApiError(408, f"the body took longer than {BODY_SECONDS:.0f} s; send it at once") from None
        is_whole = not message.get("more_body", False)
        num_bytes += len(message.get("body", b""))
        if num_bytes > MAX_BODY_BYTES:
            raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes; send less context")
        return message

    return receive_limited


async def _engine_error(_request: Request, error: Exception) -> Response:
    return ApiError.of(error).response


async def _http_error(_request: Request, error: HTTPException) -> Response:
    if not isinstance(error, ApiError):
        error = ApiError(error.status_code, _MESSAGES.get(error.status_code, error.detail), headers=error.headers)
    return error.response


async def _invalid_body(_request: Request, error: RequestValidationError) -> Response:
    """Names the first invalid field. pydantic's messages quote no value."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        position = f"{first['ctx']['error']} at character {first['loc'][1]}"
        return ApiError(400, f"{_MESSAGES[400]}: {position}").response
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"][1:])
    field = "".join(parts).removeprefix(".")
    subject = f"Field '{field}'" if field else "the request body"
    return ApiError(400, f"{subject}: {first['msg']}", field=field).response


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
    except (OSError, OverflowError, UnicodeError) as error:
        reason, _, _ = str(getattr(error, "strerror", None) or error).partition(" (")
        raise UsageError(f"cannot listen on {host}:{port} ({reason}); choose another --host or --port") from error
    # with its protocol, or asyncio does not set TCP_NODELAY and responses take 40 ms longer
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, listener.detach())


def _log(message: str) -> None:
    sys.stderr.write(f"dg-lsp: {message}\n")
