"""Messages of Copilot's language server that are not in the specification, for clients of that server."""

from typing import Any

from lsprotocol import types

from dg_lsp.engine.request import RewriteRequest
from dg_lsp.errors import DgLspError
from dg_lsp.server.documents import lsp_range, minimal_changes
from dg_lsp.server.session import Server
from dg_lsp.server.transport import field_of

ACCEPTED = "dg-lsp.accepted"
"""Command that the editor runs when an item is accepted; its argument is the item's name."""
WATCH = "dg-lsp/watch"
"""Notification `{on}`: turns `dg-lsp/denoising` on or off."""
STATS = "dg-lsp/stats"
"""Request for the counts and the model time of the session."""
INLINE_EDIT_MS = 2000.0
INLINE_EDIT_STRENGTH = 0.5


def register(server: Server) -> None:
    """Registers the handlers."""
    _register_acceptance(server)
    _register_requests(server)
    # a local model needs no account
    for method in ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"):
        server.feature(method)(_signed_in)


def _register_acceptance(server: Server) -> None:
    @server.command(ACCEPTED)
    def accepted(name: Any = None) -> None:
        server.acceptance.accept(str(name))
        server.status.update()

    @server.feature("textDocument/didShowCompletion")
    def did_show(params: Any) -> None:
        server.acceptance.show(_name(field_of(params, "item")))
        server.status.update()

    @server.feature("textDocument/didPartiallyAcceptCompletion")
    def did_accept_part(params: Any) -> None:
        length = field_of(params, "acceptedLength")
        if isinstance(length, int):
            server.acceptance.accept(_name(field_of(params, "item")), length)
            server.status.update()

    @server.feature("textDocument/didShowInlineEdit")
    def did_show_edit(params: Any) -> None:
        server.acceptance.show(_name(field_of(params, "item")))


def _register_requests(server: Server) -> None:
    @server.feature("textDocument/didFocus")
    def did_focus(params: Any) -> None:
        server.active_document = str(field_of(field_of(params, "textDocument"), "uri"))
        server.update_status()

    @server.feature("textDocument/copilotInlineEdit")
    async def inline_edit(params: Any) -> dict[str, Any]:
        return {"edits": await _inline_edits(server, params)}

    @server.feature(STATS)
    def stats(_params: Any) -> dict[str, float]:
        return server.stats()

    @server.feature(WATCH)
    def watch(params: Any) -> None:
        server.sends_canvases = bool(field_of(params, "on"))


def _signed_in(_params: Any) -> dict[str, str]:
    return {"status": "OK", "user": "local"}


async def _inline_edits(server: Server, params: Any) -> list[dict[str, Any]]:
    """A rewrite of the cursor's line that keeps half of its tokens; empty if its confidence is too low."""
    identifier = field_of(params, "textDocument")
    document = server.documents.get(str(field_of(identifier, "uri")))
    at = field_of(params, "position")
    line, character = field_of(at, "line"), field_of(at, "character")
    if document is None or not (isinstance(line, int) and isinstance(character, int)):
        return []
    snapshot = document.snapshot()
    if server.is_excluded(snapshot) or not 0 <= line < document.lines.num_lines:
        return []
    start, end = document.lines.span(line)
    if not snapshot.text[start:end].strip():
        return []
    request = RewriteRequest(
        snapshot,
        start,
        end,
        strength=INLINE_EDIT_STRENGTH,
        deadline_ms=INLINE_EDIT_MS,
        snippets=server.snippets(snapshot, start),
        min_confidence=server.settings.completion.min_confidence,
    )
    try:
        result = await server.rewrite(request)
    except DgLspError as error:
        server.log(types.MessageType.Warning, f"inline edit: {error}")
        return []
    if result.rejection is not None:
        return []
    old = snapshot.text[result.start : result.end]
    encoding = server.documents.encoding
    return [
        {
            "text": change.text,
            "textDocument": {"uri": document.uri, "version": document.version},
            "range": lsp_range(document.lines, change.start, change.end, encoding),
            "command": types.Command("Accept inline edit", ACCEPTED, arguments=[server.acceptance.offer(change.text)]),
        }
        for change in minimal_changes(old, result.text, result.start)
    ]


def _name(item: Any) -> str:
    """The name that `Acceptance.offer` gave the item: the first argument of its command."""
    arguments = field_of(field_of(item, "command"), "arguments")
    return str(arguments[0]) if isinstance(arguments, list | tuple) and arguments else ""
