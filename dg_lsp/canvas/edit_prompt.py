"""Prompts of edit models, which rewrite the lines around the cursor after the user's last edits, and their answers.

`edit_formats.toml` has the formats. A text that spells a mark of a format is refused: the answer could not be read.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

from cattrs import Converter

from dg_lsp.canvas.spec import ModelSpec
from dg_lsp.context.document import LINE_END, LineIndex
from dg_lsp.context.edit_history import LINES_AROUND, Edit
from dg_lsp.context.window import Snippet
from dg_lsp.errors import RequestError

BYTES_PER_TOKEN = 3  # a low estimate, so that a prompt is never longer than its model allows
GROWTH = 2  # the longest answer has so many times the tokens of the lines to rewrite
SPARE_TOKENS = 128  # and these
JOINED_LINES = 8
"""An answer that has repeated as many unchanged lines after a change has made its edit: the rest is not read."""
UNFINISHED_JOINED_LINES = 2  # the same for an answer that was broken off
_BOM = "\ufeff"
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NO_START = re.compile(r"[\]})]|(?:break|continue|return|throw|end);*$")  # lines that begin no block of `block_lines`
_MAX_NUDGE = 5  # lines in which a better beginning of such a block is searched


@dataclass(frozen=True, slots=True)
class EditFormat:
    """A `[[format]]` row: models with the same prompt and the same answers."""

    name: str
    names: tuple[str, ...]  # parts of a model's name, lower case with hyphens, that identify the format
    prompt: str  # a Jinja template with the fields of `edit_prompt`
    sources: tuple[str, ...]
    stops: tuple[str, ...]  # texts that end an answer
    sentinels: tuple[str, ...]  # further marks; one that ends with a line end is a mark only as a whole line
    num_edits: int
    max_prompt_tokens: int
    cursor: str = ""
    opening: str = ""  # what an answer may begin with
    no_edit: str = ""  # an answer that changes nothing, besides the unchanged lines
    marker: str = ""  # between blocks of the lines to rewrite; an answer names the first and the last one it replaces
    block_lines: tuple[int, int] = (1, 1)  # fewest and most lines of such a block
    has_prefill: bool = False  # the lines above the cursor are the beginning of the answer
    lines_above: int = 0  # lines to rewrite above the cursor's, unless `editable_tokens` is given
    lines_below: int = 0
    editable_tokens: int = 0  # size of the lines to rewrite
    context_tokens: int = 0  # size of the lines around those to rewrite
    context_lines_around: int = 0  # the same in lines on each side of the cursor
    lines_around: int = 0  # lines of the file on each side of the cursor, where they are shown once more

    @property
    def marks(self) -> tuple[str, ...]:
        """All that no shown text may contain."""
        marks = (*self.sentinels, *self.stops, self.opening, self.cursor)
        return tuple(mark.removeprefix("\n") for mark in marks if mark)

    def mark_in(self, text: str) -> str:
        """A mark that a text contains; empty without one."""
        whole = f"\n{text}\n"
        return next((mark for mark in self.marks if (f"\n{mark}" if mark.endswith("\n") else mark) in whole), "")

    def block_starts(self, region: str) -> list[int]:
        """Offsets of the blocks of the lines to rewrite, and of their end.

        A block begins after a blank line, or where the one before it has the most lines; rather not with the end of a
        body.
        """
        least, most = self.block_lines
        lines = region.split("\n")
        if len(lines) > 1 and not lines[-1]:
            lines.pop()
        firsts = [0]
        line = 1
        while line < len(lines):
            num = line - firsts[-1]
            following = range(line, min(len(lines), line + _MAX_NUDGE))
            good = (at for at in following if lines[at].strip() and not _NO_START.match(lines[at].strip()))
            start = next(good, line)
            is_after_blank = num >= least and bool(lines[line].strip()) and not lines[line - 1].strip()
            if (is_after_blank and len(lines) - start >= least) or num >= most:
                firsts.append(start)
                line = start
            line += 1
        return [*(sum(len(text) + 1 for text in lines[:first]) for first in firsts), len(region)]


_TABLE = tomllib.loads((resources.files(__package__) / "edit_formats.toml").read_text(encoding="utf-8"))
_ROWS = Converter(forbid_extra_keys=True).structure(_TABLE["format"], list[EditFormat])
EDIT_FORMATS = {form.name: form for form in _ROWS}
"""By name, in the order in which they are tried."""


def edit_format_of(spec: ModelSpec) -> EditFormat | None:
    """The format of an edit model, by the name of its file or in it; None for a model of another kind."""
    simple = re.sub(r"[\s_/@]+", "-", f"{spec.name} {dict(spec.metadata).get('general.name', '')}".lower())
    pairs = ((form, name) for form in EDIT_FORMATS.values() for name in form.names)
    return next((form for form, name in pairs if re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", simple)), None)


class _Window:
    """The lines of a document around the cursor, with LF line ends and without a byte order mark."""

    def __init__(self, form: EditFormat, lines: LineIndex, offset: int) -> None:
        num_marks = len(_BOM) if lines.text.startswith(_BOM) else 0
        self.line = lines.line_at(offset)
        self._texts = _LINE.findall(LINE_END.sub("\n", lines.text[num_marks:]))
        if self.line == len(self._texts):  # the cursor is behind the last line end
            self._texts.append("")
        if form.editable_tokens:
            size = form.editable_tokens - self._cost(self.line)
            self.rows = self._grown(range(self.line, self.line + 1), size)
        else:
            self.rows = self._around(form.lines_above, form.lines_below)
        """Numbers of the lines to rewrite."""
        context = self._around(form.context_lines_around, form.context_lines_around)
        context = range(min(context.start, self.rows.start), max(context.stop, self.rows.stop))
        context = self._grown(context, form.context_tokens)
        self.is_file_start = context.start == 0
        self.before = self._text(range(context.start, self.rows.start))
        text = self._text(self.rows)
        self.region = text.removesuffix("\n") if self._texts[self.rows[-1]] else text
        """The lines to rewrite without the last line end."""
        self.after = self._text(range(self.rows.start, context.stop))[len(self.region) :]
        if context.stop < len(self._texts):
            self.after = self.after.removesuffix("\n")
        self.start, self.end = max(num_marks, lines.span(self.rows[0])[0]), lines.span(self.rows[-1])[1]
        """Offsets of the lines to rewrite in the document."""
        line_start, line_end = lines.span(self.line)
        column = max(0, min(offset, line_end) - max(line_start, num_marks))
        self.cursor = len(self._text(range(self.rows.start, self.line))) + column
        """Offset of the cursor in the lines to rewrite."""

    def around(self, num: int) -> str:
        """Whole lines on each side of the cursor's."""
        return self._text(self._around(num, num))

    def _text(self, rows: range) -> str:
        return "".join(self._texts[rows.start : rows.stop])

    def _around(self, above: int, below: int) -> range:
        return range(max(0, self.line - above), min(len(self._texts), self.line + below + 1))

    def _cost(self, row: int) -> int:
        return max(1, len(self._texts[row].removesuffix("\n").encode()) // BYTES_PER_TOKEN)

    def _grown(self, rows: range, num_tokens: int) -> range:
        """The lines, and as many below and above them, in turns, as have so many tokens."""
        start, stop = rows.start, rows.stop
        has_grown = True
        while has_grown:
            has_grown = False
            for row in (stop, start - 1):
                if 0 <= row < len(self._texts) and self._cost(row) <= num_tokens:
                    num_tokens -= self._cost(row)
                    start, stop = min(start, row), max(stop, row + 1)
                    has_grown = True
        return range(start, stop)


def edit_prompt(
    form: EditFormat,
    lines: LineIndex,
    offset: int,
    edits: Sequence[Edit],
    path: str,
    files: Sequence[Snippet] = (),
    context_size: int = 0,
) -> "EditPrompt":
    """The prompt at a cursor after the last edits, the newest of which comes first.

    Other files, and then the oldest edits, are left out where the prompt would be longer than the model allows, or with
    the longest answer longer than `context_size` tokens; 0 is no limit.

    Raises:
        RequestError: the code contains a mark of the format.
    """
    window = _Window(form, lines, offset)
    prefill = _prefill(window, edits) if form.has_prefill else ""
    fields: dict[str, Any] = {
        "path": path,
        "before": window.before,
        "after": window.after,
        "file_around": window.around(form.lines_around),
        "original": _undone(window, edits),
        "prefill": prefill,
    }
    shown_edits = [_edit_fields(edit) for edit in edits[: form.num_edits]]
    shown_files = [
        {"path": chunk.path, "code": chunk.text.rstrip("\n")}
        for chunk in files
        if not form.mark_in(f"{chunk.path}\n{chunk.text}")
    ]
    shown = [window.region, *fields.values(), *(str(text) for edit in shown_edits for text in edit.values())]
    if mark := form.mark_in("\n".join(shown)):
        raise RequestError(f"the code contains {mark.strip()}, which {form.name} uses as a mark: edit elsewhere")
    fields |= {
        "region": _marked(form, window.region, window.cursor),
        "first": window.rows.start + 1,
        "last": window.rows.stop,
        "is_file_start": window.is_file_start,
    }
    num_tokens = len(window.region.removeprefix(prefill).encode()) // BYTES_PER_TOKEN
    max_tokens = GROWTH * num_tokens + SPARE_TOKENS
    limit = min(form.max_prompt_tokens, context_size - max_tokens) if context_size else form.max_prompt_tokens
    template = _template(form.prompt)
    text = template.render(fields, edits=shown_edits, files=shown_files)
    while len(text.encode()) > limit * BYTES_PER_TOKEN and (shown_files or shown_edits):
        (shown_files or shown_edits).pop()
        text = template.render(fields, edits=shown_edits, files=shown_files)
    if len(text.encode()) > limit * BYTES_PER_TOKEN and form.lines_around:
        smaller = replace(form, lines_around=form.lines_around // 2)
        return edit_prompt(smaller, lines, offset, edits, path, files, context_size)
    return EditPrompt(form, text, window.start, window.end, window.region, prefill, max_tokens)


@cache
def _template(source: str) -> Any:
    from jinja2 import Environment  # as late as possible, because most models need none

    return Environment(keep_trailing_newline=True).from_string(source)


def _edit_fields(edit: Edit) -> dict[str, Any]:
    """An edit as a unified diff, and as the old and the new text."""
    before, after = _lines(edit.before), _lines(edit.after)
    old = [*before, *_lines(edit.old), *after]
    new = [*before, *_lines(edit.new), *after]
    first = max(0, edit.line - len(before))
    return {
        "diff": "".join(_unified_diff(old, new, first)),
        "old": "\n".join(old),
        "new": "\n".join(new),
        "first": first + 1,
        "last": first + len(new),
        "is_accepted": edit.is_accepted,
    }


def _unified_diff(old: Sequence[str], new: Sequence[str], first: int) -> Iterator[str]:
    """The hunks of a diff of texts that begin at a line."""
    for hunk in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(LINES_AROUND):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = hunk[0], hunk[-1]
        yield f"@@ -{first + old_start + 1},{old_end - old_start} +{first + new_start + 1},{new_end - new_start} @@\n"
        for kind, i, j, k, m in hunk:
            if kind == "equal":
                yield from (f" {line}\n" for line in old[i:j])
            else:
                yield from (f"-{line}\n" for line in old[i:j])
                yield from (f"+{line}\n" for line in new[k:m])


def _lines(text: str) -> list[str]:
    """The lines of a text of whole lines."""
    lines = LINE_END.split(text)
    return lines if lines[-1] else lines[:-1]


def _undone(window: _Window, edits: Sequence[Edit]) -> str:
    """The lines to rewrite as they were before the newest edit, if it is in them."""
    texts = window.region.split("\n")
    for edit in edits[:1]:
        first = edit.line - window.rows.start
        new = _lines(edit.new)
        if first >= 0 and texts[first : first + len(new)] == new:
            texts[first : first + len(new)] = _lines(edit.old)
    return "\n".join(texts)


def _prefill(window: _Window, edits: Sequence[Edit]) -> str:
    """The lines above the cursor's; after an insertion above it only the first one, with the blank lines after it."""
    above = window.region[: window.region.rfind("\n", 0, window.cursor) + 1]
    if not any(edit.line < window.line and len(edit.new) > len(edit.old) for edit in edits[:1]):
        return above
    first, line_end, rest = above.partition("\n")
    return first + line_end + "\n" * (len(rest) - len(rest.lstrip("\n")))


def _marked(form: EditFormat, region: str, cursor: int) -> str:
    """The lines to rewrite with the cursor and the markers of the blocks."""
    if not form.marker:
        return region[:cursor] + form.cursor + region[cursor:]
    starts = form.block_starts(region)
    pieces = list[str]()
    for number, (start, end) in enumerate(pairwise(starts), start=1):
        at = max(start, cursor) if cursor <= end else end
        mark = form.cursor if (start < cursor or not start) and cursor <= end else ""
        pieces += [form.marker.format(number=number), region[start:at], mark, region[at:end]]
    return "".join([*pieces, form.marker.format(number=len(starts))])


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """A prompt, and the lines that its answer rewrites."""

    form: EditFormat
    text: str
    start: int
    end: int  # offsets of the lines to rewrite in the document, without the last line end
    region: str  # these lines with LF line ends
    prefill: str  # the beginning of the answer, which is a part of the prompt
    max_tokens: int  # longest answer

    def edited_region(self, answer: str, *, unfinished: int = 0) -> str | None:
        """The rewritten lines with LF line ends; None where nothing changes or the answer cannot be read.

        An answer is read up to where it joins the unchanged lines again. One that is not finished has to join as many
        of them as `unfinished`.
        """
        form = self.form
        is_finished = not unfinished
        text = self.prefill + LINE_END.sub("\n", answer)
        text = text.replace(form.cursor, "") if form.cursor else text
        text = text.split(form.opening, 1)[-1] if form.opening else text
        for stop in form.stops:
            text, has_stop, _ = text.partition(stop)
            is_finished = is_finished or bool(has_stop)
        if text.strip() == self.prefill.strip():  # the model wrote nothing
            return None
        start, end = 0, len(self.region)
        if form.marker:
            span = self._marked_span(text, is_finished=is_finished)
            if span is None:
                return None
            start, end, text = span
        if form.mark_in(text) or (form.no_edit and text.strip() == form.no_edit):
            return None
        old = self.region[start:end]
        if end == len(self.region) and is_finished:
            text = text.rstrip("\n") + "\n" * (len(old) - len(old.rstrip("\n")))
        joined = _joined(old.split("\n"), text.split("\n"), 0 if is_finished else unfinished)
        if joined is None or not "".join(joined).strip():
            return None
        new = self.region[:start] + "\n".join(joined) + self.region[end:]
        return None if new == self.region else new

    def _marked_span(self, text: str, *, is_finished: bool) -> tuple[int, int, str] | None:
        """What an answer replaces, and by which text; None where it names no markers, or the same one twice."""
        number = re.escape(self.form.marker).replace(re.escape("{number}"), r"(\d+)")
        markers = list(re.finditer(number, text))
        starts = self.form.block_starts(self.region)
        if len(markers) < 1 + is_finished or text[: markers[0].start()].strip():
            return None
        numbers = [int(marker[1]) for marker in markers]
        first, last = numbers[0], numbers[-1] if is_finished else len(starts)
        if not 1 <= first < last <= len(starts) or numbers != sorted(numbers):
            return None
        end = markers[-1].start() if is_finished else len(text)
        return starts[first - 1], starts[last - 1], re.sub(number, "", text[markers[0].end() : end])


def _joined(old: Sequence[str], new: Sequence[str], unfinished: int) -> Sequence[str] | None:
    """The new lines up to where they join the old ones again, and the rest of the old ones.

    None where an unfinished answer does not join them.
    """
    if unfinished:
        new = new[:-1]  # its last line may go on
    for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        is_after_change = old[: block.a] != new[: block.b]
        if is_after_change and block.size >= (unfinished or JOINED_LINES):
            return [*new[: block.b + block.size], *old[block.a + block.size :]]
    return None if unfinished else new
