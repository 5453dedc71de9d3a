"""The client's open documents: LSP positions and edits in, code-point offsets and snapshots out.

Stands in for pygls' own text store, which cuts lines at form feeds and is off by one at a file's end.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from lsprotocol import types

from dg_lsp.context.block import opening_of
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.server.lines import Encoding, LineIndex

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One version of an open document."""

    uri: str
    version: int
    language: str
    lines: LineIndex

    def snapshot(self) -> Snapshot:
        """What the engine sees of it."""
        return Snapshot(self.uri, self.version, self.lines.text, self.language)


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """Where a fill is asked for, and what an accepted one takes the place of."""

    document: Document
    snapshot: Snapshot
    """The document as it would be with the completion popup's selected item taken over, or with the cursor on the first
    line of a block that its own line opens; else as it is."""
    offset: int
    """Of the fill, in the snapshot's text."""
    start: int
    end: int
    """Offsets in the document of what an accepted item replaces; both are the cursor when no popup is open."""
    selected: str = ""
    """What every item shown has to begin with: the popup's selected item, or what leads into the block."""


class Documents:
    """Every open document by its URI, in the encoding agreed on with the client."""

    def __init__(self, encoding: Encoding) -> None:
        self.encoding = encoding
        self._open: dict[str, Document] = {}

    def open(self, item: types.TextDocumentItem) -> None:
        """Takes a document over; one opened twice is as the second says."""
        lines = LineIndex.of(_sound(item.text))
        self._open[item.uri] = Document(item.uri, item.version, item.language_id, lines)

    def change(
        self, identifier: types.VersionedTextDocumentIdentifier, changes: Iterable[types.TextDocumentContentChangeEvent]
    ) -> bool:
        """Applies edits one after the other; False when the document is not open."""
        document = self._open.get(identifier.uri)
        if document is None:
            return False
        lines = document.lines
        for change in changes:
            lines = self._changed(lines, change)
        self._open[identifier.uri] = replace(document, version=identifier.version, lines=lines)
        return True

    def close(self, uri: str) -> None:
        """Forgets a document, open or not."""
        self._open.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        """The newest version, or None when the document is not open."""
        return self._open.get(uri)

    def all(self) -> list[Document]:
        """Every open document, the one that was opened last at the end."""
        return list(self._open.values())

    def cursor(self, params: types.InlineCompletionParams) -> Cursor | None:
        """Where an inline completion is asked for, or None when the document is not open."""
        document = self._open.get(params.text_document.uri)
        if document is None:
            return None
        selected = params.context.selected_completion_info
        if selected is None:
            offset = self._offset(document.lines, params.position)
            opening = opening_of(document.lines.text, offset, document.language)
            return self._ahead(document, offset, offset, opening)
        start, end = self._offsets(document.lines, selected.range)
        return self._ahead(document, start, end, _sound(selected.text))

    @staticmethod
    def _ahead(document: Document, start: int, end: int, text: str) -> Cursor:
        """The cursor after `text`, as if it stood in place of what is between two offsets already."""
        if not text and start == end:
            return Cursor(document, document.snapshot(), start, start, end)
        taken_over = replace(document, lines=document.lines.replaced(start, end, text))
        return Cursor(document, taken_over.snapshot(), start + len(text), start, end, text)

    def _changed(self, lines: LineIndex, change: types.TextDocumentContentChangeEvent) -> LineIndex:
        if isinstance(change, types.TextDocumentContentChangePartial):
            return lines.replaced(*self._offsets(lines, change.range), _sound(change.text))
        return LineIndex.of(_sound(change.text))

    def _offset(self, lines: LineIndex, position: types.Position) -> int:
        return lines.offset_at(position.line, position.character, self.encoding)

    def _offsets(self, lines: LineIndex, span: types.Range) -> tuple[int, int]:
        """Ascending, whichever way round the client says them."""
        first, second = self._offset(lines, span.start), self._offset(lines, span.end)
        return min(first, second), max(first, second)


def _sound(text: str) -> str:
    """The text without lone surrogates, which JSON can carry and UTF-8 cannot; the number of units stays the same."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
