"""The client's open documents: LSP positions and edits to code-point offsets and snapshots, and back.

Replaces the documents of pygls, which split lines at form feeds and are off by one at the end of a file.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import pairwise

from lsprotocol import types

from dg_lsp.context.document import LINE_END, Encoding, LineIndex, Snapshot
from dg_lsp.context.languages import opening_of
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
        """The document as the engine receives it."""
        return Snapshot(self.uri, self.version, self.lines.text, self.language)


@dataclass(frozen=True, slots=True, eq=False)
class CompletionPosition:
    """The position of a completion, and the range that its items replace."""

    document: Document
    snapshot: Snapshot
    """The document with the popup's selected item inserted, or with the first line of the block that the cursor's line
    opens; otherwise the document itself."""
    offset: int
    """Offset of the completion in the snapshot's text."""
    start: int
    end: int
    """Offsets of the range in the document that an item replaces; both are the cursor when no popup is open."""
    selected: str = ""
    """Text that every item must begin with: the popup's selected item, or the line break and indent of the block."""


class DocumentStore:
    """Every open document by its URI, in the position encoding of the client."""

    def __init__(self, encoding: Encoding = Encoding.UTF16) -> None:
        self.encoding = encoding
        self._open: dict[str, Document] = {}

    def open(self, item: types.TextDocumentItem) -> None:
        """Opens a document; one opened twice has the second text."""
        lines = LineIndex.of(_without_surrogates(item.text))
        self._open[item.uri] = Document(item.uri, item.version, item.language_id, lines)

    def change(
        self, identifier: types.VersionedTextDocumentIdentifier, changes: Iterable[types.TextDocumentContentChangeEvent]
    ) -> bool:
        """Applies edits in order; False if the document is not open."""
        document = self._open.get(identifier.uri)
        if document is None:
            return False
        lines = document.lines
        for change in changes:
            lines = self._changed(lines, change)
        self._open[identifier.uri] = replace(document, version=identifier.version, lines=lines)
        return True

    def close(self, uri: str) -> None:
        """Closes a document. Unknown URIs are ignored."""
        self._open.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        """The newest version, or None if the document is not open."""
        return self._open.get(uri)

    def all(self) -> list[Document]:
        """Every open document, in the order of opening."""
        return list(self._open.values())

    def completion_position(self, params: types.InlineCompletionParams) -> CompletionPosition | None:
        """The position of an inline completion, or None if the document is not open."""
        document = self._open.get(params.text_document.uri)
        if document is None:
            return None
        selected = params.context.selected_completion_info
        if selected is None:
            offset = self._offset(document.lines, params.position)
            opening = opening_of(document.lines.text, offset, document.language)
            return self._position_after(document, offset, offset, opening)
        start, end = self._offsets(document.lines, selected.range)
        return self._position_after(document, start, end, _without_surrogates(selected.text))

    @staticmethod
    def _position_after(document: Document, start: int, end: int, text: str) -> CompletionPosition:
        """The position after `text`, with `text` replacing the range between two offsets in the snapshot."""
        if not text and start == end:
            return CompletionPosition(document, document.snapshot(), start, start, end)
        edited = replace(document, lines=document.lines.replaced(start, end, text))
        return CompletionPosition(document, edited.snapshot(), start + len(text), start, end, text)

    def _changed(self, lines: LineIndex, change: types.TextDocumentContentChangeEvent) -> LineIndex:
        if isinstance(change, types.TextDocumentContentChangePartial):
            return lines.replaced(*self._offsets(lines, change.range), _without_surrogates(change.text))
        return LineIndex.of(_without_surrogates(change.text))

    def _offset(self, lines: LineIndex, position: types.Position) -> int:
        return lines.offset_at(position.line, position.character, self.encoding)

    def _offsets(self, lines: LineIndex, span: types.Range) -> tuple[int, int]:
        """Start and end in ascending order; some clients send them reversed."""
        first, second = self._offset(lines, span.start), self._offset(lines, span.end)
        return min(first, second), max(first, second)


def _without_surrogates(text: str) -> str:
    """Replaces lone surrogates: JSON can contain them, UTF-8 cannot. The length in UTF-16 units stays the same."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


ANNOTATION = "dg-lsp"


@dataclass(frozen=True, slots=True)
class Change:
    """Replaces `[start, end)` of a text, in code points, by `text`."""

    start: int
    end: int
    text: str


def inline_item(
    candidate: Candidate, position: CompletionPosition, encoding: Encoding, command: types.Command | None = None
) -> types.InlineCompletionItem:
    """The candidate as an item; the client runs `command` when the user accepts it."""
    return types.InlineCompletionItem(
        insert_text=position.selected + candidate.text,
        range=lsp_range(position.document.lines, position.start, position.end, encoding),
        command=command,
    )


def minimal_changes(old: str, new: str, start: int = 0) -> tuple[Change, ...]:
    """Changes that turn `old`, which begins at offset `start`, into `new`: changed lines without their common ends.

    The changes are in ascending order and do not touch; none begins or ends inside a CRLF.
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
    """An edit of one version of a document, annotated if the client supports it; `preview` requires confirmation."""
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
    """A range in the client's units."""
    return types.Range(_position(lines, start, encoding), _position(lines, end, encoding))


def _position(lines: LineIndex, offset: int, encoding: Encoding) -> types.Position:
    line, character = lines.position_at(offset, encoding)
    return types.Position(line, character)


def _lines(text: str) -> list[str]:
    """Lines with their ends."""
    ends = [match.end() for match in LINE_END.finditer(text)]
    lines = [text[start:end] for start, end in pairwise([0, *ends])]
    return lines + [rest for rest in (text[ends[-1] if ends else 0 :],) if rest]


def _shared_ends(old: str, new: str) -> tuple[int, int]:
    """Lengths of the common prefix and suffix; together at most the shorter text."""
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
