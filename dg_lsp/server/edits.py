"""Candidates and rewrites as LSP edits, in the client's units."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from lsprotocol import types

from dg_lsp.context.style import LINE_END
from dg_lsp.postprocess.candidate import Candidate
from dg_lsp.server.documents import Cursor, Document
from dg_lsp.server.lines import Encoding, LineIndex

ANNOTATION = "dg-lsp"


@dataclass(frozen=True, slots=True)
class Change:
    """`[start, end)` of a text, in code points, becomes `text`."""

    start: int
    end: int
    text: str


def inline_item(
    candidate: Candidate, cursor: Cursor, encoding: Encoding, command: types.Command | None = None
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
