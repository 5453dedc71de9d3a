"""Rewrites as editors ask for them: commands in, one edit of one version of the document out, and always a word.

Every command answers `{"applied": bool, "reason": str | null}`; what could not be done is shown to the user, too.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lsprotocol import types

from dg_lsp.engine.filling import Progress
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.rewrite import RewriteRequest, RewriteResult
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.candidate import Reason
from dg_lsp.server.documents import Document
from dg_lsp.server.edits import Change, minimal_changes, workspace_edit

if TYPE_CHECKING:
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
class Asked:
    """A command's argument, understood."""

    document: Document
    start: int
    end: int
    instruction: str
    strength: float
    must_mend: bool


class Refusal(Exception):  # noqa: N818  (it is an answer)
    """Why nothing was changed, in words for the user."""


def register(server: "Server") -> None:
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
        must_mend=asked.must_mend,
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
    request = FillRequest(document.snapshot(), asked.start, deadline_ms=wait_ms, patience_ms=0.0, extra=extra)
    candidates = await ls.fill(request)
    if not candidates:
        raise Refusal(f"nothing was changed: {_WHY[Reason.EMPTY]}")
    change = Change(asked.start, asked.start, candidates[0].text)
    await _apply(ls, document, (change,), "dg-lsp: complete this block")


def _asked(ls: "Server", place: Any) -> Asked:
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
    return Asked(document, start, end, str(place.get("instruction") or ""), strength, place.get("mend") is True)


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
