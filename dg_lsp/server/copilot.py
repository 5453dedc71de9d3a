"""Messages of Copilot's language server that are not in the specification, for clients of that server."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.context.document import Cursor, TextStyle
from dg_lsp.engine.request import RewriteRequest, RewriteResult
from dg_lsp.engine.rewrite import without_range
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.text_edits import minimal_changes
from dg_lsp.postprocess.validate import fault_at
from dg_lsp.server.acceptance import ACCEPTED, accept_command
from dg_lsp.server.completion import explain_position
from dg_lsp.server.documents import Document
from dg_lsp.server.next_edit import HAS_CHANGED
from dg_lsp.server.protocol import DID_ACCEPT, is_integer
from dg_lsp.server.session import Server

INLINE_EDIT_MS = 2000.0
INLINE_EDIT_STRENGTH = 0.5


def register(server: Server) -> None:
    """Registers the handlers of Copilot's messages, and those of our own requests."""
    server.command(ACCEPTED)(partial(accepted, server))
    for method, handler in HANDLERS.items():
        server.feature(method)(handler)
    # a local model needs no account
    for method in ("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"):
        server.feature(method)(lambda _params: {"status": "OK", "user": "local"})


def accepted(ls: Server, name: Any = None) -> None:
    """The user accepted the item of this name."""
    ls.acceptance.record_accepted(str(name))
    ls.next_edits.end_pause(is_accepted=True)
    ls.settle()


def did_show(ls: Server, params: Any) -> None:
    """The client displayed an item."""
    ls.acceptance.record_shown(_item_name(params))
    ls.settle()


def did_show_edit(ls: Server, params: Any) -> None:
    """The client displayed an edit."""
    did_show(ls, params)
    ls.next_edits.record_shown(_item_name(params))


def did_dismiss_edit(ls: Server, params: Any) -> None:
    """The user hid an edit."""
    ls.next_edits.record_shown(_item_name(params), is_dismissed=True)


def did_accept_part(ls: Server, params: Any) -> None:
    """The user accepted the beginning of an item."""
    length = _field(params, "acceptedLength")
    if isinstance(length, int) and length > 0:
        ls.acceptance.record_accepted(_item_name(params), length)
        ls.settle()


def did_focus(ls: Server, params: Any) -> None:
    """Another document is the active one; the first completion at its cursor is prepared."""
    uri = _uri(params)
    offset = None
    ls.focus(uri)
    document = ls.documents.get(uri)
    position = _position(ls, params)
    if document is not None and position is not None:
        offset, _ = ls.documents.offsets(document.lines, types.Range(position, position))
    ls.warm_up(uri, offset)


async def why(ls: Server, params: Any) -> dict[str, Any]:
    """What automatic completion does at a position, and the next edit or why there is none."""
    explanation = await explain_position(ls, _uri(params), _position(ls, params))
    answer = await next_edit(ls, params)
    lines = [str(edit["range"].start.line + 1) for edit in answer["edits"]]
    sentence = f"Next edits: line {', '.join(lines)}." if lines else f"No next edit: {answer['reason']}."
    return {**asdict(explanation), "nextEdit": sentence}


def stats(ls: Server, _params: Any) -> dict[str, Any]:
    """The numbers of the session."""
    return ls.stats()


def watch(ls: Server, params: Any) -> None:
    """Turns the notifications of canvases on or off."""
    ls.sends_canvases = bool(_field(params, "on"))


async def inline_edit(ls: Server, params: Any) -> dict[str, Any]:
    """The most probable next edit, else the model's edits of the cursor's line; or why there are none.

    It is one edit, because clients show or make several ones at once. Some of them do not report what they show.
    """
    document = ls.documents.get(_uri(params))
    answer = await next_edit(ls, params)
    for edit in answer["edits"][:1]:
        ls.next_edits.record_shown(edit["command"].arguments[0])
    if answer["edits"] or document is None:
        return {**answer, "edits": answer["edits"][:1]}
    if problem := _inline_edit_problem(ls):
        ls.log_once(problem)
        return {"edits": [], "reason": f"{answer['reason']}; {problem}"}
    return {"edits": await _inline_edits(ls, params)}


async def next_edit(ls: Server, params: Any) -> dict[str, Any]:
    """The places where the last edits are likely to be repeated, or the reason why there is none."""
    document = ls.documents.get(_uri(params))
    if document is None:
        return {"edits": [], "reason": "the document is not open"}
    version = _field(params, "textDocument", "version")
    if is_integer(version) and version < document.version:
        return {"edits": [], "reason": HAS_CHANGED}
    is_requested = _field(params, "context", "triggerKind") == types.InlineCompletionTriggerKind.Invoked
    position = _position(ls, params)
    offset = None if position is None else ls.documents.offsets(document.lines, types.Range(position, position))[0]
    proposals, reason = await ls.propose_edits(document, offset, is_requested=is_requested)
    return {
        "edits": [
            {
                "text": proposal.text,
                "textDocument": {"uri": document.uri, "version": document.version},
                "range": ls.documents.range(document, proposal.start, proposal.end),
                "confidence": round(proposal.confidence, 3),
                "command": accept_command("Accept next edit", name),
            }
            for name, proposal in proposals.items()
        ],
        "reason": reason,
    }


HANDLERS: Mapping[str, Callable[..., Any]] = {
    "textDocument/didShowCompletion": did_show,
    "textDocument/didShowInlineEdit": did_show_edit,
    "textDocument/didPartiallyAcceptCompletion": did_accept_part,
    "textDocument/didFocus": did_focus,
    "textDocument/copilotInlineEdit": inline_edit,
    "dg-lsp/nextEdit": next_edit,
    "dg-lsp/didDismissEdit": did_dismiss_edit,
    DID_ACCEPT: lambda ls, params: accepted(ls, _item_name(params)),
    "dg-lsp/why": why,
    "dg-lsp/stats": stats,
    "dg-lsp/watch": watch,
}


def _item_name(params: Any) -> str:
    """The name of an item, which is the first argument of its command; empty if it is missing."""
    arguments = _field(params, "item", "command", "arguments")
    return str(arguments[0]) if isinstance(arguments, list | tuple) and arguments else ""


def _uri(params: Any) -> str:
    return str(_field(params, "textDocument", "uri"))


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


async def _inline_edits(server: Server, params: Any) -> list[dict[str, Any]]:
    """A rewrite of the cursor's line that keeps half of its tokens; empty where ghost text would be hidden."""
    document = server.documents.get(_uri(params))
    request = _line_rewrite(server, document, _position(server, params)) if document is not None else None
    if document is None or request is None:
        return []
    try:
        result = await server.rewrite(request, is_automatic=True)
    except DgLspError as error:
        server.log(types.MessageType.Warning, f"inline edit: {error}")
        return []
    if result.rejection is not None or _has_fault(result, request):
        return []
    identifier = {"uri": document.uri, "version": document.version}
    old = request.snapshot.text[result.start : result.end]
    return [
        {
            "text": change.text,
            "textDocument": identifier,
            "range": server.documents.range(document, change.start, change.end),
            "command": accept_command("Accept inline edit", server.acceptance.offer()),
        }
        for change in minimal_changes(old, result.text, result.start - request.snapshot.num_before)
    ]


def _line_rewrite(server: Server, document: Document, position: types.Position | None) -> RewriteRequest | None:
    """The rewrite of the line at a position; None where an automatic completion would not be computed."""
    if position is None or position.line >= document.lines.num_lines:
        return None
    span = document.lines.span(position.line)
    offset, _ = server.documents.offsets(document.lines, types.Range(position, position))
    snapshot = server.documents.snapshot(document, span)
    start, end = snapshot.num_before + span[0], snapshot.num_before + span[1]
    is_code = bool(snapshot.text[start:end].strip()) and not document.code.is_magic(span[0])
    if not is_code or not server.eligibility(snapshot, snapshot.num_before + offset).is_served:
        return None
    return RewriteRequest(
        snapshot,
        start,
        end,
        strength=INLINE_EDIT_STRENGTH,
        deadline_ms=INLINE_EDIT_MS,
        snippets=server.snippets(snapshot, start),
    )


def _has_fault(result: RewriteResult, request: RewriteRequest) -> bool:
    """A completion with this text in place of the range would be hidden."""
    shown, offset = without_range(replace(request, start=result.start, end=result.end), is_instructed=False)
    text = TextStyle.of(shown.text, offset).to_model(result.text)
    return fault_at(text, Cursor.at(shown.text, offset).as_shown(), shown, offset) is not None
