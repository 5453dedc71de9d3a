"""Collects code from elsewhere for a cursor: other open files, places edited before, definitions of what is imported,
what is wrong nearby.

What is collected stays the same while the cursor stays near: the cache keeps what comes before the file's own code.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle
from dg_lsp.context.exclusion import ExclusionReason, path_of
from dg_lsp.context.snippets import (
    NO_SNIPPETS,
    CodeWindow,
    RecentEdits,
    Snippet,
    Snippets,
    SnippetSource,
    Words,
    most_similar,
    similarity,
    windows_of,
    words_of,
)
from dg_lsp.context.window import shown_path
from dg_lsp.server.documents import Document, DocumentStore
from dg_lsp.server.workspace_index import Import, VisibleFiles, Workspace, imports_of
from dg_lsp.settings import ContextSettings

NEAR_CHARS = 1600
"""Characters on each side of the cursor that say what is like it."""
NEAR_LINES = 16
"""Lines that the cursor may move before anything is collected anew."""
EDIT_LINES = 8
"""Lines shown on each side of one that was edited."""
MAX_OPEN = 8
"""Other open files that are looked into."""
MIN_LIKENESS = 0.05
SEEN_ALREADY = 0.5
"""Likeness from which a place of the same file is taken for the cursor's own."""
MAX_DIAGNOSTICS = 5
MAX_MESSAGE = 200
"""Characters of one."""
MAX_ASKED = 2000
"""Lines of one question of an editor."""
MAX_REMEMBERED = 32
"""Diagnostics of a document."""
LANGUAGE = "python"
"""The one language whose imports are understood."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A chunk, and the document that it is from."""

    uri: str
    language: str
    chunk: Snippet


@dataclass(frozen=True, slots=True)
class _Anchor:
    """Where and for what was collected."""

    uri: str
    line: int
    settings: ContextSettings
    imports: tuple[Import, ...]
    found: tuple[_Found, ...]


@dataclass(frozen=True, slots=True)
class _Edit:
    """The last line that was edited."""

    uri: str
    line: int


class ContextProvider:
    """One session's. Reads files of the workspace; must be told of edits and diagnostics."""

    def __init__(
        self,
        roots: Iterable[Path],
        documents: Callable[[], DocumentStore],
        why: Callable[[Snapshot], ExclusionReason | None],
    ) -> None:
        """`why` tells why a buffer must not be shown, None where it may; it is asked again at every use."""
        self._documents = documents
        self._why = why
        self._workspace = Workspace(tuple(roots), VisibleFiles(documents, why))
        self._edited = RecentEdits()
        self._last_edit: _Edit | None = None
        self._anchor: _Anchor | None = None
        self._parts: dict[str, tuple[int, tuple[CodeWindow, ...]]] = {}
        """Of open documents, with the version that they are from."""
        self._wrong: dict[str, tuple[tuple[str, str], ...]] = {}
        """Of documents, lines and what is wrong with them."""

    def edit(self, document: Document, line: int) -> None:
        """A line is about to change; the place edited before is remembered once another one is."""
        last = self._last_edit
        if last is None or last.uri != document.uri or abs(last.line - line) > NEAR_LINES:
            self._remember()
        self._last_edit = _Edit(document.uri, line)

    def close(self, uri: str) -> None:
        """A document is about to be closed."""
        if self._last_edit is not None and self._last_edit.uri == uri:
            self._remember()
            self._last_edit = None
        self._parts.pop(uri, None)
        self._wrong.pop(uri, None)

    def diagnose(self, document: Document, first: int, last: int, wrong: Iterable[tuple[int, str]]) -> None:
        """What the editor says is wrong from one line to another, counted from 0, instead of what it said before."""
        lines = document.lines

        def text_of(line: int) -> str:
            return lines.text[slice(*lines.span(line))]

        asked = {text_of(line) for line in range(max(0, first), min(last + 1, first + MAX_ASKED, lines.num_lines))}
        kept = [one for one in self._wrong.get(document.uri, ()) if one[0] not in asked]
        said = [(text_of(line), message) for line, message in wrong if 0 <= line < lines.num_lines]
        self._wrong[document.uri] = tuple([*said, *kept][:MAX_REMEMBERED])

    def extra(self, snapshot: Snapshot, offset: int, settings: ContextSettings) -> Snippets:
        """What may be shown for a cursor; never a word of an excluded file."""
        line = snapshot.text.count("\n", 0, offset)
        imports = imports_of(snapshot.text) if settings.imports and snapshot.language == LANGUAGE else ()
        anchor = self._anchor
        is_near = anchor is not None and anchor.uri == snapshot.uri and abs(anchor.line - line) <= NEAR_LINES
        if anchor is None or not is_near or (anchor.settings, anchor.imports) != (settings, imports):
            found = tuple(self._collect(snapshot, offset, settings, imports))
            anchor = self._anchor = _Anchor(snapshot.uri, line, settings, imports, found)
        chunks = [one.chunk for one in anchor.found if not self._why(Snapshot(one.uri, 0, "", one.language))]
        if settings.diagnostics:
            chunks += self._diagnostics(snapshot, offset)
        return Snippets(tuple(chunks), settings.share) if chunks else NO_SNIPPETS

    def _collect(
        self, snapshot: Snapshot, offset: int, settings: ContextSettings, imports: tuple[Import, ...]
    ) -> Iterator[_Found]:
        near = snapshot.text[max(0, offset - NEAR_CHARS) : offset + NEAR_CHARS]
        words = words_of(near)
        if imports:
            yield from self._imported(snapshot, imports, near)
        if settings.open_files:
            yield from self._open(snapshot.uri, words)
        if settings.recent_edits:
            yield from self._recent(snapshot.uri, words)

    def _imported(self, snapshot: Snapshot, imports: tuple[Import, ...], near: str) -> Iterator[_Found]:
        path = Path("/" + path_of(snapshot.uri))
        for one in self._workspace.definitions(path, imports, near):
            text = TextStyle().to_model(one.lines)
            yield _found(SnippetSource.IMPORTS, one.path.as_uri(), LANGUAGE, text)

    def _open(self, uri: str, words: Words) -> Iterator[_Found]:
        others = [one for one in reversed(self._documents().all()) if one.uri != uri][:MAX_OPEN]
        shown = [one for one in others if not self._why(one.snapshot())]
        ranked = [(*most_similar(self._parts_of(one), words), one) for one in shown]
        for alike, part, document in sorted(ranked, key=lambda one: -one[0]):
            if alike >= MIN_LIKENESS:
                yield _found(SnippetSource.OPEN_FILES, document.uri, document.language, "\n".join(part.lines))

    def _parts_of(self, document: Document) -> tuple[CodeWindow, ...]:
        known = self._parts.get(document.uri)
        if known is None or known[0] != document.version:
            known = document.version, windows_of(TextStyle().to_model(document.lines.text))
            self._parts[document.uri] = known
        return known[1]

    def _recent(self, uri: str, words: Words) -> Iterator[_Found]:
        for one in self._edited.newest_first():
            if one.uri != uri or similarity(one.words, words) < SEEN_ALREADY:
                yield _found(SnippetSource.EDITS, one.uri, one.language, one.text)

    def _diagnostics(self, snapshot: Snapshot, offset: int) -> list[Snippet]:
        """What was said of lines that still stand near the cursor as they were."""
        near = LINE_END.split(snapshot.text[max(0, offset - NEAR_CHARS) : offset + NEAR_CHARS])
        wrong = [(line.strip(), message) for line, message in self._wrong.get(snapshot.uri, ()) if line in near]
        lines = [f"{line}: {' '.join(message.split())[:MAX_MESSAGE]}" for line, message in wrong[:MAX_DIAGNOSTICS]]
        path = f"problems in {shown_path(snapshot.uri)}"
        return [Snippet(SnippetSource.DIAGNOSTICS, path, TextStyle().to_model("\n".join(lines)))] if lines else []

    def _remember(self) -> None:
        """The lines around the last edit, as they are now."""
        last = self._last_edit
        document = self._documents().get(last.uri) if last is not None else None
        if last is None or document is None or self._why(document.snapshot()):
            return
        lines = document.lines
        first = min(max(0, last.line - EDIT_LINES), lines.num_lines - 1)
        end = min(last.line + EDIT_LINES, lines.num_lines - 1)
        text = lines.text[lines.span(first)[0] : lines.span(max(first, end))[1]]
        self._edited.add(document.uri, document.language, TextStyle().to_model(text))
        self._anchor = None


def _found(source: SnippetSource, uri: str, language: str, text: str) -> _Found:
    return _Found(uri, language, Snippet(source, shown_path(uri), text))
