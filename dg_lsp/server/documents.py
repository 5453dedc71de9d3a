"""The client's open documents: LSP positions and edits in, code-point offsets and snapshots out.

Stands in for pygls' own text store, which cuts lines at form feeds and is off by one at a file's end.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from lsprotocol import types

from dg_lsp.context.document import LINE_END, Encoding, LineIndex, Snapshot, opening_of
from dg_lsp.postprocess.validate import Candidate

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
class CompletionPosition:
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


class DocumentStore:
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

    def cursor(self, params: types.InlineCompletionParams) -> CompletionPosition | None:
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
    def _ahead(document: Document, start: int, end: int, text: str) -> CompletionPosition:
        """The cursor after `text`, as if it stood in place of what is between two offsets already."""
        if not text and start == end:
            return CompletionPosition(document, document.snapshot(), start, start, end)
        taken_over = replace(document, lines=document.lines.replaced(start, end, text))
        return CompletionPosition(document, taken_over.snapshot(), start + len(text), start, end, text)

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


ANNOTATION = "dg-lsp"


@dataclass(frozen=True, slots=True)
class Change:
    """`[start, end)` of a text, in code points, becomes `text`."""

    start: int
    end: int
    text: str


def inline_item(
    candidate: Candidate, cursor: CompletionPosition, encoding: Encoding, command: types.Command | None = None
) -> types.InlineCompletionItem:
    """The candidate as an item that may be shown at the cursor; `command` tells us when it is taken."""
    return types.InlineCompletionItem(
        insert_text=cursor.selected + candidate.text,
        range=lsp_range(cursor.document.lines, cursor.start, cursor.end, encoding),
        command=command,
    )


def minimal_changes(old: str, new: str, start: int = 0) -> tuple[Change, ...]:
    """What turns `old`, which begins at offset `start`, into `new`: changed lines, without the ends they share.

    Ascending and apart; no change begins or ends inside of a CRLF.
    """
    old_lines, new_lines = _lines(old), _lines(new)
    starts = [start]
    for line in old_lines:
        starts.append(starts[-1] + len(line))
    changes = []
    for tag, i, j, k, m in SequenceMatcher(None, old_lines, new_lines, autojunk=False).get_opcodes():
        if tag != "equal":
            before, after = "".join(old_lines[i:j]), "".join(new_lines[k:m])
            head, tail = _shared_ends(before, after)
            changes.append(Change(starts[i] + head, starts[j] - tail, after[head : len(after) - tail]))
    return tuple(changes)


def workspace_edit(
    document: Document,
    changes: tuple[Change, ...],
    encoding: Encoding,
    capabilities: types.WorkspaceEditClientCapabilities | None,
    *,
    label: str,
    preview: bool,
) -> types.WorkspaceEdit:
    """The changes of one version of a document; annotated, to be confirmed with `preview`, where the client can."""
    edits = [(lsp_range(document.lines, one.start, one.end, encoding), one.text) for one in changes]
    if capabilities is None or not capabilities.document_changes:
        return types.WorkspaceEdit(changes={document.uri: [types.TextEdit(*edit) for edit in edits]})
    identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    if capabilities.change_annotation_support is None:
        plain = types.TextDocumentEdit(identifier, [types.TextEdit(*edit) for edit in edits])
        return types.WorkspaceEdit(document_changes=[plain])
    annotated = [types.AnnotatedTextEdit(ANNOTATION, *edit) for edit in edits]
    return types.WorkspaceEdit(
        document_changes=[types.TextDocumentEdit(identifier, annotated)],
        change_annotations={ANNOTATION: types.ChangeAnnotation(label, needs_confirmation=preview)},
    )


def lsp_range(lines: LineIndex, start: int, end: int, encoding: Encoding) -> types.Range:
    """Two offsets as a client's range."""
    return types.Range(_position(lines, start, encoding), _position(lines, end, encoding))


def _position(lines: LineIndex, offset: int, encoding: Encoding) -> types.Position:
    line, character = lines.position_at(offset, encoding)
    return types.Position(line, character)


def _lines(text: str) -> list[str]:
    """With their ends."""
    return list(_pieces(text))


def _pieces(text: str) -> Iterator[str]:
    at = 0
    for match in LINE_END.finditer(text):
        yield text[at : match.end()]
        at = match.end()
    if at < len(text):
        yield text[at:]


def _shared_ends(old: str, new: str) -> tuple[int, int]:
    """Characters that both begin and end with; together no more than the shorter one has."""
    shortest = min(len(old), len(new))
    head = next((i for i in range(shortest) if old[i] != new[i]), shortest)
    while head and (_splits_line_end(old, head) or _splits_line_end(new, head)):
        head -= 1
    most = shortest - head
    tail = next((i for i in range(most) if old[-1 - i] != new[-1 - i]), most)
    while tail and (_splits_line_end(old, len(old) - tail) or _splits_line_end(new, len(new) - tail)):
        tail -= 1
    return head, tail


def _splits_line_end(text: str, at: int) -> bool:
    return text[at - 1 : at + 1] == "\r\n"
