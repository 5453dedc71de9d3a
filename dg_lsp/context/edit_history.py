"""The last edits of a document, as a person would count them: typing a word is one edit, and undoing it is none.

An edit is a range of the current text and the text that was there before. Nothing is stored on a disk.
"""

from dataclasses import dataclass, replace
from enum import Enum, auto

from dg_lsp.context.document import LineIndex

MAX_EDITS = 12
MAX_SECONDS = 900.0  # age of an edit
MAX_CHARS = 4000
"""Of an edit, before and after it. A change of more characters, such as a reload, forgets all edits."""
LINES_AROUND = 3
"""Lines before and after an edit that belong to it: those of a unified diff, which edit models were trained on."""


class Author(Enum):
    """What made a change."""

    USER = auto()
    ASSISTANT = auto()  # the user accepted a completion or an edit
    PROGRAM = auto()  # a formatter, a reload, a refactoring


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of whole lines, with the lines around it; the text after it is that of the document now."""

    line: int  # 0-based number of its first line
    before: str
    old: str
    new: str
    after: str
    is_accepted: bool = False  # the last part of it was proposed by dg-lsp


@dataclass(frozen=True, slots=True)
class _Region:
    """A changed range of the text."""

    start: int
    end: int
    old: str
    seconds: float  # time of its last change
    is_accepted: bool

    def is_kept(self, seconds: float) -> bool:
        """Whether it is neither too old nor too large at a time."""
        size = max(len(self.old), self.end - self.start)
        return seconds - self.seconds <= MAX_SECONDS and size <= MAX_CHARS


class EditHistory:
    """The edits of one document, newest last."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def change(
        self, lines: LineIndex, start: int, end: int, new: str, seconds: float, author: Author = Author.USER
    ) -> list[Edit]:
        """`[start, end)` of the text becomes `new`, at a time in seconds; returns the edits that are undone by it.

        A change that touches an edit, or is in one of its lines, continues it. A program makes no edits: where it
        changes more than blanks, it ends those that it touches.
        """
        text = lines.text
        if max(end - start, len(new)) > MAX_CHARS:
            self._regions.clear()
            return []
        growth = len(new) - (end - start)
        first, last = start, end
        joined = list[_Region]()
        for region in sorted(self._regions, key=lambda region: abs(region.start - start)):
            if "\n" not in text[region.end : first] + text[last : region.start]:
                joined.append(region)
                first, last = min(first, region.start), max(last, region.end)
        old = text[first:last]
        for region in sorted(joined, key=lambda region: -region.start):
            old = old[: region.start - first] + region.old + old[region.end - first :]
        regions = [
            replace(region, start=region.start + growth, end=region.end + growth) if region.start >= end else region
            for region in self._regions
            if region not in joined
        ]
        is_reflow = bool(joined) and "".join(text[start:end].split()) == "".join(new.split())
        is_undone = text[first:start] + new + text[end:last] == old
        if not is_undone and (author is not Author.PROGRAM or is_reflow):
            regions.append(_Region(first, last + growth, old, seconds, author is Author.ASSISTANT))
        self._regions = [region for region in regions if region.is_kept(seconds)][-MAX_EDITS:]
        return [_edit(lines, region) for region in joined] if is_undone else []

    def edits(self, lines: LineIndex, seconds: float) -> list[Edit]:
        """The edits as whole lines of the current text, newest first."""
        return [_edit(lines, region) for region in reversed(self._regions) if region.is_kept(seconds)]


def _edit(lines: LineIndex, region: _Region) -> Edit:
    text = lines.text
    first = lines.line_at(region.start)
    behind = lines.line_at(region.end) + 1
    start = _line_start(lines, first)
    end = _line_start(lines, behind)
    return Edit(
        line=first,
        before=text[_line_start(lines, max(0, first - LINES_AROUND)) : start],
        old=text[start : region.start] + region.old + text[region.end : end],
        new=text[start:end],
        after=text[end : _line_start(lines, behind + LINES_AROUND)],
        is_accepted=region.is_accepted,
    )


def _line_start(lines: LineIndex, line: int) -> int:
    """Offset of a line's start; the text's end for a line beyond it."""
    return int(lines.starts[line]) if line < lines.num_lines else len(lines.text)
