"""The last edits of a document, as a person would count them: typing a word is one edit, and undoing it is none.

An edit is a range of the current text and the text that was there before. Nothing is stored on a disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_EDITS = 12
MAX_SECONDS = 900.0
"""An edit that is older is forgotten."""
MAX_CHARS = 4000
"""A change of more characters, such as a reload, a paste of a file or a format, forgets all edits."""
_LINES_AROUND = 2


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit of whole lines, with the lines around it; the text after it is that of the document now."""

    line: int  # 0-based number of its first line
    before: str
    old: str
    new: str
    after: str


@dataclass(frozen=True, slots=True)
class _Region:
    """A changed range of the text."""

    start: int
    end: int
    old: str
    seconds: float  # time of its last change

    def moved(self, num: int) -> "_Region":
        return replace(self, start=self.start + num, end=self.end + num)


class EditHistory:
    """The edits of one document, newest last."""

    def __init__(self) -> None:
        self._regions: list[_Region] = []

    def change(self, text: str, start: int, end: int, new: str, seconds: float) -> None:
        """`[start, end)` of the text becomes `new`, at a time in seconds.

        A change that touches an edit, or is in one of its lines, continues it.
        """
        if end - start > MAX_CHARS or len(new) > MAX_CHARS:
            self._regions.clear()
            return
        growth = len(new) - (end - start)
        first, last = start, end
        joined = list[_Region]()
        for region in sorted(self._regions, key=lambda region: abs(region.start - start)):
            if _is_near(text, region, first, last):
                joined.append(region)
                first, last = min(first, region.start), max(last, region.end)
        old = _original(text, first, last, joined)
        kept = [region for region in self._regions if region not in joined]
        moved = [region.moved(growth) if region.start >= end else region for region in kept]
        new_text = text[:start] + new + text[end:]
        if new_text[first : last + growth] != old:
            moved.append(_Region(first, last + growth, old, seconds))
        self._regions = [region for region in moved if seconds - region.seconds <= MAX_SECONDS][-MAX_EDITS:]

    def edits(self, text: str) -> list[Edit]:
        """The edits as whole lines of the current text, newest first."""
        return [_edit(text, region) for region in reversed(self._regions)]


def _is_near(text: str, region: _Region, start: int, end: int) -> bool:
    """Whether no line end is between a region and a range of the text."""
    if region.end < start:
        return "\n" not in text[region.end : start]
    return region.start <= end or "\n" not in text[end : region.start]


def _original(text: str, start: int, end: int, regions: Sequence[_Region]) -> str:
    """A range of the text as it was before the regions in it changed."""
    pieces = list[str]()
    for region in sorted(regions, key=lambda region: region.start):
        pieces += [text[start : region.start], region.old]
        start = region.end
    return "".join([*pieces, text[start:end]])


def _edit(text: str, region: _Region) -> Edit:
    start = text.rfind("\n", 0, region.start) + 1
    line_end = text.find("\n", region.end)
    end = len(text) if line_end < 0 else line_end + 1
    head, tail = text[start : region.start], text[region.end : end]
    return Edit(
        line=text.count("\n", 0, start),
        before="".join(text[:start].splitlines(keepends=True)[-_LINES_AROUND:]),
        old=head + region.old + tail,
        new=text[start:end],
        after="".join(_first_lines(text[end:])),
    )


def _first_lines(text: str) -> Sequence[str]:
    return text[: _end_of_lines(text)].splitlines(keepends=True)


def _end_of_lines(text: str) -> int:
    end = 0
    for _ in range(_LINES_AROUND):
        end = text.find("\n", end) + 1
        if not end:
            return len(text)
    return end
