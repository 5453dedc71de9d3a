"""Inline completion: from the client's request to the items that it displays, or to the reason why there are none."""

import asyncio

from lsprotocol import types

from dg_lsp.context.document import LINE_END
from dg_lsp.context.exclusion import Cause, Eligibility
from dg_lsp.engine.request import FillRequest, FillResult, Priority, max_lines
from dg_lsp.engine.ttfue import Verdict
from dg_lsp.server.acceptance import Followed, accept_command
from dg_lsp.server.documents import CompletionPosition, Document
from dg_lsp.server.protocol import is_cancelled_by_client
from dg_lsp.server.session import Server
from dg_lsp.server.status import Explanation, State, Visibility, explain

NUM_INVOKED = 3
"""Candidates of a request by the user; automatic requests get one."""
IN_MAGIC = Eligibility(Cause.NOT_REQUESTED, "the cursor is in a magic of a notebook")
BEGINS_WITH_LINE_END = Eligibility(
    Cause.NOT_REQUESTED, "the completion would begin with a line end, and completion.lines is single"
)


async def inline_completion(server: Server, params: types.InlineCompletionParams) -> types.InlineCompletionList:
    """The items at the cursor. Errors are logged; the status has the reason why a requested completion is missing.

    Raises:
        asyncio.CancelledError: as `Server.fill` does, and by a key during `completion.debounce_ms`.
    """
    position = server.documents.completion_position(params)
    if position is None:
        server.log(types.MessageType.Warning, f"completion in a document that is not open: {params.text_document.uri}")
        return types.InlineCompletionList([])
    uri = position.snapshot.uri
    if uri != server.active_document:
        server.focus(uri)
    is_invoked = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
    is_requested = is_invoked or server.acceptance.is_rest_of_invoked(uri, position.span[0])
    eligibility = _eligibility(server, position, is_requested=is_requested)
    if not eligibility.is_served:
        if is_requested:
            server.report_ineligible(eligibility, position.snapshot, position.offset)
        return types.InlineCompletionList([])
    followed = server.acceptance.request(uri, *position.span, is_invoked=is_invoked)
    request = _request(server, position, is_invoked=is_invoked, is_requested=is_requested, request_id=followed.id)
    result = await _followed_fill(server, request, followed)
    return types.InlineCompletionList([] if result is None else _items(server, position, result, followed))


async def explain_position(server: Server, document: Document, offset: int) -> Explanation:
    """What automatic completion does at an offset of a document."""
    position = server.documents.completion_at(document, offset, offset)
    if (explanation := Explanation.of(_eligibility(server, position, is_requested=False))) is not None:
        return explanation
    try:
        result = await server.fill(_request(server, position))
    except asyncio.CancelledError:
        if is_cancelled_by_client():
            raise
        result = await server.fill(_request(server, position))  # a completion in the document had replaced it
    return _explanation(server, result)


def _eligibility(server: Server, position: CompletionPosition, *, is_requested: bool) -> Eligibility:
    eligibility = server.eligibility(position.snapshot, None if is_requested else position.offset)
    if not eligibility.is_served:
        return eligibility
    if not position.is_code:
        return IN_MAGIC
    if max_lines(server.settings.completion) == 1 and LINE_END.search(position.selected):
        return BEGINS_WITH_LINE_END
    return eligibility


def _request(
    server: Server,
    position: CompletionPosition,
    *,
    is_invoked: bool = False,
    is_requested: bool = False,
    request_id: str = "",
) -> FillRequest:
    return FillRequest(
        position.snapshot,
        position.offset,
        num_candidates=NUM_INVOKED if is_invoked else 1,
        max_lines=max_lines(server.settings.completion),
        priority=Priority.INVOKED if is_requested else Priority.TYPED,
        snippets=server.snippets(position.snapshot, position.offset),
        endpoint=types.TEXT_DOCUMENT_INLINE_COMPLETION,
        id=request_id,
    )


async def _followed_fill(server: Server, request: FillRequest, followed: Followed) -> FillResult | None:
    """The result, or None after an error; then, and after a cancellation, the request is followed no longer.

    The status displays why a requested completion is missing.
    """
    try:
        await server.pause(request)
        result = await server.fill(request)
    except asyncio.CancelledError:
        server.acceptance.drop(followed, Verdict.CANCELLED)
        raise
    if result is None:
        server.acceptance.drop(followed, Verdict.FAILED)
    is_missing = request.priority is Priority.INVOKED and (result is None or not result.candidates)
    server.status.explain(_explanation(server, result).sentence if is_missing else "")
    return result


def _explanation(server: Server, result: FillResult | None) -> Explanation:
    engine = server.engine()
    if result is None or engine is None:
        problem = "" if server.status.state is State.READY else server.status.message
        return Explanation(Visibility.NO_MODEL, f"The model gives no answer: {problem or 'see the log'}.")
    return explain(result, server.settings.completion, engine)


def _items(
    server: Server, position: CompletionPosition, result: FillResult, followed: Followed
) -> list[types.InlineCompletionItem]:
    texts = [position.selected + candidate.text for candidate in result.candidates]
    names = server.acceptance.answer(followed, texts, result.model)
    return [
        types.InlineCompletionItem(text, range=position.replaced, command=accept_command("Accepted", name))
        for text, name in zip(texts, names, strict=True)
    ]
