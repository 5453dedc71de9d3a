"""Messages of Copilot's language server that are not in the specification, for clients of that server."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.context.document import Cursor, TextStyle
from dg_lsp.engine.request import RewriteRequest
from dg_lsp.engine.result import RewriteResult
from dg_lsp.engine.rewrite import without_range
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.validate import fault_at
from dg_lsp.server.acceptance import ACCEPTED, accept_command
from dg_lsp.server.completion import explain_position
from dg_lsp.server.documents import minimal_changes
from dg_lsp.server.session import Server

INLINE_EDIT_MS = 2000.0
INLINE_EDIT_STRENGTH = 0.5


def register(server: Server) -> None:
    """Registers the handlers, and requests of our own."""

    def record(params: Any, event: str, length: int | None = None) -> None:
        # the item's name is the first argument of its command
        arguments = _field(params, "item", "command", "arguments")
        name = str(arguments[0]) if isinstance(arguments, list | tuple) and arguments else ""
        server.acceptance.record(name, event, length)
        server.settle()

    @server.command(ACCEPTED)
    def accepted(name: Any = None) -> None:
        server.acceptance.record(str(name), "accepted")
        server.settle()

    @server.feature("textDocument/didShowInlineEdit")
    @server.feature("textDocument/didShowCompletion")
    def did_show(params: Any) -> None:
        record(params, "shown")

    @server.feature("textDocument/didPartiallyAcceptCompletion")
    def did_accept_part(params: Any) -> None:
        length = _field(params, "acceptedLength")
        if isinstance(length, int) and length > 0:
            record(params, "accepted", length)

    @server.feature("textDocument/didFocus")
    def did_focus(params: Any) -> None:
        uri = str(_field(params, "textDocument", "uri"))
        server.focus(uri)
        document, at, offset = server.documents.get(uri), _position(server, params), None
        if document is not None and at is not None:
            offset, _ = server.documents.offsets(document.lines, types.Range(at, at))
        server.warm_up(uri, offset)

    @server.feature("textDocument/copilotInlineEdit")
    async def inline_edit(params: Any) -> dict[str, Any]:
        return await _inline_edit(server, params)

    _register_own(server)
    # a local model needs no account
    for method in ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"):
        server.feature(method)(lambda _params: {"status": "OK", "user": "local"})


def _register_own(server: Server) -> None:
    """Registers what is not Copilot's: `dg-lsp/why`, `dg-lsp/stats` and `dg-lsp/watch`."""

    @server.feature("dg-lsp/why")
    async def why(params: Any) -> dict[str, Any]:
        uri = str(_field(params, "textDocument", "uri"))
        return (await explain_position(server, uri, _position(server, params))).as_object()

    server.feature("dg-lsp/stats")(lambda _params: server.stats())

    @server.feature("dg-lsp/watch")
    def watch(params: Any) -> None:
        server.sends_canvases = bool(_field(params, "on"))


def _field(params: Any, *names: str) -> Any:
    """A nested field of parameters outside the specification; None if missing."""
    for name in names:
        params = params.get(name) if isinstance(params, Mapping) else None
    return params


def _position(server: Server, params: Any) -> types.Position | None:
    """The position of parameters outside the specification; None if it is missing or wrong."""
    try:
        position: types.Position = server.protocol.structured(_field(params, "position"), types.Position, "position")
    except JsonRpcInvalidParams:
        return None
    return position


def _inline_edit_problem(server: Server) -> str:
    """Why the model makes no inline edits; empty if it does. An infilling model makes most lines worse."""
    engine = server.engine()
    if engine is None:
        return "no inline edits: the model is not loaded"
    if engine.follows_instructions and engine.spec.has_free_canvas:
        return ""
    return f"no inline edits: {engine.spec.name} is no diffusion model that follows instructions"


async def _inline_edit(server: Server, params: Any) -> dict[str, Any]:
    """The answer to a request for an inline edit, with the reason where the model makes none."""
    if problem := _inline_edit_problem(server):
        server.log_once(problem)
        return {"edits": [], "reason": problem}
    return {"edits": await _inline_edits(server, params)}


async def _inline_edits(server: Server, params: Any) -> list[dict[str, Any]]:
    """A rewrite of the cursor's line that keeps half of its tokens; empty where ghost text would be hidden."""
    document = server.documents.get(str(_field(params, "textDocument", "uri")))
    at = _position(server, params)
    if document is None or at is None or at.line >= document.lines.num_lines:
        return []
    span = document.lines.span(at.line)
    snapshot = server.documents.snapshot(document, span)
    start, end = (snapshot.num_before + at for at in span)
    offset, _ = server.documents.offsets(document.lines, types.Range(at, at))
    if not snapshot.text[start:end].strip() or document.code.is_magic(span[0]):
        return []
    if not server.eligibility(snapshot, snapshot.num_before + offset).is_served:
        return []
    request = RewriteRequest(
        snapshot,
        start,
        end,
        strength=INLINE_EDIT_STRENGTH,
        deadline_ms=INLINE_EDIT_MS,
        snippets=server.snippets(snapshot, start),
    )
    try:
        result = await server.rewrite(request, is_automatic=True)
    except DgLspError as error:
        server.log(types.MessageType.Warning, f"inline edit: {error}")
        return []
    if result.rejection is not None or _has_fault(result, request):
        return []
    identifier, old = {"uri": document.uri, "version": document.version}, snapshot.text[result.start : result.end]
    return [
        {
            "text": change.text,
            "textDocument": identifier,
            "range": server.documents.range(document, change.start, change.end),
            "command": accept_command("Accept inline edit", server.acceptance.offer()),
        }
        for change in minimal_changes(old, result.text, result.start - snapshot.num_before)
    ]


def _has_fault(result: RewriteResult, request: RewriteRequest) -> bool:
    """A completion with this text in place of the range would be hidden."""
    shown, offset = without_range(replace(request, start=result.start, end=result.end), is_instructed=False)
    text = TextStyle.of(shown.text, offset).to_model(result.text)
    return fault_at(text, Cursor.at(shown.text, offset).as_shown(), shown, offset) is not None
