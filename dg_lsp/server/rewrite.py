"""Rewrite commands and code actions. A rewrite is one edit of one version of the document.

Every command answers `{"applied": bool, "reason": str | null}`. If nothing was applied, the user sees the reason.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar
from uuid import uuid4

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from dg_lsp.context.exclusion import Cause, local_path
from dg_lsp.context.gaps import find_gaps
from dg_lsp.engine.request import FillRequest, Priority, RewriteRequest, RewriteResult
from dg_lsp.engine.rewrite import instruction_note
from dg_lsp.engine.verification import NUM_CANDIDATES, Verification
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.text_edits import Change, minimal_changes
from dg_lsp.postprocess.validate import Reason
from dg_lsp.sandbox import Sandbox
from dg_lsp.server.completion import IN_MAGIC
from dg_lsp.server.documents import Document
from dg_lsp.server.protocol import MAX_POSITION, is_cancelled_by_client, structured
from dg_lsp.server.session import Server

REWRITE = "dg-lsp.rewrite"
"""`{uri, range, instruction?, strength?, mustFixErrors?}`: rewrites the range; a fix must reduce its syntax errors."""
COMPLETE_BLOCK = "dg-lsp.completeBlock"
"""`{uri, position}`: inserts the rest of the block at the position."""
FILL_GAPS = "dg-lsp.fillGaps"
"""`{uri, range}`: fills the placeholders in the range by one edit."""
APPLY_NEXT_EDITS = "dg-lsp.applyNextEdits"
"""`{uri}`: makes the next edit at all its places by one edit."""
FIX_TEST = "dg-lsp.fixTest"
"""`{uri, range, test, instruction?}`: rewrites the range so that the command `test` passes, which the user has named.

It runs in a sandbox in a copy of the workspace folder of the document.
"""
ASK, ASK_TEST = "dg-lsp.askInstruction", "dg-lsp.askTest"
"""Commands of clients with an input box for the instruction and the test; declared in `experimental.dgLsp.commands`."""
KIND = "refactor.rewrite.dg-lsp"
MAX_FIXES, MAX_TITLE = 3, 60
"""Quick fixes of a selection, and characters of an instruction in a title."""
TEST_SECONDS = 60.0
"""A run of a test that takes longer is killed."""
ResultT = TypeVar("ResultT")

_CHANGED = "the document changed meanwhile, so nothing was changed"
_CANCELLED = "cancelled"
_BAD_ARGUMENT = "this command needs an argument with uri and range"


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """The reason why nothing was changed, as shown to the user."""


def register(server: Server) -> None:
    """Registers the commands and the code actions."""
    for name, work in COMMANDS.items():
        server.command(name)(partial(_answer, server, work))
    options = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix, KIND])
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION, options)(code_action)


async def _answer(ls: Server, work: Callable[[Server, Any], Awaitable[None]], argument: Any) -> dict[str, Any]:
    try:
        await work(ls, argument)
    except Refusal as refusal:
        if str(refusal) != _CANCELLED:
            ls.show(types.MessageType.Warning, f"dg-lsp: {refusal}")
        return {"applied": False, "reason": str(refusal)}
    return {"applied": True, "reason": None}


async def _rewrite(ls: Server, argument: Any) -> None:
    document, request = _request(ls, argument)
    title = _shortened(request.instruction) or "Rewriting"
    await _apply_rewrite(ls, document, request, title, ls.rewrite(request))


async def _fix_test(ls: Server, argument: Any) -> None:
    document, request = _request(ls, argument)
    command = argument.get("test")
    if not isinstance(command, str) or not command.strip():
        raise Refusal("this command needs the command of a test")
    if ls.is_restricted:
        raise Refusal("no test is run, because the editor does not trust this folder")
    folder, path, unsaved = _unsaved_files(ls, document)

    async def fixed() -> RewriteResult:
        stop = Event()
        try:
            sandbox = await asyncio.to_thread(Sandbox, option=FIX_TEST)
            test = Verification(command, folder, path, unsaved, sandbox, TEST_SECONDS, stop.is_set)
            return await _first_passing(ls, request, test)
        finally:
            stop.set()  # the thread of a cancelled test ends too

    await _apply_rewrite(ls, document, request, "Fixing the test", fixed())


async def _first_passing(ls: Server, request: RewriteRequest, test: Verification) -> RewriteResult:
    """The most confident rewrite with which the test passes, or a rejected one; shows the user what was tried."""
    tried: list[object] = []
    failure = await asyncio.to_thread(test.failure, tried.append)
    snippets = replace(request.snippets, chunks=(*failure.chunks, *request.snippets.chunks))
    result = await ls.rewrite(replace(request, snippets=snippets, num_candidates=NUM_CANDIDATES))
    if result.reason is not None:
        return result
    options = (result, *result.alternatives)
    passing, _ = await asyncio.to_thread(test.first_passing, options, request.data_with, tried.append)
    # not logged: the output of a test may quote code
    ls.window_show_message(types.ShowMessageParams(types.MessageType.Info, f"dg-lsp: {'; '.join(map(str, tried))}"))
    return passing or result.rejected(Reason.FAILS_TEST)


def _unsaved_files(ls: Server, document: Document) -> tuple[Path, Path, dict[Path, bytes]]:
    """The workspace folder of a document, its path, and the text of the files of the folder with unsaved changes.

    Raises: Refusal: the document is no saved file of a workspace folder.
    """
    path = local_path(document.uri)
    folders = ls.exclusion.folders_around(path.resolve()) if path is not None and path.is_file() else []
    if path is None or not folders:
        raise Refusal("no test is run, because the document is no saved file in a folder of the workspace")
    folder = folders[0].resolve()
    texts = ((local_path(file.uri), file.lines.text) for file in ls.documents.files())
    saved = {file.resolve(): text.encode() for file, text in texts if file and file.is_file()}
    unsaved = {file: data for file, data in saved.items() if file.is_relative_to(folder) and file.read_bytes() != data}
    return folder, path.resolve(), unsaved


def _request(ls: Server, argument: Any) -> tuple[Document, RewriteRequest]:
    """The document of a rewrite, and the rewrite. Raises `Refusal`."""
    document, start, end = _span(ls, argument, of_rewrites=True)
    strength = argument.get("strength")
    if not isinstance(strength, int | float | None):
        raise Refusal(_BAD_ARGUMENT)
    snapshot = ls.documents.snapshot(document, (start, end))
    request = RewriteRequest(
        snapshot,
        start + snapshot.num_before,
        end + snapshot.num_before,
        str(argument.get("instruction") or ""),
        1.0 if strength is None else strength,
        deadline_ms=ls.settings.rewrite.deadline_ms,
        must_fix_errors=argument.get("mustFixErrors") is True,
        snippets=ls.snippets(snapshot, start + snapshot.num_before, of_rewrites=True),
    )
    return document, request


async def _apply_rewrite(
    ls: Server, document: Document, request: RewriteRequest, title: str, work: Coroutine[Any, Any, RewriteResult]
) -> None:
    _show_instruction_note(ls, request)
    result = await _with_progress(ls, document, title, work)
    if result.reason is not None:
        raise Refusal(f"nothing was changed: the result {result.reason.problem}")
    snapshot = request.snapshot
    changes = minimal_changes(snapshot.text[result.start : result.end], result.text, result.start - snapshot.num_before)
    await _apply(ls, document, changes, f"dg-lsp: {title}")


async def _fill_gaps(ls: Server, argument: Any) -> None:
    document, start, end = _span(ls, argument)
    snapshot = ls.documents.snapshot(document)
    first = snapshot.num_before
    start, end = start + first, end + first
    if not (gaps := find_gaps(snapshot, start, end)):
        raise Refusal("there is no gap in the selection: write ... or a TODO comment where code is missing")
    deadline_ms = ls.settings.rewrite.deadline_ms
    snippets = ls.snippets(snapshot, gaps[0].start)
    request = RewriteRequest(snapshot, start, end, deadline_ms=deadline_ms, snippets=snippets, gaps=gaps)
    _show_instruction_note(ls, request)
    result = await _with_progress(ls, document, "Filling the gaps", ls.rewrite(request))
    missing = [
        f"line {ls.documents.range(document, gap.start - first, gap.start - first).start.line + 1}: "
        f"the fill {gap.reason.problem}"
        for gap in result.gaps
        if gap.reason
    ]
    if result.reason is not None:
        raise Refusal(f"nothing was changed: {'; '.join(missing)}")
    changes = tuple(Change(gap.start - first, gap.end - first, gap.text) for gap in result.gaps if not gap.reason)
    await _apply(ls, document, changes, "dg-lsp: fill the gaps")
    if missing:
        ls.show(
            types.MessageType.Info, f"dg-lsp: {len(missing)} of {len(gaps)} gaps are not filled: {'; '.join(missing)}"
        )


async def _complete_block(ls: Server, argument: Any) -> None:
    document, start, _ = _span(ls, argument)
    position = ls.documents.completion_at(document, start, start)
    if not position.is_code:
        raise Refusal(IN_MAGIC.reason)
    request = FillRequest(
        position.snapshot,
        position.offset,
        deadline_ms=ls.settings.rewrite.deadline_ms,
        early_stop_ms=0.0,
        snippets=ls.snippets(position.snapshot, position.offset),
        priority=Priority.INVOKED,
        endpoint=COMPLETE_BLOCK,
    )
    result = await _with_progress(ls, document, "Completing the block", ls.fill(request))
    if result is None:
        raise Refusal("nothing was changed: the model failed, see the log")
    if not result.candidates:
        raise Refusal(f"nothing was changed: the result {result.problem}")
    change = Change(start, start, position.selected + result.text)
    await _apply(ls, document, (change,), "dg-lsp: complete this block")


async def _apply_next_edits(ls: Server, argument: Any) -> None:
    document = _document(ls, argument)
    proposals, reason = await ls.next_edits.propose(document, ls.settings.next_edit, is_requested=True)
    if not proposals:
        raise Refusal(f"there is no next edit: {reason}")
    shown, *_ = proposals.values()  # by the client
    changes = tuple(sorted(shown.places(proposals.values()), key=lambda proposal: proposal.start))
    await _apply(ls, document, changes, f"dg-lsp: repeat the last edit in {len(changes)} lines")
    for name, proposal in proposals.items():
        if proposal in changes:
            ls.acceptance.record_accepted(name)
    ls.settle()


COMMANDS: Mapping[str, Callable[[Server, Any], Awaitable[None]]] = {
    REWRITE: _rewrite,
    COMPLETE_BLOCK: _complete_block,
    FILL_GAPS: _fill_gaps,
    FIX_TEST: _fix_test,
    APPLY_NEXT_EDITS: _apply_next_edits,
}


def _document(ls: Server, argument: Any) -> Document:
    """The document of a command's argument. Raises `Refusal`."""
    if not isinstance(argument, Mapping) or not isinstance(argument.get("uri"), str):
        raise Refusal(_BAD_ARGUMENT)
    document = ls.documents.get(argument["uri"])
    if document is None:
        raise Refusal(f"{argument['uri']} is not open")
    return document


def _span(ls: Server, argument: Any, *, of_rewrites: bool = False) -> tuple[Document, int, int]:
    """The document of a command's argument, and the offsets of its range or position. Raises `Refusal`."""
    document = _document(ls, argument)
    eligibility = ls.eligibility(document.snapshot(), of_rewrites=of_rewrites)
    if not eligibility.is_served:
        raise Refusal(eligibility.reason)
    try:
        span = argument.get("range") or {"start": argument["position"], "end": argument["position"]}
        where = structured(span, types.Range, "range")
    except (KeyError, JsonRpcException) as error:
        raise Refusal(_BAD_ARGUMENT) from error
    return document, *ls.documents.offsets(document.lines, where)


async def _with_progress(ls: Server, document: Document, title: str, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result; shows progress with a cancel button if the client supports it. Raises `Refusal`, also for errors.

    An older command in the document is cancelled. Raises `CancelledError` if the client cancels the request.
    """
    progress = ls.work_done_progress
    token = str(uuid4())
    ls.cancel_stale(document.uri)
    job = asyncio.ensure_future(work)
    ls.commands[document.uri] = job
    _create_progress(ls, token, title, job)
    try:
        return await job
    except asyncio.CancelledError as error:
        if is_cancelled_by_client():
            raise
        raise Refusal(_CANCELLED if ls.documents.get(document.uri) is document else _CHANGED) from error
    except DgLspError as error:
        raise Refusal(str(error)) from error
    finally:
        if progress.tokens.pop(token, None) is not None:
            progress.end(token, types.WorkDoneProgressEnd())


def _show_instruction_note(ls: Server, request: RewriteRequest) -> None:
    """Tells the user what a model that follows no instructions does with the instruction of the request."""
    engine = ls.engine(of_rewrites=not request.gaps)
    if engine is not None and (note := instruction_note(request, engine.spec)):
        ls.show(types.MessageType.Info, f"dg-lsp: {note}")


def _create_progress(ls: Server, token: str, title: str, job: asyncio.Future[Any]) -> None:
    """Requests a progress bar from the client, whose button cancels the job."""
    window = ls.client_capabilities.window
    progress = ls.work_done_progress

    def begin(created: Future[Any]) -> None:
        if not (created.cancelled() or created.exception() or job.done()):  # the client may refuse to show it
            progress.begin(token, types.WorkDoneProgressBegin(f"dg-lsp: {title}", cancellable=True))
            progress.tokens[token].add_done_callback(lambda _: job.cancel())

    if window is not None and window.work_done_progress:
        params = types.WorkDoneProgressCreateParams(token)
        ls.protocol.send_request(types.WINDOW_WORK_DONE_PROGRESS_CREATE, params).add_done_callback(begin)


async def _apply(ls: Server, document: Document, changes: tuple[Change, ...], label: str) -> None:
    """Raises: Refusal: the document has changed, or the client rejected the edit."""
    if ls.documents.get(document.uri) is not document:  # one that is opened again may have the same version
        raise Refusal(_CHANGED)
    workspace = ls.client_capabilities.workspace
    preview = ls.settings.rewrite.preview
    capabilities = workspace.workspace_edit if workspace else None
    edit = ls.documents.workspace_edit(document, changes, capabilities, label=label, preview=preview)
    try:
        answer = await ls.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit, label=label))
    except JsonRpcException as error:
        raise Refusal(f"the editor rejected the change: {error}") from error
    if not answer.applied:
        raise Refusal(answer.failure_reason or "the editor rejected the change")


def code_action(ls: Server, params: types.CodeActionParams) -> list[types.CodeAction]:
    """The actions for a selection or a cursor; none in an excluded document or a language that no model knows."""
    document = ls.documents.get(params.text_document.uri)
    fills = ls.eligibility(document.snapshot()) if document is not None else None
    if document is None or fills is None or fills.cause is Cause.EXCLUDED:
        return []
    rewrites = ls.eligibility(document.snapshot(), of_rewrites=True)
    start, end = ls.documents.offsets(document.lines, params.range)
    if start == end and fills.is_served:
        ls.warm_up(document.uri, end)
    diagnostics = params.context.diagnostics[:MAX_FIXES] if rewrites.is_served else ()
    actions = [_fix(document, diagnostic) for diagnostic in diagnostics]
    if document.lines.text[start:end].strip():
        has_gaps = fills.is_served and bool(find_gaps(document.snapshot(), start, end))
        argument = {"uri": document.uri, "range": params.range}
        actions += _selection_actions(ls, argument, can_rewrite=rewrites.is_served, has_gaps=has_gaps)
    # automatic requests come at every move of the cursor: an action there would show a light bulb everywhere
    elif fills.is_served and params.context.trigger_kind is not types.CodeActionTriggerKind.Automatic:
        argument = {"uri": document.uri, "position": params.range.start}
        actions.append(_action("Complete this block", COMPLETE_BLOCK, argument))
    return [action for action in actions if _has_kind(action, params.context.only)]


def _selection_actions(
    ls: Server, argument: dict[str, Any], *, can_rewrite: bool, has_gaps: bool
) -> list[types.CodeAction]:
    """The rewrites by an instruction and by a test need a client with input boxes for them.

    An instruction needs a model that follows it, a test an editor that trusts the folder.
    """
    experimental = ls.client_capabilities.experimental
    capability = experimental.get("dgLsp") if isinstance(experimental, dict) else None
    boxes = capability.get("commands") or () if isinstance(capability, dict) else ()
    engine = ls.engine(of_rewrites=True)
    follows = engine is None or engine.spec.follows_instructions
    strength = ls.settings.rewrite.strength
    whole, part = ({**argument, "strength": fraction} for fraction in (1.0, strength))
    choices = (
        (can_rewrite and ASK in boxes and follows, "Rewrite selection…", ASK, argument),
        (can_rewrite and ASK_TEST in boxes and not ls.is_restricted, "Fix the failing test…", ASK_TEST, argument),
        (has_gaps, "Fill the gaps in the selection", FILL_GAPS, argument),
        (can_rewrite, "Replace selection with a fill", REWRITE, whole),
        (can_rewrite, f"Regenerate {strength:.0%} of the selection", REWRITE, part),
    )
    return [_action(title, command, argument) for is_offered, title, command, argument in choices if is_offered]


def _fix(document: Document, diagnostic: types.Diagnostic) -> types.CodeAction:
    """Rewrites the range of the diagnostic, or its line if the range is empty."""
    first = diagnostic.message.split("\n")[0]
    where = diagnostic.range
    if where.start == where.end:
        line = where.start.line
        where = types.Range(types.Position(line, 0), types.Position(min(line + 1, MAX_POSITION), 0))
    argument = {"uri": document.uri, "range": where, "instruction": f"fix: {first}", "mustFixErrors": True}
    action = _action(f"Fix with dg-lsp: {_shortened(first)}", REWRITE, argument, types.CodeActionKind.QuickFix)
    action.diagnostics = [diagnostic]
    return action


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…"


def _action(title: str, command: str, argument: dict[str, Any], kind: str = KIND) -> types.CodeAction:
    return types.CodeAction(title, kind=kind, command=types.Command(title, command, arguments=[argument]))


def _has_kind(action: types.CodeAction, only: Sequence[str] | None) -> bool:
    """Whether the client requests this kind of action. By the specification `refactor` includes `refactor.rewrite`."""
    kind = str(getattr(action.kind, "value", action.kind))
    requested = [str(getattr(entry, "value", entry)) for entry in only or ()]
    return not requested or any(not prefix or f"{kind}.".startswith(f"{prefix}.") for prefix in requested)
