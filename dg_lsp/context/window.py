"""The text window around the cursor that becomes the prompt."""

from dataclasses import dataclass

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle, path_of
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.errors import UsageError

PATH_PARTS = 3  # of a document's path that are shown
CHARS_PER_TOKEN = 4  # approximate length of a token of source text; a prompt is cut to its exact budget later
GRID = 5  # a window starts at a multiple of a fifth of its budget
ALIGN = 10  # plus at most a tenth of its budget, to reach the start of a line


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
    if budget <= 0:
        return ""
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
    if budget <= 0:
        return ""
    shown = style.to_model(text[offset : offset + budget + 1])
    is_whole = offset + budget >= len(text)
    return shown if is_whole and len(shown) <= budget else _cut(shown, budget)


def _cut(shown: str, budget: int) -> str:
    """Whole lines within the budget, or characters if the lines would be blank."""
    lines = shown[: shown.rfind("\n", 0, budget) + 1]
    return lines if lines.strip() else shown[:budget]
