"""Candidates as LSP edits, in the client's units."""

from lsprotocol import types

from dg_lsp.postprocess.candidate import Candidate
from dg_lsp.server.documents import Cursor
from dg_lsp.server.lines import Encoding, LineIndex


def inline_item(candidate: Candidate, cursor: Cursor, encoding: Encoding) -> types.InlineCompletionItem:
    """The candidate as an item that may be shown at the cursor."""
    return types.InlineCompletionItem(
        insert_text=cursor.selected + candidate.text,
        range=lsp_range(cursor.document.lines, cursor.start, cursor.end, encoding),
    )


def lsp_range(lines: LineIndex, start: int, end: int, encoding: Encoding) -> types.Range:
    """Two offsets as a client's range."""
    return types.Range(_position(lines, start, encoding), _position(lines, end, encoding))


def _position(lines: LineIndex, offset: int, encoding: Encoding) -> types.Position:
    line, character = lines.position_at(offset, encoding)
    return types.Position(line, character)
