"""Code actions: what may be asked of the model at a place, without asking it."""

from typing import TYPE_CHECKING, Any

from lsprotocol import types

from dg_lsp.server.rewriting import COMPLETE_BLOCK, REWRITE

if TYPE_CHECKING:
    from dg_lsp.server.documents import Document
    from dg_lsp.server.session import Server

KIND = "refactor.rewrite.dg-lsp"
ASK = "dg-lsp.askInstruction"
"""A command of clients that can ask for one line of text; they name it in `experimental.dgLsp.commands`."""
MAX_FIXES = 3


def register(server: "Server") -> None:
    """Offers the actions."""
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, KIND])
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)(code_action)


def code_action(ls: "Server", params: types.CodeActionParams) -> list[types.CodeAction]:
    """The actions for a selection or a cursor; none in a document that must not be shown."""
    document = ls.documents.get(params.text_document.uri)
    if document is None or ls.is_left_out(document.snapshot()):
        return []
    wrong = [(one.range.start.line, one.message) for one in params.context.diagnostics]
    ls.elsewhere.diagnose(document, params.range.start.line, params.range.end.line, wrong)
    start, end = (
        document.lines.offset_at(at.line, at.character, ls.documents.encoding)
        for at in (params.range.start, params.range.end)
    )
    start, end = min(start, end), max(start, end)
    has_text = bool(document.lines.text[start:end].strip())
    # an editor that asks at every move of the cursor would show its light bulb everywhere
    is_unasked = params.context.trigger_kind is types.CodeActionTriggerKind.Automatic
    at_cursor = [] if is_unasked else [_block(document, params.range.start)]
    actions = _of_selection(ls, document, params.range) if has_text else at_cursor
    fixes = [
        _fix(document, diagnostic) for diagnostic in params.context.diagnostics if diagnostic.range.start.line >= 0
    ]
    only = params.context.only
    return [one for one in (*fixes[:MAX_FIXES], *actions) if _is_wanted(one, only)]


def _of_selection(ls: "Server", document: "Document", where: types.Range) -> list[types.CodeAction]:
    place = _place(document, where)
    strength = ls.settings.rewrite.strength
    ask = ASK if ls.client_knows(ASK) else REWRITE
    return [
        _action("Rewrite selection…" if ask == ASK else "Rewrite selection", ask, place),
        _action("Fill the hole here", REWRITE, {**place, "strength": 1.0}),
        _action(f"Regenerate, giving up {strength:.0%} of it", REWRITE, {**place, "strength": strength}),
    ]


def _block(document: "Document", at: types.Position) -> types.CodeAction:
    place = {"uri": document.uri, "position": {"line": at.line, "character": at.character}}
    return _action("Complete this block", COMPLETE_BLOCK, place)


def _fix(document: "Document", diagnostic: types.Diagnostic) -> types.CodeAction:
    """Only what is under the squiggle is free; all the rest of the buffer is frozen."""
    first = diagnostic.message.split("\n")[0]
    where = diagnostic.range
    if where.start == where.end:
        where = types.Range(types.Position(where.start.line, 0), types.Position(where.start.line + 1, 0))
    place = {**_place(document, where), "instruction": f"fix: {first}", "mend": True}
    action = _action(f"Fix with dg-lsp: {first[:60]}", REWRITE, place, types.CodeActionKind.QuickFix)
    action.diagnostics = [diagnostic]
    return action


def _place(document: "Document", where: types.Range) -> dict[str, Any]:
    ends = {
        name: {"line": at.line, "character": at.character} for name, at in (("start", where.start), ("end", where.end))
    }
    return {"uri": document.uri, "range": ends}


def _action(title: str, command: str, place: dict[str, Any], kind: str = KIND) -> types.CodeAction:
    return types.CodeAction(title, kind=kind, command=types.Command(title, command, arguments=[place]))


def _is_wanted(action: types.CodeAction, only: Any) -> bool:
    """As the specification says of kinds: `refactor` wants `refactor.rewrite`, too."""
    kind = str(getattr(action.kind, "value", action.kind))
    wanted = [str(getattr(one, "value", one)) for one in only or ()]
    return not wanted or any(kind == one or kind.startswith(f"{one}.") or not one for one in wanted)
