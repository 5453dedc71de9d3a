"""Rewrite commands and code actions. A rewrite is one edit of one version of the document.

Every command answers `{"applied": bool, "reason": str | null}`. If nothing was applied, the user sees the reason.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from lsprotocol import types

from dg_lsp.engine.decoders.base import Progress
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.result import RewriteResult
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.validate import Reason
from dg_lsp.server.documents import Change, Document, minimal_changes, workspace_edit
from dg_lsp.server.session import Server

REWRITE = "dg-lsp.rewrite"
"""`{uri, range, instruction?, strength?, fixErrors?}`: rewrites the range. With `fixErrors` the result must have fewer
syntax errors."""
COMPLETE_BLOCK = "dg-lsp.completeBlock"
"""`{uri, position}`: inserts the rest of the block at the position."""

_MESSAGES = {
    Reason.EMPTY: "the model returned nothing",
    Reason.UNCHANGED: "the model would leave it as it is",
    Reason.SYNTAX_ERROR: "the result has a syntax error",
    Reason.INDENTATION: "the result would leave the lines below indented too deeply",
    Reason.REPEATS_ITSELF: "the model repeated itself",
    Reason.REPEATS_PREFIX: "the model repeated the code above",
    Reason.REPEATS_SUFFIX: "the model repeated the code below",
    Reason.NOT_TEXT: "the result is not text",
    Reason.UNFINISHED: "it took too long",
}
_CHANGED = "the document changed meanwhile, so nothing was changed"
_CANCELLED = "cancelled"
_BAD_ARGUMENT = "this command needs an argument with uri and range"

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RewriteParams:
    """The parsed argument of a command."""

    document: Document
    start: int
    end: int
    instruction: str
    strength: float
    must_fix_errors: bool


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """The reason why nothing was changed, as shown to the user."""


def register(server: Server) -> None:
    """Registers the commands and the code actions."""

    @server.command(REWRITE)
    async def rewrite(argument: Any = None) -> Outcome:
        return await _outcome(server, _rewrite(server, argument))

    @server.command(COMPLETE_BLOCK)
    async def complete_block(argument: Any = None) -> Outcome:
        return await _outcome(server, _complete_block(server, argument))

    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, KIND])
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)(code_action)


async def _outcome(ls: Server, work: Coroutine[Any, Any, None]) -> Outcome:
    try:
        await work
    except Refusal as refusal:
        if str(refusal) != _CANCELLED:
            ls.show(types.MessageType.Warning, f"dg-lsp: {refusal}")
        return {"applied": False, "reason": str(refusal)}
    return {"applied": True, "reason": None}


async def _rewrite(ls: Server, argument: Any) -> None:
    params = _parse(ls, argument)
    document = params.document
    request = RewriteRequest(
        document.snapshot(),
        params.start,
        params.end,
        params.instruction,
        params.strength,
        ls.settings.rewrite.deadline_ms,
        must_fix_errors=params.must_fix_errors,
        snippets=ls.snippets(document.snapshot(), params.start),
    )
    title = params.instruction or "Rewriting"
    result = await _with_progress(ls, request, title)
    if result.rejection is not None:
        raise Refusal(f"nothing was changed: {_MESSAGES[result.rejection.reason]}")
    if params.instruction and not result.follows_instructions:
        ls.log(types.MessageType.Info, f"{result.model} follows no instructions: it received this one as a comment")
    old = document.lines.text[result.start : result.end]
    await _apply(ls, document, minimal_changes(old, result.text, result.start), f"dg-lsp: {title}")


async def _complete_block(ls: Server, argument: Any) -> None:
    params = _parse(ls, argument)
    document = params.document
    snippets = ls.snippets(document.snapshot(), params.start)
    deadline_ms = ls.settings.rewrite.deadline_ms
    request = FillRequest(
        document.snapshot(), params.start, deadline_ms=deadline_ms, early_stop_ms=0.0, snippets=snippets
    )
    candidates = await ls.fill(request)
    if not candidates:
        raise Refusal(f"nothing was changed: {_MESSAGES[Reason.EMPTY]}")
    change = Change(params.start, params.start, candidates[0].text)
    await _apply(ls, document, (change,), "dg-lsp: complete this block")


def _parse(ls: Server, argument: Any) -> RewriteParams:
    """Raises: Refusal: an invalid argument, or a document that is not open or is excluded."""
    if not isinstance(argument, Mapping) or not isinstance(argument.get("uri"), str):
        raise Refusal(_BAD_ARGUMENT)
    document = ls.documents.get(argument["uri"])
    if document is None:
        raise Refusal(f"{argument['uri']} is not open")
    if ls.is_excluded(document.snapshot()):
        raise Refusal("this file is excluded from completion")
    try:
        span = argument.get("range") or {"start": argument["position"], "end": argument["position"]}
        bounds = [(int(span[end]["line"]), int(span[end]["character"])) for end in ("start", "end")]
        strength = 1.0 if argument.get("strength") is None else float(argument["strength"])
    except (KeyError, TypeError, ValueError) as error:
        raise Refusal(_BAD_ARGUMENT) from error
    start, end = sorted(document.lines.offset_at(*bound, ls.documents.encoding) for bound in bounds)
    instruction = str(argument.get("instruction") or "")
    return RewriteParams(document, start, end, instruction, strength, argument.get("fixErrors") is True)


async def _with_progress(ls: Server, request: RewriteRequest, title: str) -> RewriteResult:
    """The result; shows progress with a cancel button if the client supports it."""
    uri, token = request.snapshot.uri, await _begin_progress(ls, title)
    job = asyncio.ensure_future(ls.rewrite(request, _step_reporter(ls, token)))
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


def _step_reporter(ls: Server, token: str | None) -> Callable[[Progress], None] | None:
    """Called by the model's thread after each pass."""
    if token is None:
        return None
    loop = asyncio.get_running_loop()

    def send(report: types.WorkDoneProgressReport) -> None:
        # the last report may arrive after the end of the rewrite, and would show the progress bar again
        if token in ls.work_done_progress.tokens:
            ls.work_done_progress.report(token, report)

    def on_step(progress: Progress) -> None:
        report = types.WorkDoneProgressReport(message=f"pass {progress.number}", cancellable=True)
        loop.call_soon_threadsafe(send, report)

    return on_step


async def _begin_progress(ls: Server, title: str) -> str | None:
    window = ls.client_capabilities.window
    if window is None or not window.work_done_progress:
        return None
    token = str(uuid4())
    await ls.work_done_progress.create_async(token)
    ls.work_done_progress.begin(token, types.WorkDoneProgressBegin(f"dg-lsp: {title}", cancellable=True))
    return token


async def _apply(ls: Server, document: Document, changes: tuple[Change, ...], label: str) -> None:
    """Raises: Refusal: the document has changed, or the client rejected the edit."""
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
        raise Refusal(answer.failure_reason or "the editor rejected the change")


KIND = "refactor.rewrite.dg-lsp"
ASK = "dg-lsp.askInstruction"
"""A command of clients with an input box for the instruction; declared in `experimental.dgLsp.commands`."""
MAX_FIXES = 3


def code_action(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    """The actions for a selection or a cursor; none in an excluded document."""
    document = ls.documents.get(params.text_document.uri)
    if document is None or ls.is_excluded(document.snapshot()):
        return []
    diagnostics = params.context.diagnostics
    messages = [(one.range.start.line, one.message) for one in diagnostics]
    ls.context_provider.record_diagnostics(document, params.range.start.line, params.range.end.line, messages)
    start, end = (
        document.lines.offset_at(at.line, at.character, ls.documents.encoding)
        for at in (params.range.start, params.range.end)
    )
    start, end = min(start, end), max(start, end)
    has_text = bool(document.lines.text[start:end].strip())
    # automatic requests come at every move of the cursor: an action there would show a light bulb everywhere
    is_automatic = params.context.trigger_kind is types.CodeActionTriggerKind.Automatic
    at_cursor = [] if is_automatic else [_complete_block_action(document, params.range.start)]
    actions = _selection_actions(ls, document, params.range) if has_text else at_cursor
    fixes = [_fix(document, diagnostic) for diagnostic in diagnostics if diagnostic.range.start.line >= 0]
    only = params.context.only
    return [one for one in (*fixes[:MAX_FIXES], *actions) if _has_kind(one, only)]


def _selection_actions(ls: Server, document: Document, where: types.Range) -> list[types.CodeAction]:
    argument = _argument(document, where)
    strength = ls.settings.rewrite.strength
    command = ASK if ls.client_has_command(ASK) else REWRITE
    return [
        _action("Rewrite selection…" if command == ASK else "Rewrite selection", command, argument),
        _action("Replace selection", REWRITE, {**argument, "strength": 1.0}),
        _action(f"Regenerate {strength:.0%} of the selection", REWRITE, {**argument, "strength": strength}),
    ]


def _complete_block_action(document: Document, at: types.Position) -> types.CodeAction:
    argument = {"uri": document.uri, "position": {"line": at.line, "character": at.character}}
    return _action("Complete this block", COMPLETE_BLOCK, argument)


def _fix(document: Document, diagnostic: types.Diagnostic) -> types.CodeAction:
    """Rewrites the range of the diagnostic, or its line if the range is empty."""
    first = diagnostic.message.split("\n")[0]
    where = diagnostic.range
    if where.start == where.end:
        where = types.Range(types.Position(where.start.line, 0), types.Position(where.start.line + 1, 0))
    argument = {**_argument(document, where), "instruction": f"fix: {first}", "fixErrors": True}
    action = _action(f"Fix with dg-lsp: {first[:60]}", REWRITE, argument, types.CodeActionKind.QuickFix)
    action.diagnostics = [diagnostic]
    return action


def _argument(document: Document, where: types.Range) -> dict[str, Any]:
    ends = {
        name: {"line": at.line, "character": at.character} for name, at in (("start", where.start), ("end", where.end))
    }
    return {"uri": document.uri, "range": ends}


def _action(title: str, command: str, argument: dict[str, Any], kind: str = KIND) -> types.CodeAction:
    return types.CodeAction(title, kind=kind, command=types.Command(title, command, arguments=[argument]))


def _has_kind(action: types.CodeAction, only: Any) -> bool:
    """Whether the client requests this kind of action. By the specification `refactor` includes `refactor.rewrite`."""
    kind = str(getattr(action.kind, "value", action.kind))
    wanted = [str(getattr(one, "value", one)) for one in only or ()]
    return not wanted or any(kind == one or kind.startswith(f"{one}.") or not one for one in wanted)
