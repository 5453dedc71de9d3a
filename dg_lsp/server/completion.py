"""Inline completion: the position in the buffer, the candidates of the engine, the items of the answer."""

from lsprotocol import types

from dg_lsp.engine.request import FillRequest, Priority
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.server.copilot import ACCEPTED
from dg_lsp.server.documents import CompletionPosition, inline_item
from dg_lsp.server.session import Server

NUM_INVOKED = 3
"""Candidates of a request by the user; automatic requests get one."""


def register(server: Server) -> None:
    """Registers the handler. pygls declares the capability only if it is given options."""
    server.feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, types.InlineCompletionOptions())(inline_completion)


async def inline_completion(ls: Server, params: types.InlineCompletionParams) -> types.InlineCompletionList:
    """Completions at the cursor. Errors are logged, and the answer is an empty list."""
    position = ls.documents.completion_position(params)
    if position is None:
        ls.log(types.MessageType.Warning, f"completion in a document that is not open: {params.text_document.uri}")
    if position is None or ls.is_excluded(position.snapshot):
        return types.InlineCompletionList(items=[])
    is_invoked = params.context.trigger_kind is types.InlineCompletionTriggerKind.Invoked
    request = _request(ls, position, is_invoked=is_invoked)
    if request.cursor.is_deep_inside_word and not is_invoked:
        return types.InlineCompletionList(items=[])
    return types.InlineCompletionList([_item(ls, one, position) for one in await ls.fill(request)])


def _request(ls: Server, position: CompletionPosition, *, is_invoked: bool) -> FillRequest:
    return FillRequest(
        position.snapshot,
        position.offset,
        num_candidates=NUM_INVOKED if is_invoked else 1,
        min_confidence=0.0 if is_invoked else ls.settings.completion.min_confidence,
        priority=Priority.INVOKED if is_invoked else Priority.TYPED,
        snippets=ls.snippets(position.snapshot, position.offset),
    )


def _item(ls: Server, candidate: Candidate, position: CompletionPosition) -> types.InlineCompletionItem:
    name = ls.acceptance.offer(position.selected + candidate.text)
    command = types.Command("Accepted", ACCEPTED, arguments=[name])
    return inline_item(candidate, position, ls.documents.encoding, command)
