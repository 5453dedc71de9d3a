"""Windows of text that become the prompt: around the cursor, and snippets of other files or places before it."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import itemgetter

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle, path_of
from dg_lsp.context.exclusion import cut
from dg_lsp.errors import UsageError

PATH_PARTS = 3  # of a document's path that are shown
CHARS_PER_TOKEN = 4  # approximate length of a token of source text; a prompt is cut to its exact budget later
GRID = 5  # a window starts at a multiple of a fifth of its budget
SUFFIX_SHARE = 0.3  # largest fraction of a prompt for the suffix; the prefix takes the rest
ALIGN = 10  # plus at most a tenth of its budget, to reach the start of a line


class SnippetSource(StrEnum):
    """Origin of a snippet, in prompt order: sources that change often come last, so that the cache keeps the rest."""

    OPEN_FILES = "open-files"  # similar code of open files, the file itself included
    SIMILAR = "similar"  # the most similar code of them
    GIVEN = "given"  # sent by a client of the HTTP API
    EDITS = "edits"  # recently edited code
    TEST = "test"  # the output of a test that fails, of which the end matters most


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of code in the model's style: LF line ends, spaces for tabs."""

    source: SnippetSource
    path: str  # shortened, see `shown_path`
    text: str


@dataclass(frozen=True, slots=True)
class Snippets:
    """The snippets of one request."""

    chunks: tuple[Snippet, ...] = ()  # the most important snippet of a source comes first
    repository: str = ""  # its name, if it is known
    following: "Snippets | None" = field(default=None, compare=False)  # that replace these soon if the cursor goes on


NO_SNIPPETS = Snippets()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text around the cursor in the model's style: LF line ends, spaces for tabs, cut at line ends."""

    prefix: str
    suffix: str
    instruction: str = ""  # for a rewrite; empty for a fill
    selection: str = ""  # text between prefix and suffix that is rewritten; empty for a fill
    path: str = ""  # shortened, see `shown_path`
    language: str = ""  # LSP language id
    snippets: Snippets = NO_SNIPPETS  # code of other files
    lookahead: int = 0  # tokens that can still be typed before the start of the prompt moves; 0 for the prompt as it is


def shown_path(uri: str) -> str:
    """The last `PATH_PARTS` parts of a document's path on one line: names the file without its location."""
    return " ".join("/".join(path_of(uri).split("/")[-PATH_PARTS:]).split())


def prompt_at(snapshot: Snapshot, offset: int, *, prefix_chars: int, suffix_chars: int, lookahead: int = 0) -> Prompt:
    """The text around `offset` in the model's style, at most `prefix_chars` and `suffix_chars` characters long.

    The prompt is cached, so typing should change only its end:

    - The suffix begins at the cursor, is cut after a whole line, and does not depend on the text before the cursor.
    - The prefix starts at the first line after a multiple of a fifth of its budget, counted from the start of the
      buffer; the earliest such line is taken. While the user types, this start stays for a fifth of the budget, then
      moves by a fifth. At least 70% of the budget is used if there is enough text (less if tabs are expanded).

    Longer lines are cut. The prefix starts where it will start after `lookahead` more tokens.

    Raises:
        UsageError: the buffer is shorter than `offset`.
    """
    text = snapshot.text
    if not 0 <= offset <= len(text):
        raise UsageError(f"offset {offset} is outside the {len(text)} characters of {snapshot.uri}")
    style = TextStyle.of(text, offset)
    prefix = _prefix(text, offset, prefix_chars, min(lookahead * CHARS_PER_TOKEN, prefix_chars // 2), style)
    suffix = _suffix(text, offset, suffix_chars, style)
    path = shown_path(snapshot.file_uri)
    return Prompt(prefix, suffix, path=path, language=snapshot.language, lookahead=lookahead)


def _prefix(text: str, offset: int, budget: int, lookahead: int, style: TextStyle) -> str:
    step = max(1, budget // GRID)
    first = -(-max(0, offset + lookahead - budget) // step) * step
    for mark in range(first, offset + 1, step):
        start = _line_start(text, mark, min(offset, mark + budget // ALIGN))
        prefix = style.to_model(text[start:offset])
        if len(prefix) + lookahead <= budget:
            return prefix.removeprefix("\ufeff")
    return ""


def _line_start(text: str, mark: int, limit: int) -> int:
    """The first line start between `mark` and `limit`; inside a longer line, `mark`."""
    if not mark:
        return 0
    end = LINE_END.search(text[mark - 1 : limit + 1])
    if end and end.start() <= limit - mark:
        return mark - 1 + end.end()
    return mark


def _suffix(text: str, offset: int, budget: int, style: TextStyle) -> str:
    shown = style.to_model(text[offset : offset + budget + 1])
    is_whole = offset + budget >= len(text)
    return shown if is_whole and len(shown) <= budget else _whole_lines(shown, budget)


def _whole_lines(shown: str, budget: int) -> str:
    """Whole lines within the budget, or characters if the lines would be blank."""
    lines = shown[: shown.rfind("\n", 0, budget) + 1]
    return lines if lines.strip() else shown[:budget]


# windows of other texts

WINDOW = 24  # lines
STRIDE = 8  # lines from one window to the next
MAX_LINES = 4000  # of a text that are searched
MAX_CHARS = 400_000  # of a text that are searched
MAX_LINE = 400  # characters of a line that are shown: longer ones are data, or minified
MAX_SIMILAR = 8  # windows that are found
CHARS_BEFORE, CHARS_AFTER = 300, 100
"""Characters around the cursor whose words are searched. More of them find worse code (docs/log.md)."""
_WORD = re.compile(r"\b[^\W\d]\w+")

Words = frozenset[str]


@dataclass(frozen=True, slots=True)
class CodeWindow:
    """A window of lines and its words."""

    first: int  # number of its first line, from 0
    lines: tuple[str, ...]
    words: Words


def words_of(text: str) -> Words:
    """Names and keywords of two letters or more."""
    return frozenset(_WORD.findall(text))


def similarity(a: Words, b: Words) -> float:
    """Jaccard similarity of two word sets, 0 to 1."""
    both = len(a & b)
    return both / (len(a) + len(b) - both) if both else 0.0


def windows_of(text: str) -> tuple[CodeWindow, ...]:
    """Overlapping windows of a text, in the model's style."""
    shown = TextStyle().to_model(cut(text, MAX_CHARS))
    lines = [cut(line, MAX_LINE) for line in shown.split("\n")[:MAX_LINES]]
    starts = range(0, max(1, len(lines) - WINDOW + STRIDE), STRIDE)
    parts = ((start, tuple(lines[start : start + WINDOW])) for start in starts)
    return tuple(CodeWindow(start, part, words_of("\n".join(part))) for start, part in parts)


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file, or what a prompt does not show of it."""

    uri: str
    language: str  # LSP language id
    windows: Sequence[CodeWindow]


def hidden_part(snapshot: Snapshot, offset: int, num_chars: int) -> SearchedFile:
    """What a prompt with `num_chars` characters of the code around an offset does not show of the file."""
    text = snapshot.text
    first = text.count("\n", 0, max(0, offset - int((1 - SUFFIX_SHARE) * num_chars)))
    last = text.count("\n", 0, offset + int(SUFFIX_SHARE * num_chars))
    hidden = [window for window in windows_of(text) if window.first + len(window.lines) <= first or window.first > last]
    return SearchedFile(snapshot.file_uri, snapshot.language, hidden)


def similar_code(
    snapshot: Snapshot, offset: int, files: Sequence[SearchedFile]
) -> Iterator[tuple[SearchedFile, CodeWindow]]:
    """The windows that have the rare words of the code around an offset; they do not overlap, the best one is first.

    A word counts by its rarity among the windows, in nats, because words that all code has tell windows not apart. Long
    windows do not win by their length.
    """
    words = words_of(snapshot.text[max(0, offset - CHARS_BEFORE) : offset + CHARS_AFTER])
    parts = [(file, window) for file in files for window in file.windows]
    counts = Counter(word for _, window in parts for word in window.words)
    rarity = {word: math.log((len(parts) + 1) / count) for word, count in counts.items()}

    def weight(shown: Words) -> float:
        return sum(rarity[word] for word in shown)

    scores = [weight(window.words & words) / math.sqrt(1 + weight(window.words)) for _, window in parts]
    places: list[tuple[str, int]] = []  # URI and first line of what was found
    for score, (file, window) in sorted(zip(scores, parts, strict=True), key=itemgetter(0), reverse=True):
        overlaps = any(file.uri == uri and abs(window.first - first) < WINDOW for uri, first in places)
        if score and not overlaps and len(places) < MAX_SIMILAR:
            places.append((file.uri, window.first))
            yield file, window
