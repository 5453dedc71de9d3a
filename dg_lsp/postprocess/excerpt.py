"""The part of a file around a gap that is parsed: from definition to definition, in blocks that are opened and closed.

A text that begins inside a class gets the header of one, and blocks that end below it are closed: grammars recover from
errors in many ways, and only a valid text shows what a fill breaks.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Self

from dg_lsp.context.document import depth_of
from dg_lsp.context.languages import Language
from dg_lsp.postprocess.brackets import CLOSER_OF, CLOSERS, OPENERS, Balance, balance, without_long_strings

REACH = 4000  # most characters parsed on each side of the cursor; a nearer landmark (`def`, `class`) cuts earlier
_HEADER = re.compile(r"\s*(?:@|#\[|\[|template\b)")  # begins a definition on the line above its landmark
_TYPE_END = re.compile(r"[\w*&>]$")  # of a return type on a line of its own
_FLAT_END = re.compile(r"^(?:[^\s#][^\n]*\n+(?=\})|#[^\n]*\n{2,}(?=\}(?!;)))", re.MULTILINE)
"""Before the end of a block without indentation: a namespace."""
_BOUNDARY = re.compile(r"\n(?:(?<=\A\n)|(?<=[;}\n]\n))\n*(?=(?P<indentation> *)[^\s)\]}])")  # between two statements
_FILE_END = re.compile(r"(?:[\s)\]};,]|\b(?:end|fi|done|esac)\b)*")  # behind a cursor that stands at the end of a file


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a file with a gap, in the model's style."""

    above: str  # whole lines, with their ends
    line_prefix: str
    line_rest: str
    below: str  # from the end of the cursor's line
    language: Language
    head: str = ""  # opens blocks around `above`; not in the file
    tail: str = ""  # closes blocks that the file closes behind `below`
    is_cut: bool = False  # the file has text above `above`
    is_whole: bool = True  # its blocks begin and end in it
    following: str = ""  # the text of which `below` is the beginning
    head_closer: str = ""  # closes what `head` opens
    depth: int = 0  # columns of indentation of its first line
    num_open: int = 0  # characters before the gap from the start of the string or line on in which it is
    is_following_cut: bool = False  # the file has more text than `following`
    is_file_end: bool = False  # only ends of blocks follow the gap: others may stay open in an unfinished file

    @classmethod
    def of(cls, before: str, after: str, language: Language) -> Self | None:
        """The text from the last landmark above to the second one below, or about `REACH` characters each way.

        None if the language has no landmarks, or if none is near: the text could begin inside a string.
        """
        landmark = language.landmark
        if landmark is None:
            return None
        is_cut = len(before) > REACH
        start = before.find("\n", len(before) - REACH) + 1 if is_cut else 0
        line_start = before.rfind("\n") + 1
        above = before[min(start, line_start) : line_start]
        line_prefix = before[line_start:]
        line_rest, line_end, below = after[:REACH].partition("\n")
        landmarks, num_read = _landmarks(above + line_prefix, is_cut, language)
        if is_cut and not landmarks:
            above = before[before.find("\n") + 1 : line_start]
            landmarks, num_read = _landmarks(above + line_prefix, is_cut, language)
            landmarks = landmarks[-1:]
        if is_cut and not landmarks:
            return None
        # from the last landmark without indentation on, or from a method if the class is cut off
        at_margin = [match for match in landmarks if not match["indentation"]]
        is_known = True
        container = ("", "")
        first = at_margin[-1] if at_margin else None
        if is_cut and first is None:
            first = landmarks[0]
            is_known = False
            if not language.checks_broken and (inner := _innermost(landmarks, above, line_prefix)):
                first = inner
                is_known = True
                container = _container(inner, language)
        above = above[_start_of(above, first.start(), language) :] if first else above
        if language.has_macros and (ended := list(_FLAT_END.finditer(above))):
            above = above[ended[-1].end() :].partition("\n")[2]
        return cls(
            above,
            line_prefix,
            line_rest,
            "",
            language,
            head=container[0] and container[0] + "\n",
            is_cut=is_cut or bool(first and first.start() > 0),
            is_whole=is_known,
            following=line_end + below,
            head_closer=container[1],
            depth=len(first["indentation"]) if first else 0,
            num_open=max(len(line_prefix), min(num_read, len(above) + len(line_prefix))),
            is_following_cut=len(after) > REACH,
            is_file_end=not language.checks_broken and len(after) <= REACH and bool(_FILE_END.fullmatch(after)),
        )

    def with_fill(self, fill: str) -> "Excerpt":
        """The excerpt with `below` and `tail` for a fill, which may open or end a block, a string or a comment."""
        return _ended(self, fill)

    @property
    def before(self) -> str:
        """The text before the gap."""
        return self.head + self.above + self.line_prefix

    def text(self, fill: str) -> str:
        """The text that is parsed, with `fill` in the gap."""
        return self.before + fill + self.after(fill)

    def after(self, fill: str) -> str:
        """The text behind the gap, with `fill` in it; an unfinished file gets the brackets it lacks."""
        after = self.line_rest + self.below + self.tail
        if not self.is_file_end:
            return after
        before = self.before
        left = balance(before + fill + after, self.language)
        opened = zip(left.closers, left.openings, strict=True)
        closers = "\n".join(closer for closer, at in opened if at < len(before))
        return after + (closers and f"\n{_last_element(fill + after, closers, self.language)}{closers}\n")

    def unclosed(self, fill: str) -> str:
        """What closes the blocks above the gap that the file does not: the line below is no deeper than their headers.

        Brackets at the end of a file are not among them: `after` has those.
        """
        if self.language.checks_broken:
            return ""
        before = self.above + self.line_prefix
        depth = None if (self.line_prefix + fill).strip() else depth_of(self.line_prefix)
        closers_by_depth = list(_word_closers((before + fill + self.line_rest).split("\n"), self.language, depth))
        if not self.is_file_end:
            left = balance(before + fill, self.language)
            for at in left.openings:
                header = before[before.rfind("\n", 0, at) + 1 :].partition("\n")[0]
                if at < len(before) and header.rstrip().endswith(OPENERS):
                    closers_by_depth.append((depth_of(header), CLOSER_OF[before[at]]))
        below = next((line for line in self.following.split("\n") if line.strip()), "")
        is_end = self.language.block_end is not None and self.language.block_end.match(below)
        least = depth_of(below) + bool(is_end)  # that line closes the block of its own depth
        closers_by_depth.sort(key=itemgetter(0), reverse=True)
        closers = "".join(f"\n{closer}" for depth, closer in closers_by_depth if depth >= least)
        separator = "," if self.language.last_elements else ";" if closers.endswith(")") else ""
        return closers and closers + separator * (not is_end)

    def without_line(self) -> Self:
        """The excerpt with a gap in place of the cursor's line."""
        return replace(self, line_prefix="", line_rest="")


@lru_cache(maxsize=8)  # a judgement needs the same ones several times
def _ended(excerpt: Excerpt, fill: str) -> Excerpt:
    language = excerpt.language
    line_rest = excerpt.line_rest
    before = excerpt.above + excerpt.line_prefix + fill
    start = len(before) - len(fill) - excerpt.num_open
    code, num_known = without_long_strings(before[start:] + line_rest + excerpt.following, language)
    num_read = len(before) - start + len(line_rest)
    # a string or comment below the gap whose end is not near is left out
    code = code[num_read : num_known if excerpt.is_following_cut and num_known > num_read else None]
    left = balance(before, language)
    last = (before + line_rest)[before.rfind("\n") + 1 :] if language.has_macros else ""
    end = _end(code, excerpt.depth, language, last_line=last, is_cut=excerpt.is_following_cut)
    code = code[: end.at]
    below = excerpt.following[: end.at]
    closers = excerpt.head_closer
    if end.is_cut and left.quote:  # what a fill inside of a string contains closes nothing
        closers = "\n".join(balance(before + line_rest + below, language).closers) + closers
    elif end.is_cut:
        # a string or comment that begins above the gap is no code; strings below it have brackets behind them
        num_open = len(code) - len(code.lstrip("\f\n"))
        brackets = balance(line_rest + code[:num_open] + below[num_open:], language)
        closers = _closers(left, brackets, before, line_rest + code, end.depth, language) + closers
    if closers:
        closers = _last_element(below, closers, language) + closers
    tail = closers and f"\n{closers}\n"
    is_whole = excerpt.is_whole and end.is_known
    is_following_cut = end.at < len(excerpt.following) or excerpt.is_following_cut
    return replace(excerpt, below=below, tail=tail, is_whole=is_whole, is_following_cut=is_following_cut)


def _landmarks(text: str, is_cut: bool, language: Language) -> tuple[list[re.Match[str]], int]:
    """The landmarks outside of strings and comments; the length of the string or comment in which the text ends."""
    assert language.landmark is not None
    first = language.landmark.search(text) if is_cut else None
    start = first.start() if first else 0  # the text before may begin inside of a string
    code, unfinished = without_long_strings(text[start:], language)
    return list(language.landmark.finditer(text[:start] + code, start)), len(code) - unfinished


def _innermost(landmarks: list[re.Match[str]], above: str, line_prefix: str) -> re.Match[str] | None:
    """The last of the least indented landmarks that no line up to the cursor is less deep than.

    For classes whose beginning is cut off: the text begins with the method that the cursor is in.
    """
    landmark_at = {match.start(): match for match in landmarks}
    best = None
    end = len(above)
    least = depth_of(line_prefix) if line_prefix.strip() else len(above)
    while end > 0:
        start = above.rfind("\n", 0, end - 1) + 1
        line = above[start : end - 1]
        if line.strip():
            least = min(least, depth_of(line))
            match = landmark_at.get(start)
            if match and depth_of(line) <= least and (best is None or depth_of(line) < len(best["indentation"])):
                best = match
        end = start
    return best


def _container(landmark: re.Match[str], language: Language) -> tuple[str, str]:
    """A text that opens what the landmark stands in, and one that closes it."""
    groups = landmark.groupdict()
    return next(((start, end) for kind, start, end in language.containers if groups[kind] is not None), ("", ""))


@dataclass(frozen=True, slots=True)
class _End:
    """Where the parsed text ends, and how deep the lines are between which it ends."""

    at: int
    depth: int
    is_cut: bool = True  # the file goes on
    is_known: bool = True  # a definition ends there


@lru_cache(maxsize=4)  # most fills of a gap leave the text below as it is
def _end(below: str, depth: int, language: Language, *, last_line: str, is_cut: bool) -> _End:
    """The end of a text of this depth: its block's, behind its second definition, or at the last one that is near.

    `below` begins behind `last_line`, where macros may stand anywhere.
    """
    assert language.landmark is not None
    if depth:
        at = 0
        for line in below.splitlines(keepends=True):
            if line.strip() and depth_of(line) < depth:
                return _End(at, depth)
            at += len(line)
    else:
        ended = _FLAT_END.search(last_line + below) if language.has_macros else None
        block_end = [ended.end() - len(last_line)] if ended else []
        margins = (match.start() for match in language.landmark.finditer(below) if not match["indentation"])
        at_margin = list(islice(margins, 1, 2))  # decorators need the first one
        if ends := [*block_end, *at_margin]:
            return _End(_start_of(below, min(ends), language), 0)
    if not is_cut:
        return _End(len(below), depth, is_cut=False)
    deep_enough = [match for match in language.landmark.finditer(below) if len(match["indentation"]) >= depth]
    if len(deep_enough) > 1:  # see above
        return _End(_start_of(below, deep_enough[-1].start(), language), len(deep_enough[-1]["indentation"]))
    # the first line end is that of the cursor's line, which may be unfinished
    between = [match for match in _BOUNDARY.finditer(below) if match.start() and len(match["indentation"]) >= depth]
    if between:
        return _End(between[-1].end(), len(between[-1]["indentation"]))
    return _End(below.rfind("\n") + 1, depth, is_known=False)


def _start_of(text: str, at: int, language: Language) -> int:
    """Where the decorators, attributes and return type begin that precede a landmark at offset `at`."""
    while at:
        start = text.rfind("\n", 0, at - 1) + 1
        line = text[start : at - 1]
        if not (_HEADER.match(line) or (language.has_macros and _TYPE_END.search(line))):
            break
        at = start
    return at


def _closers(left: Balance, brackets: Balance, above: str, below: str, depth: int, language: Language) -> str:
    """What closes the blocks around a line of this depth behind `below`.

    They were opened below the gap (`brackets`) or above it (`left`).
    """
    # a line below the gap that is less deep than its content ends a block above the gap
    least = min([depth, *map(depth_of, _indented(below.split("\n")[1:], language))])
    closers_by_depth = [
        (depth_of(header), closer)
        for text, opened, limit in ((below, brackets, depth), (above, left, least))
        for closer, header, content in _open_blocks(text, opened, below, language)
        if depth_of(header) < limit or (content and depth_of(content) <= limit)
    ]
    closers_by_depth += _word_closers((above + below).split("\n"), language, depth)
    closers_by_depth.sort(key=itemgetter(0), reverse=True)
    return "\n".join(closer for _, closer in closers_by_depth if closer)


def _word_closers(lines: Sequence[str], language: Language, depth: int | None = None) -> Iterator[tuple[int, str]]:
    """The words that close the blocks around a line of this depth behind `lines`, or around the last line."""
    least = depth
    for line in reversed(lines if language.block_closes else ()):
        if line.strip() and least is None:
            least = depth_of(line)
        elif line.strip() and least is not None and depth_of(line) < least:
            least = depth_of(line)
            closer = next((closer for opener, closer in language.block_closes if re.match(opener, line.strip())), "")
            yield least, closer


def _indented(lines: Iterable[str], language: Language) -> Iterator[str]:
    """The lines whose indentation has a meaning: not the blank ones, and no directives of a preprocessor."""
    return (line for line in lines if line.strip() and not (language.has_macros and line.startswith("#")))


def _open_blocks(text: str, left: Balance, following: str, language: Language) -> Iterator[tuple[str, str, str]]:
    """For each open bracket what closes it, its line, and the first line of its content if it ends its own line."""
    for closer, at in zip(left.closers, left.openings, strict=True):
        rest, _, behind = text[at + 1 :].partition("\n")
        lines = _indented((*behind.split("\n"), *following.split("\n")[1:]), language)
        content = next(lines, "") if not rest.strip() else ""
        is_closed = content.lstrip().startswith(CLOSERS)
        yield closer, text[text.rfind("\n", 0, at) + 1 :], "" if is_closed else content


def _last_element(below: str, closers: str, language: Language) -> str:
    """An element behind the last comma, where the language needs one."""
    if not below.rstrip().endswith(","):
        return ""
    return next((text for closer, text in language.last_elements if closer == closers[0]), "")
