"""Messages of Copilot's language server that are not in the specification, for clients of that server."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from dg_lsp.context.exclusion import Cause
from dg_lsp.server.acceptance import accept_command
from dg_lsp.server.completion import explain_position
from dg_lsp.server.documents import Document
from dg_lsp.server.protocol import structured
from dg_lsp.server.session import Server
from dg_lsp.server.status import Explanation


def accepted(ls: Server, name: Any = None) -> None:
    """The user accepted the item of this name."""
    ls.acceptance.record_accepted(str(name))
    ls.next_edits.end_pause()
    ls.settle()


def did_show(ls: Server, params: Any) -> None:
    """The client displayed an item."""
    _record_shown(ls, _item_name(params))


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
    _, offset = _place(ls, params)
    ls.focus(_uri(params))
    ls.warm_up(ls.active_document, offset)


async def why(ls: Server, params: Any) -> dict[str, Any]:
    """What automatic completion does at a position, and the next edit or why there is none."""
    document, offset = _place(ls, params)
    explanation = Explanation(Cause.NOT_REQUESTED, "The document is not open.")
    if document is not None and offset is not None:
        explanation = await explain_position(ls, document, offset)
    answer = await next_edit(ls, params)
    lines = [str(edit["range"].start.line + 1) for edit in answer["edits"]]
    sentence = f"Next edits: line {', '.join(lines)}." if lines else f"No next edit: {answer['reason']}."
    return {**asdict(explanation), "nextEdit": sentence}


def watch(ls: Server, params: Any) -> None:
    """Turns the notifications of canvases on or off."""
    ls.sends_canvases = bool(_field(params, "on"))


def sign_in(_params: Any) -> dict[str, str]:
    """Answers that the user is signed in: a local model needs no account."""
    return {"status": "OK", "user": "local"}


async def inline_edit(ls: Server, params: Any) -> dict[str, Any]:
    """The next edit at the next place, or why there is none.

    It is one edit, because clients show or make several ones at once. Some of them do not report what they show.
    """
    answer = await next_edit(ls, params)
    for edit in answer["edits"][:1]:
        _record_shown(ls, edit["command"].arguments[0])
    return {**answer, "edits": answer["edits"][:1]}


async def next_edit(ls: Server, params: Any) -> dict[str, Any]:
    """The places where the last edits are likely to be repeated, or the reason why there is none."""
    document, offset = _place(ls, params)
    if document is None:
        return {"edits": [], "reason": "the document is not open"}
    is_requested = _field(params, "context", "triggerKind") == types.InlineCompletionTriggerKind.Invoked
    proposals, reason = await ls.next_edits.propose(
        document, ls.settings.next_edit, offset=offset, is_requested=is_requested
    )
    return {
        "edits": [
            {
                "text": proposal.text,
                "textDocument": {"uri": document.uri, "version": document.version},
                "range": ls.documents.range(document, proposal.start, proposal.end),
                "confidence": round(proposal.confidence, 3),
                "places": len(proposal.places(proposals.values())),
                "command": accept_command("Accept next edit", name),
            }
            for name, proposal in proposals.items()
        ],
        "reason": reason,
    }


HANDLERS: Mapping[str, Callable[..., Any]] = {
    "textDocument/didShowCompletion": did_show,
    "textDocument/didShowInlineEdit": did_show,
    "textDocument/didPartiallyAcceptCompletion": did_accept_part,
    "textDocument/didFocus": did_focus,
    "textDocument/copilotInlineEdit": inline_edit,
    "dg-lsp/nextEdit": next_edit,
    "dg-lsp/didDismissEdit": did_dismiss_edit,
    "dg-lsp/why": why,
    "dg-lsp/stats": lambda ls, _params: ls.stats(),
    "dg-lsp/watch": watch,
    **dict.fromkeys(("checkStatus", "signIn", "signInInitiate", "signInConfirm", "signOut"), sign_in),
}
"""Messages of Copilot's server, and our own requests."""


def _record_shown(ls: Server, name: str) -> None:
    ls.acceptance.record_shown(name)
    ls.next_edits.record_shown(name)
    ls.settle()


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


def _place(ls: Server, params: Any) -> tuple[Document | None, int | None]:
    """The document and the offset that parameters name; None for what is missing or wrong."""
    document = ls.documents.get(_uri(params))
    if document is None:
        return None, None
    try:
        position = structured(_field(params, "position"), types.Position, "position")
    except JsonRpcInvalidParams:
        return document, None
    return document, ls.documents.offset(document, position)
