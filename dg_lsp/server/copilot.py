"""Messages of Copilot's language server that are not in the specification, for clients of that server."""

from collections.abc import Mapping
from typing import Any

from lsprotocol import types

from dg_lsp.engine.request import RewriteRequest
from dg_lsp.errors import DgLspError
from dg_lsp.server.documents import minimal_changes
from dg_lsp.server.session import ACCEPTED, Server, accept_command

INLINE_EDIT_MS = 2000.0
INLINE_EDIT_STRENGTH = 0.5


def register(server: Server) -> None:
    """Registers the handlers, and two requests of ours: `dg-lsp/watch` and `dg-lsp/stats`."""

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
        uri = server.active_document = str(_field(params, "textDocument", "uri"))
        server.update_status()
        document = server.documents.get(uri)
        line, character = _field(params, "position", "line"), _field(params, "position", "character")
        is_at = document is not None and isinstance(line, int) and isinstance(character, int)
        at = types.Position(line, character) if is_at else None
        server.warm_up(
            uri, server.documents.offsets(document.lines, types.Range(at, at))[0] if document and at else None
        )

    @server.feature("textDocument/copilotInlineEdit")
    async def inline_edit(params: Any) -> dict[str, Any]:
        return {"edits": await _inline_edits(server, params)}

    server.feature("dg-lsp/stats")(lambda _params: server.stats())

    @server.feature("dg-lsp/watch")
    def watch(params: Any) -> None:
        server.sends_canvases = bool(_field(params, "on"))

    # a local model needs no account
    for method in ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"):
        server.feature(method)(lambda _params: {"status": "OK", "user": "local"})


def _field(params: Any, *names: str) -> Any:
    """A nested field of parameters outside the specification, parsed as objects or mappings; None if missing."""
    for name in names:
        params = params.get(name) if isinstance(params, Mapping) else getattr(params, name, None)
    return params


async def _inline_edits(server: Server, params: Any) -> list[dict[str, Any]]:
    """A rewrite of the cursor's line that keeps half of its tokens; empty if its confidence is too low."""
    document = server.documents.get(str(_field(params, "textDocument", "uri")))
    line = _field(params, "position", "line")
    if document is None or not isinstance(line, int) or not 0 <= line < document.lines.num_lines:
        return []
    snapshot = document.snapshot()
    start, end = document.lines.span(line)
    if not snapshot.text[start:end].strip() or server.is_excluded(snapshot):
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
        result = await server.rewrite(request)
    except DgLspError as error:
        server.log(types.MessageType.Warning, f"inline edit: {error}")
        return []
    if result.rejection is not None:
        return []
    identifier = {"uri": document.uri, "version": document.version}
    return [
        {
            "text": change.text,
            "textDocument": identifier,
            "range": server.documents.range(document, change.start, change.end),
            "command": accept_command("Accept inline edit", server.acceptance.offer()),
        }
        for change in minimal_changes(snapshot.text[result.start : result.end], result.text, result.start)
    ]
