"""The routes, and what becomes of what goes wrong on them: always a JSON object, never a page, never a traceback."""

import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dg_lsp.http import status
from dg_lsp.http.chat import apply, chat
from dg_lsp.http.completions import completions, fim_completions
from dg_lsp.http.counts import Counts
from dg_lsp.http.edits import edit
from dg_lsp.http.gate import Gate, Rules
from dg_lsp.http.infill import infill
from dg_lsp.http.openapi import openapi
from dg_lsp.http.refusal import CANCELLED, Refusal, error_object, refusal_of
from dg_lsp.http.service import Service
from dg_lsp.http.tabby import feedback
from dg_lsp.http.wire import answer

POSTED = {
    "/infill": infill,
    "/v1/completions": completions,
    "/v1/fim/completions": fim_completions,
    "/v1/chat/completions": chat,
    "/v1/edit/completions": edit,
    "/v1/apply/completions": apply,
    "/v1/events": feedback,
    "/feedback": feedback,
}
READ = {
    "/health": status.health,
    "/v1/models": status.models,
    "/props": status.props,
    "/slots": status.slots,
    "/memory": status.memory,
    "/metrics": status.metrics,
    "/openapi.json": openapi,
}


def create_app(service: Service, rules: Rules) -> Starlette:
    """The application over a service that is opening its model."""
    routes = [Route(path, endpoint, methods=["POST"]) for path, endpoint in POSTED.items()]
    routes += [Route(path, endpoint, methods=["GET"]) for path, endpoint in READ.items()]
    middleware = [Middleware(Counted, counts=service.counts), Middleware(Gate, rules=rules)]
    if rules.origins:
        # outside of the gate: a browser asks for permission without a key
        cors = Middleware(CORSMiddleware, allow_origins=rules.origins, allow_methods=["*"], allow_headers=["*"])
        middleware.insert(1, cors)
    app = Starlette(
        routes=routes,
        middleware=middleware,
        exception_handlers={HTTPException: refused, ClientDisconnect: gone, Exception: failed},
    )
    # "/infill/" is no path of ours either
    app.router.redirect_slashes = False
    app.state.service = service
    return app


def refused(request: Request, error: Exception) -> Response:
    """An error object; Starlette's own refusals (no such path, no such method) speak like ours."""
    assert isinstance(error, HTTPException)  # as registered
    message, field = error.detail, error.field if isinstance(error, Refusal) else ""
    if not isinstance(error, Refusal):
        known = ", ".join((*POSTED, *READ))
        message = (
            f"no such path; there are {known}" if error.status_code == 404 else f"{request.method} is not for this path"
        )
    return answer(error_object(error.status_code, message, field), error.status_code, error.headers)


def gone(_request: Request, _error: Exception) -> Response:
    """Nobody is there to read it."""
    return Response(status_code=CANCELLED)


def failed(_request: Request, error: Exception) -> Response:
    """A mistake of ours."""
    refusal = refusal_of(error)
    return answer(error_object(refusal.status_code, refusal.detail), refusal.status_code, refusal.headers)


class Counted:
    """ASGI middleware: every answer counts, by path and status."""

    def __init__(self, app: ASGIApp, counts: Counts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Notes the status on its way out."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, sent = time.monotonic(), {"status": 500}

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent["status"] = message["status"]
            await send(message)

        path = scope["path"] if scope["path"] in POSTED or scope["path"] in READ else "other"
        try:
            await self._app(scope, receive, noting)
        finally:
            self._counts.num_answers += 1
            self._counts.requests.add(1, path, str(sent["status"]))
            self._counts.seconds.observe(time.monotonic() - began, path)
