"""Messages that Copilot's language server knows and the specification does not; so its clients can talk to ours."""

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from dg_lsp.engine.request import RewriteRequest
from dg_lsp.errors import DgLspError
from dg_lsp.server.documents import lsp_range, minimal_changes
from dg_lsp.server.transport import field_of

if TYPE_CHECKING:
    from dg_lsp.server.session import Server

ACCEPTED = "dg-lsp.accepted"
"""Run by the editor when an item is taken; its argument is the item's name."""
WATCH = "dg-lsp/watch"
"""`{on}`: whether the client wants to see canvases settle."""
STATS = "dg-lsp/stats"
"""A request for what the session has cost and brought."""
INLINE_EDIT_MS = 2000.0
INLINE_EDIT_STRENGTH = 0.5


def register(server: "Server") -> None:
    """Listens to them."""
    _register_acceptance(server)
    _register_places(server)
    # nobody has to sign in to a model of their own
    for method in ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"):
        server.feature(method)(_signed_in)


def _register_acceptance(server: "Server") -> None:
    @server.command(ACCEPTED)
    def accepted(name: Any = None) -> None:
        server.acceptance.accept(str(name))
        server.status.change()

    @server.feature("textDocument/didShowCompletion")
    def did_show(params: Any) -> None:
        server.acceptance.show(_name(field_of(params, "item")))
        server.status.change()

    @server.feature("textDocument/didPartiallyAcceptCompletion")
    def did_accept_part(params: Any) -> None:
        length = field_of(params, "acceptedLength")
        if isinstance(length, int):
            server.acceptance.accept(_name(field_of(params, "item")), length)
            server.status.change()

    @server.feature("textDocument/didShowInlineEdit")
    def did_show_edit(params: Any) -> None:
        server.acceptance.show(_name(field_of(params, "item")))


def _register_places(server: "Server") -> None:
    @server.feature("textDocument/didFocus")
    def did_focus(params: Any) -> None:
        server.looked_at = str(field_of(field_of(params, "textDocument"), "uri"))
        server.tell_place()

    @server.feature("textDocument/copilotInlineEdit")
    async def inline_edit(params: Any) -> dict[str, Any]:
        return {"edits": await _inline_edits(server, params)}

    @server.feature(STATS)
    def stats(_params: Any) -> dict[str, float]:
        return server.stats()

    @server.feature(WATCH)
    def watch(params: Any) -> None:
        server.is_watched = bool(field_of(params, "on"))


def _signed_in(_params: Any) -> dict[str, str]:
    return {"status": "OK", "user": "local"}


async def _inline_edits(server: "Server", params: Any) -> list[dict[str, Any]]:
    """What the model would change in the cursor's line, keeping half of it; nothing where it is not sure."""
    identifier = field_of(params, "textDocument")
    document = server.documents.get(str(field_of(identifier, "uri")))
    at = field_of(params, "position")
    line, character = field_of(at, "line"), field_of(at, "character")
    if document is None or not (isinstance(line, int) and isinstance(character, int)):
        return []
    snapshot = document.snapshot()
    if server.is_left_out(snapshot) or not 0 <= line < document.lines.num_lines:
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
        extra=server.extra(snapshot, start),
        min_confidence=server.settings.fill.min_confidence,
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
    """The name of an item that comes back: the first argument of its command."""
    arguments = field_of(field_of(item, "command"), "arguments")
    return str(arguments[0]) if isinstance(arguments, list | tuple) and arguments else ""
