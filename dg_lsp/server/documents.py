"""The client's open documents: converts LSP positions and edits to code-point offsets and snapshots, and back.

Replaces the documents of pygls, which split lines at form feeds and are off by one at the end of a file. A cell of a
notebook is one text with the code of the cells around it, without the magics of IPython.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from lsprotocol import types

from dg_lsp.context.document import LINE_END, Encoding, LineIndex, Snapshot, TextStyle, line_start
from dg_lsp.context.languages import PLAIN_TEXT, language_of, opening_of
from dg_lsp.postprocess.text_edits import Change, shared_ends

PYTHON_CELLS = frozenset(
    ("capture", "debug", "memit", "mprun", "prun", "px", "pypy", "python", "python3", "time", "timeit")
)
"""Cell magics whose cells contain Python."""
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_REST = r"(?:\\\r?\n|[^\r\n])*"  # of a line, which a backslash continues
_MAGIC = re.compile(
    rf"^(?:[\w.,\[\] \t]+=)?[ \t]*(?:%%?[A-Za-z]|!(?!=)|\?){_REST}|^[ \t]*[\w.%*]+\?\??[ \t]*(?=\r?$)",
    re.MULTILINE,
)
"""A magic, also one whose result is assigned, or a question for help."""
_BLANK_START = re.compile(r"(?:[ \t]*[\r\n])+")


@dataclass(frozen=True, slots=True)
class CellCode:
    """The code of one cell. `text` is as long as the cell's own text and has blanks in place of magics."""

    cell: str
    text: str
    language: str  # LSP language id

    @classmethod
    def of(cls, cell: str, language_id: str) -> Self:
        """The code of a cell. Only Python has magics; `%%bash` and its like change the language of a cell."""
        if language_of(language_id).id != "python" or not any(mark in cell for mark in "%!?"):
            return cls(cell, cell, language_id)
        if (magic := _CELL_MAGIC.match(cell)) and magic[1] not in PYTHON_CELLS:
            _, end = _whole_lines(cell, magic.start(), magic.end())
            return cls(cell, _blank(cell[:end]) + cell[end:], language_of(magic[1]).id)
        return cls(cell, _MAGIC.sub(lambda magic: _blank(magic[0]), cell), language_id)

    def with_lines(self, start: int, end: int) -> Self:
        """The code with all lines that `[start, end)` touches as they are in the cell."""
        start, end = _whole_lines(self.cell, start, end)
        return replace(self, text=self.text[:start] + self.cell[start:end] + self.text[end:])

    def is_magic(self, offset: int) -> bool:
        """Whether the line at an offset is a magic or continues one."""
        return self.text != self.with_lines(offset, offset).text


def joined(snapshot: Snapshot, above: Iterable[CellCode], below: Iterable[CellCode]) -> Snapshot:
    """A cell with the code of the cells above and below it, one blank line between two of them.

    Cells of other languages and those without code are left out.
    """
    gap = 2 * TextStyle.of(snapshot.text).line_end
    head = "".join(text + gap for text in _texts(above, snapshot.language))
    tail = "".join(gap + text for text in _texts(below, snapshot.language))
    return replace(snapshot, text=head + snapshot.text + tail, num_before=len(head), num_after=len(tail))


def _texts(cells: Iterable[CellCode], language: str) -> Iterator[str]:
    """The code of the cells in a language, without blank lines at its ends."""
    for cell in cells:
        if cell.language == language != PLAIN_TEXT:
            start = _BLANK_START.match(cell.text)
            if text := cell.text[start.end() if start else 0 :].rstrip():
                yield text


def _whole_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """The lines that `[start, end)` touches, without the last line end."""
    line_end = LINE_END.search(text, end)
    return line_start(text, start), line_end.start() if line_end else len(text)


def _blank(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


_SURROGATE = re.compile("[\ud800-\udfff]")
ANNOTATION = "dg-lsp"
NOTEBOOKS = types.NotebookDocumentSyncOptions([types.NotebookDocumentFilterWithNotebook("jupyter-notebook")])
"""Notebooks that the client synchronises, with all of their cells."""


@dataclass(frozen=True, eq=False)
class Document:
    """One version of an open document."""

    uri: str
    version: int
    language: str
    lines: LineIndex
    notebook: str = ""  # URI of the notebook that the document is a cell of

    @cached_property
    def code(self) -> CellCode:
        """The document without magics, if it is a cell."""
        text = self.lines.text
        return CellCode.of(text, self.language) if self.notebook else CellCode(text, text, self.language)

    def snapshot(self) -> Snapshot:
        """The document without other cells; `DocumentStore.snapshot` adds the cells around it for the engine."""
        return Snapshot(self.uri, self.lines.text, self.language, self.notebook)


@dataclass(frozen=True, slots=True, eq=False)
class Notebook:
    """The cells of an open notebook, which are documents."""

    cells: tuple[types.NotebookCell, ...]

    def spliced(self, change: types.NotebookCellArrayChange) -> Self:
        """The notebook after cells are inserted, deleted or moved; numbers beyond its end mean the end."""
        end = change.start + change.delete_count
        return replace(self, cells=(*self.cells[: change.start], *(change.cells or ()), *self.cells[end:]))

    def with_data(self, changed: Sequence[types.NotebookCell]) -> Self:
        """The notebook after kinds of cells have changed."""
        new = {cell.document: cell for cell in changed}
        return replace(self, cells=tuple(new.get(cell.document, cell) for cell in self.cells))

    def around(self, uri: str) -> tuple[list[str], list[str]]:
        """URIs of the cells above and below a cell that have its kind; both empty for another document."""
        kinds = [cell.kind for cell in self.cells if cell.document == uri]
        uris = [cell.document for cell in self.cells if cell.kind in kinds]
        at = uris.index(uri) if kinds else 0
        return uris[:at], uris[at + 1 :]


@dataclass(frozen=True, slots=True, eq=False)
class CompletionPosition:
    """The position of a completion, and the range that its items replace."""

    snapshot: Snapshot  # the document with `selected` inserted, among the other cells of its notebook
    offset: int  # offset of the completion in the snapshot's text
    replaced: types.Range
    """What an item replaces in the document; the range is empty at the cursor when no popup is open."""
    span: tuple[int, int]  # the same in offsets of the document
    is_code: bool  # False on the line of a magic
    selected: str = ""
    """Text that every item must begin with: the popup's selected item, or the line break and indent of the block."""


class DocumentStore:
    """Every open document and notebook by its URI, in the position encoding of the client."""

    def __init__(self) -> None:
        self.encoding = Encoding.UTF16  # until the client has chosen one
        self._open: dict[str, Document] = {}
        self.notebooks: dict[str, Notebook] = {}
        """Every open notebook. Its cells are opened and closed as documents."""

    def open(self, item: types.TextDocumentItem, notebook: str = "") -> None:
        """Opens a document, or a cell of the notebook with this URI. A second opening replaces the text."""
        lines = LineIndex.of(_without_surrogates(item.text))
        self._open[item.uri] = Document(item.uri, item.version, item.language_id, lines, notebook)

    def cells(self, notebook: str) -> list[str]:
        """URIs of the open documents that were opened as cells of a notebook."""
        return [uri for uri, document in self._open.items() if document.notebook == notebook]

    def change(
        self, identifier: types.VersionedTextDocumentIdentifier, changes: Iterable[types.TextDocumentContentChangeEvent]
    ) -> list[tuple[LineIndex, Change]]:
        """Applies edits to an open document in order; returns what they changed, each with the text before it."""
        document = self._open[identifier.uri]
        lines = document.lines
        applied = []
        for change in changes:
            text, start, end = _without_surrogates(change.text), 0, len(lines.text)
            if isinstance(change, types.TextDocumentContentChangePartial):
                start, end = self.offsets(lines, change.range)
            # editors replace a word by a longer one where the user added its end
            head, tail = shared_ends(lines.text[start:end], text)
            applied.append((lines, Change(start + head, end - tail, text[head : len(text) - tail])))
            lines = lines.replaced(start, end, text)
        self._open[identifier.uri] = replace(document, version=identifier.version, lines=lines)
        return applied

    def close(self, uri: str) -> None:
        """Closes a document. Unknown URIs are ignored."""
        self._open.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        """The newest version, or None if the document is not open."""
        return self._open.get(uri)

    def files(self) -> list[Document]:
        """Every open file in the order of opening, without notebooks."""
        return [document for document in self._open.values() if not document.notebook]

    def snapshot(self, document: Document, kept: tuple[int, int] | None = None) -> Snapshot:
        """A version of a document as the engine receives it: a cell without magics, and with the cells around it.

        Magics stay in the lines that the range `kept` touches. Positions differ by the snapshot's `num_before`.
        """
        notebook = self.notebooks.get(document.notebook)
        if notebook is None:
            return document.snapshot()
        code = document.code if kept is None else document.code.with_lines(*kept)
        above, below = (filter(None, map(self._open.get, uris)) for uris in notebook.around(document.uri))
        cell = replace(document.snapshot(), text=code.text, language=code.language)
        return joined(cell, (cell.code for cell in above), (cell.code for cell in below))

    def completion_position(self, params: types.InlineCompletionParams) -> CompletionPosition | None:
        """The position of an inline completion, or None if the document is not open."""
        document = self._open.get(params.text_document.uri)
        if document is None:
            return None
        if (selected := params.context.selected_completion_info) is None:
            offset = self.offset(document, params.position)
            return self.completion_at(document, offset, offset)
        text = _without_surrogates(selected.text)
        return self.completion_at(document, *self.offsets(document.lines, selected.range), text)

    def completion_at(self, document: Document, start: int, end: int, text: str | None = None) -> CompletionPosition:
        """The position of a completion; `text` is the item of a popup that is selected, in place of `[start, end)`."""
        if text is None:
            text = opening_of(document.lines.text, start, document.code.language)
        replaced = self.range(document, start, end)
        if text or start != end:
            document = replace(document, lines=document.lines.replaced(start, end, text))
        snapshot = self.snapshot(document)
        at = start + len(text)
        is_code = not (document.notebook and document.code.is_magic(at))
        return CompletionPosition(snapshot, snapshot.num_before + at, replaced, (start, end), is_code, text)

    def offsets(self, lines: LineIndex, span: types.Range) -> tuple[int, int]:
        """Start and end of the client's range in ascending order; some clients send them reversed."""
        first, second = (lines.offset_at(at.line, at.character, self.encoding) for at in (span.start, span.end))
        return min(first, second), max(first, second)

    def offset(self, document: Document, position: types.Position) -> int:
        """The offset of the client's position."""
        return document.lines.offset_at(position.line, position.character, self.encoding)

    def range(self, document: Document, start: int, end: int) -> types.Range:
        """The range between two offsets in the client's units."""
        positions = (document.lines.position_at(offset, self.encoding) for offset in (start, end))
        return types.Range(*(types.Position(line, character) for line, character in positions))

    def workspace_edit(
        self,
        document: Document,
        changes: Iterable[Change],
        capabilities: types.WorkspaceEditClientCapabilities | None,
        *,
        label: str,
        preview: bool,
    ) -> types.WorkspaceEdit:
        """An edit of one version, annotated if the client supports it; `preview` requires confirmation."""
        edits = [types.TextEdit(self.range(document, change.start, change.end), change.text) for change in changes]
        if capabilities is None or not capabilities.document_changes:
            return types.WorkspaceEdit(changes={document.uri: edits})
        identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
        if capabilities.change_annotation_support is None:
            return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(identifier, edits)])
        annotated = [types.AnnotatedTextEdit(ANNOTATION, edit.range, edit.new_text) for edit in edits]
        return types.WorkspaceEdit(
            document_changes=[types.TextDocumentEdit(identifier, annotated)],
            change_annotations={ANNOTATION: types.ChangeAnnotation(label, needs_confirmation=preview)},
        )


def _without_surrogates(text: str) -> str:
    """Replaces lone surrogates: JSON can contain them, UTF-8 cannot. The length in UTF-16 units stays the same."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
