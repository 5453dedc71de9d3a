"""Prompts of edit models, which rewrite the lines around the cursor after the user's last edits, and their answers.

`edit_formats.toml` has the formats. A text that spells a mark of a format is refused: the answer could not be read.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from importlib import resources
from itertools import pairwise
from typing import Any

from dg_lsp.context.document import LINE_END, LineIndex
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.snippets import Snippet
from dg_lsp.errors import RequestError

BYTES_PER_TOKEN = 3
"""A low estimate, so that a prompt is never longer than its model allows."""
GROWTH = 2
SPARE_TOKENS = 128
"""The longest answer has `GROWTH` times the tokens of the lines to rewrite, and these."""
CONTEXT_LINES = 3
"""Most unchanged lines between two changes in one hunk of a diff, and around them."""
JOINED_LINES = 8
"""An answer that has repeated as many unchanged lines after a change has made its edit: the rest is not read."""
UNFINISHED_JOINED_LINES = 2
"""The same for an answer that was broken off."""
_BOM = "\ufeff"
_NO_START = re.compile(r"[\]})]|(?:break|continue|return|throw|end);*$")
"""Lines that begin no block of `block_lines`."""
_MAX_NUDGE = 5
"""Lines in which a better beginning of such a block is searched."""


@dataclass(frozen=True, slots=True)
class EditFormat:
    """A `[[format]]` row: models with the same prompt and the same answers."""

    name: str
    names: tuple[str, ...]  # parts of a model's name, lower case with hyphens, that identify the format
    prompt: str  # with fields for the path, the last edits, and the file
    edit: str  # one edit, as a unified diff or as its old and new text
    sources: tuple[str, ...]
    stops: tuple[str, ...]  # texts that end an answer
    sentinels: tuple[str, ...]  # further marks; one that ends with a line end is a mark only as a whole line
    num_edits: int
    max_prompt_tokens: int
    edits: str = "{items}"
    separator: str = ""  # between two edits
    is_newest_first: bool = False
    accepted: str = ""  # before an edit that the model proposed and the user accepted
    file: str = ""  # code of another file; empty: none is shown
    files: str = "{items}"
    file_start: str = ""  # before the first line of the file
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
        contained = (mark for mark in self.marks if (f"\n{mark}" if mark.endswith("\n") else mark) in whole)
        return next(contained, "")


def _format(entry: dict[str, Any]) -> EditFormat:
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return EditFormat(**fields)


_TABLE = tomllib.loads((resources.files(__package__) / "edit_formats.toml").read_text(encoding="utf-8"))
EDIT_FORMATS = {entry["name"]: _format(entry) for entry in _TABLE["format"]}
"""By name, in the order in which they are tried."""


def edit_format_of(model: str) -> EditFormat | None:
    """The format of the edit model with this name; None for a model of another kind."""
    simple = re.sub(r"[\s_/@]+", "-", model.lower())
    for form in EDIT_FORMATS.values():
        if any(re.search(rf"(?<![a-z]){re.escape(name)}(?![a-z])", simple) for name in form.names):
            return form
    return None


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """A prompt, and the lines that its answer rewrites."""

    text: str
    start: int
    end: int  # offsets of the lines to rewrite in the document, without the last line end
    region: str  # these lines with LF line ends
    prefill: str  # the beginning of the answer, which is a part of the prompt
    max_tokens: int  # longest answer


class _Window:
    """The lines of a document around the cursor, with LF line ends and without a byte order mark."""

    def __init__(self, form: EditFormat, lines: LineIndex, offset: int) -> None:
        self._lines = lines
        self._num_marks = len(_BOM) if lines.text.startswith(_BOM) else 0
        self.line = lines.line_at(offset)
        self._texts = LINE_END.split(lines.text[self._num_marks :])
        self._last_end = ""
        if self.line < lines.num_lines - 1 and not self._texts[-1]:  # nothing follows the last line end
            self._texts.pop()
            self._last_end = "\n"
        if form.editable_tokens:
            size = form.editable_tokens - self._cost(self.line)
            self.region = self._grown(range(self.line, self.line + 1), size)
        else:
            self.region = self._around(form.lines_above, form.lines_below)
        context = self._around(form.context_lines_around, form.context_lines_around)
        context = range(min(context.start, self.region.start), max(context.stop, self.region.stop))
        self.context = self._grown(context, form.context_tokens)
        self.start, self.end = lines.span(self.region[0])[0], lines.span(self.region[-1])[1]
        """Offsets of the lines to rewrite in the document."""
        if not self.start:
            self.start = self._num_marks
        line_start, line_end = lines.span(self.line)
        column = min(offset, line_end) - max(line_start, self._num_marks)
        above = range(self.region.start, self.line)
        self.cursor = sum(len(self._texts[line]) + 1 for line in above) + max(0, column)
        """Offset of the cursor in the lines to rewrite."""

    def text(self, lines: range) -> str:
        """The text of several lines without the last line end."""
        return "\n".join(self.texts(lines))

    def texts(self, lines: range) -> list[str]:
        """Several lines."""
        return self._texts[lines.start : lines.stop]

    def around(self, num: int) -> str:
        """Whole lines on each side of the cursor's."""
        lines = self._around(num, num)
        return self.text(lines) + ("\n" if lines.stop < len(self._texts) else self._last_end)

    @property
    def before(self) -> str:
        """The lines above those to rewrite."""
        above = range(self.context.start, self.region.start)
        return self.text(above) + "\n" if above else ""

    @property
    def after(self) -> str:
        """What follows the lines to rewrite, from their line end on."""
        below = range(self.region.stop, self.context.stop)
        is_whole = self.context.stop == len(self._texts)
        return ("\n" + self.text(below) if below else "") + (self._last_end if is_whole else "")

    def _around(self, above: int, below: int) -> range:
        return range(max(0, self.line - above), min(len(self._texts), self.line + below + 1))

    def _cost(self, line: int) -> int:
        return max(1, len(self._texts[line].encode()) // BYTES_PER_TOKEN)

    def _grown(self, lines: range, num_tokens: int) -> range:
        """The lines, and as many below and above them, in turns, as have so many tokens."""
        start, stop = lines.start, lines.stop
        has_grown = True
        while has_grown:
            has_grown = False
            for line in (stop, start - 1):
                if 0 <= line < len(self._texts) and self._cost(line) <= num_tokens:
                    num_tokens -= self._cost(line)
                    start, stop = min(start, line), max(stop, line + 1)
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
) -> EditPrompt:
    """The prompt at a cursor after the last edits, the newest of which comes first.

    Other files, and then the oldest edits, are left out where the prompt would be longer than the model allows, or with
    the longest answer longer than `context_size` tokens; 0 is no limit.

    Raises:
        RequestError: the code contains a mark of the format.
    """
    window = _Window(form, lines, offset)
    region = window.text(window.region)
    original = _undone(window, edits) if "{original}" in form.prompt else region
    prefill = _prefill(region, window, edits) if form.has_prefill else ""
    fields = {
        "path": path,
        "file_start": form.file_start if window.context.start == 0 else "",
        "before": window.before,
        "after": window.after,
        "file_around": window.around(form.lines_around),
        "original": original,
        "first": str(window.region.start + 1),
        "last": str(window.region.stop),
        "prefill": prefill,
    }
    shown_edits = [_edit_fields(form, edit) for edit in edits[: form.num_edits]]
    shown_files = [
        {"path": chunk.path, "code": chunk.text.rstrip("\n")}
        for chunk in files
        if form.file and not form.mark_in(f"{chunk.path}\n{chunk.text}")
    ]
    shown = [region, *fields.values(), *(text for edit in shown_edits for text in edit.values())]
    if mark := form.mark_in("\n".join(text for text in shown if text not in (form.file_start, form.accepted))):
        raise RequestError(f"the code contains {mark.strip()}, which {form.name} uses as a mark: edit elsewhere")
    fields["region"] = _marked(form, region, window.cursor)
    fields["after_lines"] = window.after if window.after.endswith("\n") else window.after + "\n"
    fields["line_end"] = "\n" if window.after else ""
    num_tokens = len(region.removeprefix(prefill).encode()) // BYTES_PER_TOKEN
    max_tokens = GROWTH * num_tokens + SPARE_TOKENS
    limit = min(form.max_prompt_tokens, context_size - max_tokens) if context_size else form.max_prompt_tokens
    text = _filled(form, fields, shown_edits, shown_files)
    while len(text.encode()) > limit * BYTES_PER_TOKEN and (shown_files or shown_edits):
        (shown_files or shown_edits).pop()
        text = _filled(form, fields, shown_edits, shown_files)
    if len(text.encode()) > limit * BYTES_PER_TOKEN and form.lines_around:
        smaller = replace(form, lines_around=form.lines_around // 2)
        return edit_prompt(smaller, lines, offset, edits, path, files, context_size)
    return EditPrompt(text, window.start, window.end, region, prefill, max_tokens)


def _filled(
    form: EditFormat, fields: dict[str, str], edits: Sequence[dict[str, str]], files: Sequence[dict[str, str]]
) -> str:
    """The prompt with these edits, newest first, and files."""
    items = [form.edit.format(**edit, path=fields["path"]) for edit in edits]
    history = form.separator.join(items if form.is_newest_first else items[::-1])
    others = "".join(form.file.format(**file) for file in files)
    return form.prompt.format(
        **fields,
        edits=form.edits.format(items=history) if history else "",
        files=form.files.format(items=others) if others else "",
    )


def _edit_fields(form: EditFormat, edit: Edit) -> dict[str, str]:
    """An edit as a unified diff, and as the old and the new text."""
    before, after = _lines(edit.before), _lines(edit.after)
    old = [*before, *_lines(edit.old), *after]
    new = [*before, *_lines(edit.new), *after]
    first = edit.line - len(before)
    diff = "".join(_unified_diff(old, new, max(0, first)))
    return {
        "diff": diff,
        "diff_lines": diff.removesuffix("\n"),
        "old": "\n".join(old),
        "new": "\n".join(new),
        "first": str(first + 1),
        "last": str(first + len(new)),
        "accepted": form.accepted if edit.is_accepted else "",
    }


def _unified_diff(old: Sequence[str], new: Sequence[str], first: int) -> Iterator[str]:
    """The hunks of a diff of texts that begin at a line."""
    for hunk in SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES):
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
    texts = window.texts(window.region)
    if not edits:
        return "\n".join(texts)
    first = edits[0].line - window.region.start
    new = _lines(edits[0].new)
    if first >= 0 and texts[first : first + len(new)] == new:
        texts[first : first + len(new)] = _lines(edits[0].old)
    return "\n".join(texts)


def _prefill(region: str, window: _Window, edits: Sequence[Edit]) -> str:
    """The lines above the cursor's; after an insertion above it only the first one, with the blank lines after it."""
    above = region[: window.cursor]
    above = above[: above.rfind("\n") + 1]
    is_insertion = bool(edits) and len(edits[0].new) > len(edits[0].old)
    if not (is_insertion and edits[0].line < window.line):
        return above
    first, line_end, rest = above.partition("\n")
    return first + line_end + "\n" * (len(rest) - len(rest.lstrip("\n")))


def _marked(form: EditFormat, region: str, cursor: int) -> str:
    """The lines to rewrite with the cursor and the markers of the blocks."""
    if not form.marker:
        return region[:cursor] + form.cursor + region[cursor:]
    starts = _block_starts(region, *form.block_lines)
    pieces = list[str]()
    for number, (start, end) in enumerate(pairwise(starts), start=1):
        at = max(start, cursor) if cursor <= end else end
        mark = form.cursor if (start < cursor or not start) and cursor <= end else ""
        pieces += [form.marker.format(number=number), region[start:at], mark, region[at:end]]
    return "".join([*pieces, form.marker.format(number=len(starts))])


def _block_starts(region: str, least: int, most: int) -> list[int]:
    """Offsets of the blocks of the lines to rewrite, and of their end.

    A block begins after a blank line, or where the one before it has the most lines; rather not with the end of a body.
    """
    lines = region.split("\n")
    if len(lines) > 1 and not lines[-1]:
        lines.pop()
    firsts = [0]
    line = 1
    while line < len(lines):
        num = line - firsts[-1]
        target = _good_start(lines, line)
        is_after_blank = num >= least and bool(lines[line].strip()) and not lines[line - 1].strip()
        if (is_after_blank and len(lines) - target >= least) or num >= most:
            firsts.append(target)
            line = target
        line += 1
    ends = [0]
    for text in lines:
        ends.append(ends[-1] + len(text) + 1)
    return [*(ends[first] for first in firsts), len(region)]


def _good_start(lines: Sequence[str], line: int) -> int:
    following = range(line, min(len(lines), line + _MAX_NUDGE))
    good = (at for at in following if lines[at].strip() and not _NO_START.match(lines[at].strip()))
    return next(good, line)


def edited_region(form: EditFormat, prompt: EditPrompt, answer: str, *, unfinished: int = 0) -> str | None:
    """The rewritten lines with LF line ends; None where nothing changes or the answer cannot be read.

    An answer is read up to where it joins the unchanged lines again. One that is not finished has to join as many of
    them as `unfinished`.
    """
    is_finished = not unfinished
    text = prompt.prefill + LINE_END.sub("\n", answer)
    text = text.replace(form.cursor, "") if form.cursor else text
    if form.opening and form.opening in text:
        text = text.partition(form.opening)[2]
    for stop in form.stops:
        text, has_stop, _ = text.partition(stop)
        is_finished = is_finished or bool(has_stop)
    start, end = 0, len(prompt.region)
    if form.marker:
        span = _marked_span(form, prompt.region, text, is_finished=is_finished)
        if span is None:
            return None
        start, end, text = span
    if form.mark_in(text) or (form.no_edit and text.strip() == form.no_edit):
        return None
    old = prompt.region[start:end]
    if end == len(prompt.region):
        num_ends = len(old) - len(old.rstrip("\n"))
        text = text.rstrip("\n") + "\n" * num_ends if is_finished else text
    joined = _joined(old.split("\n"), text.split("\n"), 0 if is_finished else unfinished)
    if joined is None or not "".join(joined).strip():
        return None
    new = prompt.region[:start] + "\n".join(joined) + prompt.region[end:]
    return None if new == prompt.region else new


def _marked_span(form: EditFormat, region: str, text: str, *, is_finished: bool) -> tuple[int, int, str] | None:
    """What an answer replaces, and by which text; None where it names no markers, or the same one twice."""
    number = re.escape(form.marker).replace(re.escape("{number}"), r"(\d+)")
    markers = list(re.finditer(number, text))
    starts = _block_starts(region, *form.block_lines)
    if len(markers) < 1 + is_finished or text[: markers[0].start()].strip():
        return None
    numbers = [int(marker[1]) for marker in markers]
    first, last = numbers[0], numbers[-1] if is_finished else len(starts)
    if not 1 <= first < last <= len(starts) or numbers != sorted(numbers):
        return None
    ends = [*(marker.start() for marker in markers[1:]), *([] if is_finished else [len(text)])]
    pieces = [text[marker.end() : end] for marker, end in zip(markers, ends, strict=False)]
    return starts[first - 1], starts[last - 1], "".join(pieces)


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
