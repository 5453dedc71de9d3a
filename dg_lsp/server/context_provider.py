"""Context of a completion from outside its prompt: similar code of open files, its own included, and recent edits.

The result stays the same while the cursor stays near: it precedes the file's own code in the prompt, whose KV cache
would be lost otherwise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from dg_lsp.context.document import Snapshot, TextStyle
from dg_lsp.context.exclusion import Exclusion, cut, local_path, mask_secrets
from dg_lsp.context.window import (
    MAX_LINE,
    NO_SNIPPETS,
    SearchedFile,
    Snippet,
    Snippets,
    SnippetSource,
    Words,
    hidden_part,
    shown_path,
    similar_code,
    similarity,
    windows_of,
    words_of,
)
from dg_lsp.server.documents import Document, DocumentStore

NEAR_CHARS = 1600
"""Characters on each side of the cursor that earlier edits are compared with."""
NEAR_LINES = 16
"""Lines that the cursor may move before other snippets replace those that were collected."""
READY_LINES = 12
"""Lines that the cursor moves before the next snippets are collected: idle time decodes the prompt with them."""
EDIT_LINES = 8
"""Lines shown on each side of an edited line."""
MAX_EDITS = 16
"""Earlier edits that are kept."""
MAX_OPEN = 8
"""Other open files that are searched."""
SAME_CODE_SIMILARITY = 0.5
"""An edit in the same file that is this similar to the cursor's surroundings is the cursor's own code."""

_Collected = tuple[Snapshot, Snippet]
"""The document that a snippet is from, but without the text of the document, and the snippet."""


@dataclass(frozen=True, slots=True)
class _Collection:
    """Snippets, and the line that they were collected for."""

    uri: str
    line: int
    collected: tuple[_Collected, ...]

    def is_near(self, uri: str, line: int, num_lines: int) -> bool:
        """Whether a line is at most `num_lines` lines away."""
        return self.uri == uri and abs(self.line - line) <= num_lines


class ContextProvider:
    """Collects the snippets of one session from its documents. The session reports edits."""

    def __init__(self, documents: DocumentStore, exclusion: Exclusion) -> None:
        self._documents = documents
        self._exclusion = exclusion
        self._windows_of = lru_cache(MAX_OPEN)(windows_of)  # 7 ms for 600 lines; comparing them takes 0.3 ms
        self._collection: _Collection | None = None
        self._following: _Collection | None = None
        """The collection that replaces `_collection` next."""
        self._edits: dict[tuple[str, int], tuple[Words, _Collected]] = {}
        """Lines around each earlier edit by its URI and place, as they were when the cursor left them; newest last."""
        self._last_edit: tuple[str, int] | None = None
        """URI and line of the last edit."""

    def record_edit(self, document: Document, line: int) -> None:
        """Call it before a line changes. An edit becomes a snippet when the next edit is at another position."""
        last = self._last_edit
        if last is None or last[0] != document.uri or abs(last[1] - line) > NEAR_LINES:
            self._keep_last_edit()
        self._last_edit = document.uri, line

    def close(self, uri: str) -> None:
        """Called before a document or a notebook is closed."""
        self._windows_of.cache_clear()  # it holds texts
        if self._last_edit is not None and self._last_edit[0] == uri:
            self._keep_last_edit()
            self._last_edit = None
        if self._collection is not None and self._collection.uri == uri:
            self._collection = self._following = None

    def snippets(self, snapshot: Snapshot, offset: int, num_chars: int) -> Snippets:
        """Snippets for a cursor; never text of an excluded file, and without private keys and tokens.

        The prompt has about `num_chars` characters of the code around the cursor.
        """
        uri = snapshot.file_uri
        line = snapshot.text.count("\n", 0, offset)
        known = self._collection
        if known is None or not known.is_near(uri, line, NEAR_LINES):
            known = self._following_at(snapshot, offset, line, num_chars)
            self._following = None
        self._collection = known
        shown = self._shown(known)
        if known.is_near(uri, line, READY_LINES):
            return shown
        self._following = self._following_at(snapshot, offset, line, num_chars)
        return replace(shown, following=self._shown(self._following))

    def _following_at(self, snapshot: Snapshot, offset: int, line: int, num_chars: int) -> _Collection:
        """The collection that was made for the next lines if the cursor is in them, else a new one."""
        known = self._following
        if known is not None and known.is_near(snapshot.file_uri, line, NEAR_LINES):
            return known
        return _Collection(snapshot.file_uri, line, tuple(self._collect(snapshot, offset, num_chars)))

    def _shown(self, known: _Collection) -> Snippets:
        """The snippets of a collection that may be shown. The settings may have changed since it was made."""
        allowed = tuple(snippet for document, snippet in known.collected if not self._exclusion.is_excluded(document))
        path = local_path(known.uri)
        folders = self._exclusion.folders_around(path) if path else []
        return Snippets(allowed, repository=folders[0].name if folders else "") if allowed else NO_SNIPPETS

    def _collect(self, snapshot: Snapshot, offset: int, num_chars: int) -> Iterator[_Collected]:
        yield from self._collect_similar(snapshot, offset, num_chars)
        words = words_of(snapshot.text[max(0, offset - NEAR_CHARS) : offset + NEAR_CHARS])
        for edit_words, edit in reversed(self._edits.values()):
            if edit[0].uri != snapshot.file_uri or similarity(edit_words, words) < SAME_CODE_SIMILARITY:
                yield edit

    def _collect_similar(self, snapshot: Snapshot, offset: int, num_chars: int) -> Iterator[_Collected]:
        """Similar parts of the last open files, and of what the prompt does not show of the file itself, best first."""
        files = [file for file in reversed(self._documents.files()) if file.uri != snapshot.file_uri][:MAX_OPEN]
        allowed = [file for file in files if not self._exclusion.is_excluded(file.snapshot())]
        searched = [SearchedFile(file.uri, file.language, self._windows_of(file.lines.text)) for file in allowed]
        source = SnippetSource.SIMILAR
        for file, window in similar_code(snapshot, offset, [hidden_part(snapshot, offset, num_chars), *searched]):
            yield _collected(source, file.uri, file.language, "\n".join(window.lines))
            source = SnippetSource.OPEN_FILES

    def _keep_last_edit(self) -> None:
        """Records the lines around the last edit as they are now."""
        uri, line = self._last_edit or ("", 0)
        document = self._documents.get(uri)
        if document is None or self._exclusion.is_excluded(document.snapshot()):
            return
        lines = document.lines
        first, last = (min(max(0, number), lines.num_lines - 1) for number in (line - EDIT_LINES, line + EDIT_LINES))
        shown = (cut(lines.text[slice(*lines.span(number))], MAX_LINE) for number in range(first, last + 1))
        text = TextStyle().to_model("\n".join(shown))
        place = uri, line // NEAR_LINES
        self._edits.pop(place, None)
        if words := words_of(text):
            edit = _collected(SnippetSource.EDITS, document.snapshot().file_uri, document.language, text)
            self._edits[place] = words, edit
        if len(self._edits) > MAX_EDITS:
            del self._edits[next(iter(self._edits))]
        self._collection = self._following = None


def _collected(source: SnippetSource, uri: str, language: str, text: str) -> _Collected:
    return Snapshot(uri, "", language), Snippet(source, shown_path(uri), mask_secrets(text))
