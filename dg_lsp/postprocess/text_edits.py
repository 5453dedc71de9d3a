"""Text edits of a fill: decode it, trim it, fix its indentation, and join it with the text around the cursor.

Works on lines, brackets and quotes, without a grammar. Texts use spaces; tabs are converted elsewhere.
"""

import codecs
import itertools
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from dg_lsp.context.document import LINE_END, TAB_WIDTH, Cursor, depth_of, first_line, is_word, num_shared
from dg_lsp.context.languages import PLAIN, Language
from dg_lsp.postprocess.brackets import CLOSERS, OPENERS, balance, without_long_strings

_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)
_LOOP = re.compile(r"(.{3,40}?)\1{4}")  # five copies of a piece
_WORD_START = re.compile(r"(?<![\w%\\])[^\W\d_]")
MIN_DISTINCTIVE = 4  # letters and digits from which a repeated line is no coincidence, unlike `)`, `else:` and `0,`
MIN_COPIED = 16  # the same for a line whose following lines differ: many methods end with `return False`
_ARGUMENT_MARK = re.compile(r",|:(?!=)|\blambda\b")  # what may end an argument, and what decides whether it does
_REFUSED_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
# replacement characters, and bidirectional controls, which make code look different from what it does
_REFUSED = "\ufffd\ufffe\uffff\ufeff\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def to_text(fill: bytes, allowed: str = "") -> str | None:
    """The text with LF line ends, or None for broken UTF-8 and for other control or bidirectional characters.

    An incomplete character at the end is dropped.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(fill, final=False)
    except UnicodeDecodeError:
        return None
    text = LINE_END.sub("\n", text)
    characters = set(text).difference("\n\t", allowed)
    is_refused = any(char in _REFUSED or unicodedata.category(char) in _REFUSED_CATEGORIES for char in characters)
    return None if is_refused else text


def cut_lines(text: str, max_lines: int | None) -> str:
    """The first `max_lines` lines, or all."""
    return text if max_lines is None else "\n".join(text.split("\n")[:max_lines])


def cut_loops(text: str, language: Language = PLAIN) -> str:
    """`text` up to the first of three equal consecutive lines; markup, if nothing else follows."""
    lines = text.split("\n")
    for i in range(len(lines) - 2):
        line = lines[i].strip()
        # the first one may lack its indentation; ends of nested blocks have less and less of it
        is_loop = lines[i + 1].strip() == line and lines[i + 1] == lines[i + 2]
        if is_loop and any(map(str.isalnum, line)):
            is_end = all(line.startswith(following.strip()) for following in lines[i + 3 :])
            return text if language.has_tags and not is_end else "\n".join(lines[: i + 1])
    return text


def is_repetitive(text: str) -> bool:
    """True if a piece of a line with a word, so no `%s, ` or `0x00, `, occurs five times in a row."""
    return any(_WORD_START.search(line, *loop.span(1)) for line in text.split("\n") for loop in _LOOP.finditer(line))


def trim_blanks(text: str, *, is_line_end: bool) -> str:
    """Removes blanks at line ends; the last line keeps them if text follows the cursor."""
    *inner, last = text.split("\n")
    joined = "\n".join([*(line.rstrip() for line in inner), last])
    return joined.rstrip() if is_line_end else joined


def drop_leading_blanks(fill: str, cursor: Cursor, language: Language = PLAIN) -> str:
    """Removes blanks at the start of a fill after a blank, a dot of code, or a bracket, unless others have a blank."""
    prefix = cursor.line_prefix
    if not prefix.strip() or not prefix.endswith((*OPENERS, ".", " ")):
        return fill
    if prefix[-1] == ".":
        is_prose = language.landmark is None or prefix.lstrip().startswith((language.comment or "\n", "*", "/*"))
        return fill if is_prose or fill[1:2].isupper() or prefix[-2:-1] in ". " else fill.lstrip(" ")
    if prefix[-1] in OPENERS and fill[:1] == " " and fill[1:2].strip():
        opener = prefix[len(prefix.rstrip("([{")) :]
        surroundings = "\n".join((*cursor.above, prefix.removesuffix(opener), cursor.line_rest, *cursor.below))
        following = re.findall(rf"(?<![(\[{{]){re.escape(opener)}([^\n(\[{{])", surroundings)
        return fill if 2 * following.count(" ") >= len(following) else fill.lstrip(" ")
    return fill.lstrip(" ")


def expand_indentation(text: str) -> str:
    """Converts leading tabs to spaces; tabs inside a line stay."""
    return _INDENTATION.sub(lambda blanks: blanks[0].expandtabs(TAB_WIDTH), text)


def skip_blank_lines(fill: str, cursor: Cursor) -> str:
    """Removes blank lines at the start if indentation was typed and the first line is not less indented."""
    width = len(cursor.line_prefix)
    if not width or cursor.line_prefix.strip():
        return fill
    lines = fill.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), 0)
    return "\n".join(lines[first:]) if depth_of(lines[first]) >= width else fill


def align(fill: str, cursor: Cursor, language: Language = PLAIN) -> str:
    """Aligns a fill with the indentation before the cursor.

    The first line may repeat that indentation or add to it: an indentation deeper than the line above allows is a
    repetition. The other lines are absolute, unless the first line opens a block and the next one is not deeper: then
    the fill was written relative to the margin.
    """
    width = len(cursor.line_prefix)
    first, *lower_lines = fill.split("\n")
    if not width or cursor.line_prefix.strip() or not first.strip():
        return fill
    depth = depth_of(first)
    deepest = _deepest(cursor.line_above, width, language)
    extra = next((extra for extra in (depth, max(0, depth - width)) if width + extra <= deepest), 0)
    first = " " * extra + first.lstrip(" ")
    follower = first_line(lower_lines)
    if _opens_block(first, language) and follower and depth_of(follower) <= width + extra:
        lower_lines = [" " * width + line if line else line for line in lower_lines]
    return "\n".join([first, *lower_lines])


def cut_at_margin(fill: str, cursor: Cursor, language: Language) -> str:
    """Cuts an indented fill before blank lines that are followed by code at the margin.

    A completion inside a function does not include the next function. Where only the indentation ends a block, it is
    cut before the first line that is less deep than the cursor.
    """
    if language.ends_by_depth and not cursor.line_prefix.strip():
        end = _block_end(fill, cursor)
        return fill if end is None else fill[:end].rstrip()
    lines = fill.split("\n")
    has_scopes = bool(language.indents) or language.block_end is not None
    if len(lines) < 3 or not has_scopes or not depth_of(cursor.line_prefix + lines[0]):
        return fill
    whole = "\n".join((*cursor.above, cursor.line_prefix + fill))
    code = without_long_strings(whole, language).split("\n")[-len(lines) :]
    for i in range(2, len(lines)):
        is_free = language.has_macros and re.match(r"#|\w+:$", code[i])  # a directive or a label
        if code[i].strip() and not depth_of(code[i]) and not lines[i - 1].strip() and not is_free:
            return "\n".join(lines[:i]).rstrip()
    return fill


def _block_end(fill: str, cursor: Cursor) -> int | None:
    """Offset of the line end before the first line that is less deep than the cursor."""
    width = depth_of(cursor.line_prefix)
    lines = fill.split("\n")
    end = next((at for at, line in enumerate(lines) if at and line.strip() and depth_of(line) < width), None)
    return None if end is None else len("\n".join(lines[:end]))


def gap_end(fill: str, cursor: Cursor, language: Language) -> int | None:
    """Offset at which the fill of a gap leaves it; None if it does not.

    An argument ends before a comma that follows the gap but is not among a Python lambda's parameters, and before a
    bracket that the fill does not open. Statements end where their block does.
    """
    cursor = cursor.as_shown()
    rest = cursor.line_rest.lstrip()
    if not rest.startswith((",", *CLOSERS)):
        return _block_end(fill, cursor) if cursor.is_blank_line else None
    num_lambdas = 0  # whose parameters have not ended
    for mark in _ARGUMENT_MARK.finditer(fill):
        if balance(fill[: mark.start()], language).num_unmatched:
            continue  # it is inside of brackets or of a string
        if mark[0] == rest[0] and not num_lambdas:
            return mark.start()
        if language.id == "python" and mark[0] != ",":
            num_lambdas = num_lambdas + 1 if mark[0] == "lambda" else max(0, num_lambdas - 1)
    return balance(fill, language).first_stray


def is_among_statements(cursor: Cursor, language: Language) -> bool:
    """Whether the line above or below a blank line is code of the same block, and no comment or string about it."""
    cursor = cursor.as_shown()
    width = depth_of(cursor.line_prefix)
    block = [line for line in (cursor.line_above, cursor.line_below) if line and depth_of(line) >= width]
    return not all(is_remark(line, language) or line.endswith(tuple(language.multiline)) for line in block)


def is_remark(statement: str, language: Language) -> bool:
    """Whether a statement only documents code: it has comments and nothing else, or is a string of several lines."""
    lines = [line.strip() for line in statement.split("\n") if line.strip()]
    is_comment = bool(language.comment) and all(line.startswith(language.comment) for line in lines)
    return is_comment or any(lines[0].startswith(quote) and lines[-1].endswith(quote) for quote in language.multiline)


def deepen(text: str, old: str) -> str:
    """Indents `text` to the depth of `old`, the text that it replaces."""
    missing = max(0, depth_of(first_line(old.split("\n"))) - depth_of(first_line(text.split("\n"))))
    return "\n".join(" " * missing + line if line.strip() else line for line in text.split("\n"))


def _opens_block(line: str, language: Language) -> bool:
    """True if an indented block must follow; elsewhere the block's first line may be as deep as its header."""
    is_comment = bool(language.comment) and line.lstrip().startswith(language.comment)
    is_header = bool(language.indents) and line.endswith(language.indents)
    return is_header and not is_comment and balance(line, language).num_unmatched == 0


def _deepest(line_above: str, width: int, language: Language) -> int:
    """Largest plausible indentation of the line after this one, where `width` columns are typed."""
    line = line_above.rstrip()
    depth = depth_of(line)
    if width > depth:  # an editor has indented it
        return width
    is_header = bool(language.indents) and line.endswith(language.indents)
    levels = 1 if is_header else 2 if line.endswith(OPENERS) else 0
    return depth + levels * TAB_WIDTH


def drop_rest(fill: str, cursor: Cursor, language: Language = PLAIN) -> str:
    """Removes from a fill the beginning of the text after the cursor.

    `print(|)` and the fill `x)` give `x`, but `f(x)` and `() => {` stay: the removal must leave no bracket and no quote
    open that is not open without the fill.
    """
    rest = cursor.line_rest.rstrip()
    if not rest.strip():
        return fill

    typed = "\n".join((*cursor.above, cursor.line_prefix))

    def num_unmatched(text: str) -> int:
        return balance(typed + text + rest, language).num_unmatched

    before, num_typed = num_unmatched(fill), num_unmatched("")
    for size in range(min(len(rest), len(fill)), 0, -1):
        kept = fill[:-size]
        if (
            fill.endswith(rest[:size])
            and _is_repeat(kept, rest, size)
            and _num_alone(kept, language) <= _num_alone(fill, language)
            and num_unmatched(kept) <= before
        ):
            return kept
    for at in range(1, len(fill)):
        if fill.startswith(rest, at) and num_unmatched(fill[:at]) < min(before, num_typed + 1):
            return fill[:at]
    return fill


def _num_alone(text: str, language: Language) -> int:
    """How many brackets and quotes of a text have no partner in it, those of types and tags included."""
    return balance(text, language).num_unmatched + abs(text.count("<") - text.count(">"))


def _is_repeat(kept: str, rest: str, size: int) -> bool:
    """True if the first `size` characters of `rest` behind the fill are more than the same letters of another word."""
    if is_word(rest[size - 1]) and is_word(rest[size : size + 1]):
        return False
    return size >= MIN_DISTINCTIVE or not (is_word(rest[0]) and is_word(kept[-1:]))


_EXPRESSION = re.compile(r"\{(?:[^{}]++|\{(?:[^{}]++|\{[^{}]*+\})*\})*\}")
"""What a template puts into a tag or a text: `{{ a }}`, `{% if a %}`, `{() => f()}`."""
_TAG = re.compile(
    r"""<(?:!--.*?-->|[!?%][^>]*>|/[\w:.-]+\s*>"""
    r"""|[\w:.-]+(?:\s+(?:[^\s"'<>/=]+(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>=]+))?))*\s*/?>)""",
    re.DOTALL,
)


def breaks_tags(fill: str, cursor: Cursor, before: str) -> bool:
    """True if a tag that the fill begins or continues is malformed, or ends without a beginning.

    False inside scripts, which begin in the text `before` the cursor.
    """
    above, below = "\n".join((*cursor.above, cursor.line_prefix)), "\n".join(cursor.below)
    is_inside = any(before.rfind("<" + name) > before.rfind("</" + name) for name in ("script", "style", "pre"))
    if is_inside or above.rfind("<!") > above.rfind(">") or re.search(r"<(?:script|style|pre|[!?%])", fill):
        return False
    opening = above.rfind("<")
    head = above[opening:] if opening > above.rfind(">") else ""
    text = head + fill + (cursor.line_rest if "\n" not in fill else "")
    text = _TAG.sub(" ", _EXPRESSION.sub(lambda found: " " if found[0][1] == "%" else "x", text))
    at = text.rfind("<")
    if at >= 0 and re.fullmatch(r"</?(?:[\w:.-]+(?:\s[^<>]*)?)?", text[at:]):
        # the last tag is unfinished: the lines below must end it
        end = below.find(">")
        following = below.find("<")
        if end < 0 or 0 <= following < end:
            return bool(below.strip()) and "\n" not in head  # attributes on lines of their own may follow
        text = text[:at]
    return re.search(r"<[/\w\"']|[\w\"'/]>", text) is not None


_MAY_STAY_OPEN = "area|base|body|br|col|dd|dt|embed|head|hr|html|img|input|li|link|meta|option|p|source|t[bdhr]\\w*|wbr"
_WRONG_END = re.compile(
    rf"(?<![\w)])<(?!(?:{_MAY_STAY_OPEN})\b)([A-Z][\w:.-]*+)(?:\s[^<>]*[^<>/=-])?>[^<>]*</(?!\1\s*>)", re.IGNORECASE
)
"""An element that contains only text and ends with another name, unless HTML ends the element without an end tag."""


def closes_wrongly(fill: str, cursor: Cursor) -> bool:
    """True if the fill gives an element an end tag of another name, as in `<span>text</b>`. Grammars accept that."""
    begun = cursor.line_prefix + fill
    return any(match.end() > len(cursor.line_prefix) for match in _WRONG_END.finditer(begun))


def drop_below(fill: str, cursor: Cursor, language: Language = PLAIN) -> str:
    """Cuts a fill at the first line from which it repeats the lines below the cursor."""
    below = _shown(cursor.below)
    if not (cursor.is_line_end and below) or _is_in_run(fill, cursor, language):
        return fill
    lines = fill.split("\n")
    usual = {line.rstrip() for line in cursor.above}
    for i in range(len(lines)):
        merged = _in_buffer(lines[i:], cursor if i == 0 else None)
        if lines[i].strip() and _is_copy(merged, below, usual, language):
            return "\n".join(lines[:i])
    return fill


def before_line_below(fill: str, cursor: Cursor) -> str:
    """The lines of a fill before its first copy of a line below the cursor; empty without one."""
    lines = fill.split("\n")
    below = _shown(cursor.below)
    copies = (number for number, line in enumerate(lines) if number and line.rstrip() in below)
    return "\n".join(lines[: next(copies, 0)]).rstrip()


def repeats_above(fill: str, cursor: Cursor, language: Language = PLAIN) -> bool:
    """True if the fill repeats the lines directly above the cursor."""
    lines = tuple(_in_buffer(fill.split("\n"), cursor))
    if not (lines and cursor.is_line_end and _is_distinctive(lines[0])) or _is_in_run(fill, cursor, language):
        return False
    tail = _shown(cursor.above)[-len(lines) :]
    if len(tail) != len(lines) or tail[1:] != lines[1:]:
        return False
    return lines[0] == tail[0] or (not cursor.line_prefix.strip() and lines[0].strip() == tail[0].strip())


def without_surroundings(text: str, old: str, above: str, below: str) -> str:
    """Removes from the new lines for `old` the lines above and below it, which a model may repeat around its answer.

    Blanks are not compared. Lines count as repeated if they have enough letters and digits in all, unless `old` has
    them in the same place. The last line may be unfinished.
    """
    lines = text.split("\n")
    places = [number for number, line in enumerate(lines) if line.strip()]
    new, replaced, before, after = (
        [line.strip() for line in part.split("\n") if line.strip()] for part in (text, old, above, below)
    )

    def ends_below(start: int) -> bool:
        *whole, last = new[start:]
        copied = after[: len(whole) + 1]
        is_copy = len(copied) > len(whole) and copied[:-1] == whole and copied[-1].startswith(last)
        least = 0 if first else MIN_COPIED
        return is_copy and replaced[-len(copied) :] != new[start:] and _is_distinctive("".join(new[start:]), least)

    def begins_above(size: int) -> bool:
        is_copy = new[:size] == before[-size:] != replaced[:size]
        least = MIN_DISTINCTIVE if new[size - 1].endswith((":", *OPENERS)) else MIN_COPIED
        return is_copy and _is_distinctive("".join(new[:size]), least)

    first = next(filter(begins_above, range(min(len(new) - 1, len(before)), 0, -1)), 0)
    end = next(filter(ends_below, range(first + 1, len(new))), len(new))
    return "\n".join(lines[places[first] : places[end - 1] + 1]) if (first, end) != (0, len(new)) else text


def _is_in_run(fill: str, cursor: Cursor, language: Language) -> bool:
    """True if equal lines usually follow each other here.

    The two lines above or below are equal, or the first line equals the two above, or the ones above and below. In
    markup, if half of the line is typed.
    """
    first = (cursor.line_prefix + fill.partition("\n")[0]).rstrip()
    if language.has_tags and 2 * len(cursor.line_prefix.strip()) >= len(first.strip()):
        return True
    above, below = _shown(cursor.above), _shown(cursor.below)
    if above[-2:] == (first, first) or above[-1:] == below[:1] == (first,):
        return True
    return _has_pair(above) or _has_pair(below)


@lru_cache(maxsize=4)  # a judgement needs the lines above and below several times
def _shown(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines that are not blank, without blanks at their ends."""
    return tuple(line.rstrip() for line in lines if line.strip())


@lru_cache(maxsize=4)
def _has_pair(lines: tuple[str, ...]) -> bool:
    """True if two equal lines follow each other."""
    return any(line == following and _is_distinctive(line) for line, following in itertools.pairwise(lines))


def _in_buffer(lines: list[str], cursor: Cursor | None) -> list[str]:
    """The lines that are not blank, as they would stand in the buffer."""
    first = (cursor.line_prefix if cursor else "") + lines[0]
    return [line.rstrip() for line in (first, *lines[1:]) if line.strip()]


def _is_copy(lines: list[str], below: Sequence[str], usual: set[str], language: Language) -> bool:
    """True if all of `lines`, or several or distinctive first ones, equal the first lines of `below`.

    Not if the first ones are `usual` text of this file, marks of what follows, or in markup.
    """
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(lines, below, strict=False))
    copied = [line for line, _ in pairs]
    if not copied or len(copied) == min(len(lines), len(below)):
        # short elements such as `0,` may legitimately occur twice
        is_element = len(copied) == 1 and copied[0].endswith(",") and len(copied[0].strip()) < MIN_COPIED
        return bool(copied) and not (is_element and copied[0] in usual)
    are_marks = all(line.lstrip().startswith(("@", "#[")) for line in copied)  # decorators, annotations
    is_usual = language.has_tags or are_marks or usual.issuperset(copied)
    return not is_usual and (len(copied) > 1 or _is_distinctive(lines[0], MIN_COPIED))


def _is_distinctive(line: str, num_chars: int = MIN_DISTINCTIVE) -> bool:
    return sum(char.isalnum() for char in line) >= num_chars


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line with its end."""


@dataclass(frozen=True, slots=True)
class Change:
    """Replaces `[start, end)` of a text, in code points, by `text`."""

    start: int
    end: int
    text: str

    def applied(self, text: str) -> str:
        """The text with the change."""
        return text[: self.start] + self.text + text[self.end :]


def all_applied(changes: Iterable[Change], text: str) -> str:
    """The text with changes that do not overlap and are in its offsets."""
    for change in sorted(changes, key=lambda change: -change.start):
        text = change.applied(text)
    return text


def minimal_changes(old: str, new: str, start: int = 0) -> tuple[Change, ...]:
    """Changes that turn `old`, which begins at offset `start`, into `new`: changed lines without their common ends.

    The changes are in ascending order and do not touch; none begins or ends inside a CRLF.
    """
    old_lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    starts = list(itertools.accumulate(map(len, old_lines), initial=start))
    changes = []
    for tag, i, j, k, m in SequenceMatcher(None, old_lines, new_lines).get_opcodes():
        if tag != "equal":
            before, after = "".join(old_lines[i:j]), "".join(new_lines[k:m])
            head, tail = shared_ends(before, after)
            changes.append(Change(starts[i] + head, starts[j] - tail, after[head : len(after) - tail]))
    return tuple(changes)


def shared_ends(old: str, new: str) -> tuple[int, int]:
    """Lengths of the common prefix and suffix; together at most the shorter text."""
    head = num_shared(old, new)
    while head and (_splits_line_end(old, head) or _splits_line_end(new, head)):
        head -= 1
    tail = num_shared(old[head:][::-1], new[head:][::-1])
    while tail and (_splits_line_end(old, len(old) - tail) or _splits_line_end(new, len(new) - tail)):
        tail -= 1
    return head, tail


def _splits_line_end(text: str, at: int) -> bool:
    return text[at - 1 : at + 1] == "\r\n"


def with_unchanged_lines(new: str, shaped: str, old: str, shown: str) -> str:
    """`new` with the lines of `old` that are the same in the style of the model, where they are `shaped` and `shown`.

    Tabs inside of a line, blanks at its end and its own line end are not shown to a model.
    """
    old_lines, new_lines = _LINE.findall(old), _LINE.findall(new)
    seen, answered = ([line.rstrip() + line[-1] for line in _LINE.findall(text)] for text in (shown, shaped))
    for block in SequenceMatcher(None, seen, answered).get_matching_blocks():
        new_lines[block.b : block.b + block.size] = old_lines[block.a : block.a + block.size]
    return "".join(new_lines)
