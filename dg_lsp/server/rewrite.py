"""Rewrites as editors ask for them: commands in, one edit of one version of the document out, and always a word.

Every command answers `{"applied": bool, "reason": str | null}`; what could not be done is shown to the user, too.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lsprotocol import types

from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.result import RewriteResult
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.server.documents import Change, Document, minimal_changes, workspace_edit

if TYPE_CHECKING:
    from dg_lsp.server.documents import Document
    from dg_lsp.server.session import Server


REWRITE = "dg-lsp.rewrite"
"""`{uri, range, instruction?, strength?, mend?}`: the range is written anew; to mend, only so that it parses better."""
COMPLETE_BLOCK = "dg-lsp.completeBlock"
"""`{uri, position}`: as many lines as belong there are put in at the position."""

_WHY = {
    Reason.EMPTY: "the model had nothing to say",
    Reason.UNCHANGED: "the model would leave it as it is",
    Reason.SYNTAX_ERROR: "what the model wrote would not parse",
    Reason.INDENTATION: "what the model wrote would leave the lines below too deep",
    Reason.REPEATS_ITSELF: "the model went in circles",
    Reason.REPEATS_PREFIX: "the model said what stands above again",
    Reason.REPEATS_SUFFIX: "the model said what stands below again",
    Reason.NOT_TEXT: "what the model wrote is no text",
    Reason.UNFINISHED: "it took too long",
}
_CHANGED = "the document changed meanwhile, so nothing was changed"
_CANCELLED = "cancelled"

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RewriteParams:
    """A command's argument, understood."""

    document: Document
    start: int
    end: int
    instruction: str
    strength: float
    must_fix_errors: bool


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """Why nothing was changed, in words for the user."""


def register_rewrites(server: "Server") -> None:
    """Offers the commands."""

    @server.command(REWRITE)
    async def rewrite(place: Any = None) -> Outcome:
        return await _answered(server, _rewrite(server, place))

    @server.command(COMPLETE_BLOCK)
    async def complete_block(place: Any = None) -> Outcome:
        return await _answered(server, _complete_block(server, place))


async def _answered(ls: "Server", work: Any) -> Outcome:
    try:
        await work
    except Refusal as refusal:
        if str(refusal) != _CANCELLED:
            ls.show(types.MessageType.Warning, f"dg-lsp: {refusal}")
        return {"applied": False, "reason": str(refusal)}
    return {"applied": True, "reason": None}


async def _rewrite(ls: "Server", place: Any) -> None:
    asked = _asked(ls, place)
    document = asked.document
    request = RewriteRequest(
        document.snapshot(),
        asked.start,
        asked.end,
        asked.instruction,
        asked.strength,
        ls.settings.rewrite.deadline_ms,
        must_fix_errors=asked.must_fix_errors,
        extra=ls.extra(document.snapshot(), asked.start),
    )
    title = asked.instruction or "Rewriting"
    result = await _with_progress(ls, request, title)
    if result.rejection is not None:
        raise Refusal(f"nothing was changed: {_WHY[result.rejection.reason]}")
    if asked.instruction and not result.follows_instructions:
        ls.log(types.MessageType.Info, f"{result.model} follows no instructions: it saw this one as a comment")
    old = document.lines.text[result.start : result.end]
    await _apply(ls, document, minimal_changes(old, result.text, result.start), f"dg-lsp: {title}")


async def _complete_block(ls: "Server", place: Any) -> None:
    asked = _asked(ls, place)
    document = asked.document
    wait_ms = ls.settings.rewrite.deadline_ms
    extra = ls.extra(document.snapshot(), asked.start)
    request = FillRequest(document.snapshot(), asked.start, deadline_ms=wait_ms, early_stop_ms=0.0, extra=extra)
    candidates = await ls.fill(request)
    if not candidates:
        raise Refusal(f"nothing was changed: {_WHY[Reason.EMPTY]}")
    change = Change(asked.start, asked.start, candidates[0].text)
    await _apply(ls, document, (change,), "dg-lsp: complete this block")


def _asked(ls: "Server", place: Any) -> RewriteParams:
    """Raises: Refusal: an argument that is none, or a document that is not open or must not be shown."""
    if not isinstance(place, Mapping) or not isinstance(place.get("uri"), str):
        raise Refusal("this command needs an argument with uri and range")
    document = ls.documents.get(place["uri"])
    if document is None:
        raise Refusal(f"{place['uri']} is not open")
    if ls.is_left_out(document.snapshot()):
        raise Refusal("this file is excluded from completion")
    try:
        where = place.get("range") or {"start": place["position"], "end": place["position"]}
        bounds = [(int(where[end]["line"]), int(where[end]["character"])) for end in ("start", "end")]
        strength = float(place.get("strength") or 1.0)
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal("this command needs an argument with uri and range") from error
    start, end = sorted(document.lines.offset_at(*bound, ls.documents.encoding) for bound in bounds)
    return RewriteParams(document, start, end, str(place.get("instruction") or ""), strength, place.get("mend") is True)


async def _with_progress(ls: "Server", request: RewriteRequest, title: str) -> RewriteResult:
    """The result, with a progress bar and its cancel button where the client has one."""
    uri, token = request.snapshot.uri, await _begin(ls, title)
    job = asyncio.ensure_future(ls.rewrite(request, _reporter(ls, token)))
    if token is not None:
        ls.work_done_progress.tokens[token].add_done_callback(lambda _: job.cancel())
    ls.rewrites[uri] = job
    try:
        return await job
    except asyncio.CancelledError as error:
        document = ls.documents.get(uri)
        has_changed = document is None or document.version != request.snapshot.version
        raise Refusal(_CHANGED if has_changed else _CANCELLED) from error
    except DgLspError as error:
        raise Refusal(str(error)) from error
    finally:
        if ls.rewrites.get(uri) is job:
            del ls.rewrites[uri]
        if token is not None:
            ls.work_done_progress.end(token, types.WorkDoneProgressEnd())
            ls.work_done_progress.tokens.pop(token, None)


def _reporter(ls: "Server", token: str | None) -> Callable[[Progress], None] | None:
    """What the model's thread calls after each pass."""
    if token is None:
        return None
    loop = asyncio.get_running_loop()

    def tell(said: types.WorkDoneProgressReport) -> None:
        # what the model's thread said last may come after the end, and would begin the bar anew
        if token in ls.work_done_progress.tokens:
            ls.work_done_progress.report(token, said)

    def report(progress: Progress) -> None:
        said = types.WorkDoneProgressReport(message=f"pass {progress.number}", cancellable=True)
        loop.call_soon_threadsafe(tell, said)

    return report


async def _begin(ls: "Server", title: str) -> str | None:
    window = ls.client_capabilities.window
    if window is None or not window.work_done_progress:
        return None
    token = str(uuid4())
    await ls.work_done_progress.create_async(token)
    ls.work_done_progress.begin(token, types.WorkDoneProgressBegin(f"dg-lsp: {title}", cancellable=True))
    return token


async def _apply(ls: "Server", document: Document, changes: tuple[Change, ...], label: str) -> None:
    """Raises: Refusal: the document is another by now, or the client would not take the edit."""
    newest = ls.documents.get(document.uri)
    if newest is None or newest.version != document.version:
        raise Refusal(_CHANGED)
    workspace = ls.client_capabilities.workspace
    edit = workspace_edit(
        document,
        changes,
        ls.documents.encoding,
        workspace.workspace_edit if workspace else None,
        label=label,
        preview=ls.settings.rewrite.preview,
    )
    answer = await ls.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit, label=label))
    if not answer.applied:
        raise Refusal(answer.failure_reason or "the editor did not take the change")


KIND = "refactor.rewrite.dg-lsp"
ASK = "dg-lsp.askInstruction"
"""A command of clients that can ask for one line of text; they name it in `experimental.dgLsp.commands`."""
MAX_FIXES = 3


def register_actions(server: "Server") -> None:
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
