"""Syntax checks with tree-sitter, whose grammars recover from errors: an unfinished buffer is the normal state.

A fill is kept where it adds no error; where the text around it has errors of its own, the fill's brackets and quotes
decide. The text that is parsed is an excerpt from definition to definition, in which blocks are opened and closed: only
a valid text shows what a fill breaks. Not checked: indentation, names, and errors that a grammar accepts (Python's
accepts `print x`), see `keep_parsing`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from textwrap import dedent
from typing import Self

from tree_sitter import Node

from dg_lsp.context.document import REACH, Snapshot, TextStyle, depth_of, first_line, indentation_of
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser, errors_in
from dg_lsp.postprocess.brackets import CLOSER_OF, OPENERS, Balance, balance, with_closers, without_long_strings

# the excerpt that is parsed

_HEADER = re.compile(r"\s*(?:@|#\[|\[|template\b)")  # begins a definition on the line above its landmark
_FLAT_END = re.compile(r"^(?:[^\s#][^\n]*\n+(?=\})|#[^\n]*\n{2,}(?=\}(?!;)))", re.MULTILINE)
"""Before the end of a block without indentation: a namespace."""
_FILE_END = re.compile(r"(?:[\s)\]};,]|\b(?:end|fi|done|esac)\b)*")  # behind a cursor that stands at the end of a file


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a file with a gap, in the model's style."""

    above: str  # whole lines, with their ends
    line_prefix: str
    line_rest: str
    language: Language
    below: str = ""  # from the end of the cursor's line
    head: str = ""  # opens blocks around `above`; not in the file
    tail: str = ""  # closes blocks that the file closes behind `below`
    is_in_block: bool = False  # a block may begin above it, such as a namespace
    following: str = ""  # the text of which `below` is the beginning
    head_closer: str = ""  # closes what `head` opens
    depth: int = 0  # columns of indentation of its first line
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
        landmarks = list(landmark.finditer(above + line_prefix))
        if is_cut and not landmarks:
            return None
        # from the last landmark without indentation on, or from a method if the class is cut off
        at_margin = [match for match in landmarks if not match["indentation"]]
        container = ("", "")
        first = at_margin[-1] if at_margin else None
        if is_cut and first is None:
            first = landmarks[0]
            if inner := _innermost(landmarks, above, line_prefix):
                first = inner
                around = ((start, end) for group, start, end in language.containers if inner[group] is not None)
                container = next(around, container)
        start = _start_of(above, first.start()) if first else 0
        return cls(
            above[start:],
            line_prefix,
            line_rest,
            language,
            head=container[0] and container[0] + "\n",
            is_in_block=is_cut or bool(balance(above[:start], language).closers),
            following=line_end + below,
            head_closer=container[1],
            depth=len(first["indentation"]) if first else 0,
            is_following_cut=len(after) > REACH,
            is_file_end=not language.checks_broken and len(after) <= REACH and bool(_FILE_END.fullmatch(after)),
        )

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
        unmatched = balance(before + fill + after, self.language)
        opened = zip(unmatched.closers, unmatched.openings, strict=True)
        closers = "\n".join(closer for closer, at in opened if at < len(before))
        return after + (closers and f"\n{_last_element(fill + after, closers, self.language)}{closers}\n")

    def unclosed(self, fill: str) -> str:
        """What closes the blocks above the gap that the file leaves open.

        Their headers are at least as deep as the line below.
        """
        before = self.above + self.line_prefix
        depth = None if (self.line_prefix + fill).strip() else depth_of(self.line_prefix)
        closers_by_depth = list(_word_closers((before + fill + self.line_rest).split("\n"), self.language, depth))
        for at in balance(before + fill, self.language).openings:
            header = before[before.rfind("\n", 0, at) + 1 :].partition("\n")[0]
            if at < len(before) and header.rstrip().endswith(OPENERS):
                closers_by_depth.append((depth_of(header), CLOSER_OF[before[at]]))
        below = first_line(self.following.split("\n"))
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
    """The excerpt with `below` and `tail` for a fill, which may open or end a block, a string or a comment."""
    language = excerpt.language
    before = excerpt.above + excerpt.line_prefix + fill
    text = before + excerpt.line_rest  # from the start, since the cursor may be in a string of several lines
    code = without_long_strings(text + excerpt.following, language)[len(text) :]
    unmatched = balance(before, language)
    last = text[before.rfind("\n") + 1 :] if language.has_macros else ""
    end = _end(code, excerpt.depth, language, last_line=last, is_cut=excerpt.is_following_cut)
    code = code[: end.at]
    below = excerpt.following[: end.at]
    closers = excerpt.head_closer
    if end.is_cut and unmatched.quote:  # what a fill inside of a string contains closes nothing
        closers = "\n".join(balance(text + below, language).closers) + closers
    elif end.is_cut:
        brackets = balance(excerpt.line_rest + below, language)
        closers = _closers(unmatched, brackets, before, excerpt.line_rest + code, end.depth) + closers
    if closers:
        closers = _last_element(below, closers, language) + closers
    tail = closers and f"\n{closers}\n"
    return replace(excerpt, below=below, tail=tail)


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


@dataclass(frozen=True, slots=True)
class _End:
    """Where the parsed text ends, and how deep the lines are between which it ends."""

    at: int
    depth: int
    is_cut: bool = True  # the file goes on


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
            return _End(_start_of(below, min(ends)), 0)
    if not is_cut:
        return _End(len(below), depth, is_cut=False)
    landmarks = list(language.landmark.finditer(below))
    if len(landmarks) > 1:  # the first one may belong to decorators above it
        return _End(_start_of(below, landmarks[-1].start()), len(landmarks[-1]["indentation"]))
    return _End(below.rfind("\n") + 1, depth)


def _start_of(text: str, at: int) -> int:
    """Where the decorators and attributes begin that precede a landmark at offset `at`."""
    while at:
        start = text.rfind("\n", 0, at - 1) + 1
        line = text[start : at - 1]
        if not _HEADER.match(line):
            break
        at = start
    return at


def _closers(unmatched: Balance, brackets: Balance, above: str, below: str, depth: int) -> str:
    """What closes the blocks around a line of this depth behind `below`.

    They were opened below the gap (`brackets`) or above it (`unmatched`).
    """
    # a line below the gap that is less deep than its content ends a block above the gap
    least = min([depth, *(depth_of(line) for line in below.split("\n")[1:] if line.strip())])
    closers = [
        closer
        for text, opened, limit in ((below, brackets, depth), (above, unmatched, least))
        for closer, at in zip(opened.closers, opened.openings, strict=True)
        if depth_of(text[text.rfind("\n", 0, at) + 1 :]) < limit
    ]
    return "\n".join(closers)


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


def _last_element(below: str, closers: str, language: Language) -> str:
    """An element behind the last comma, where the language needs one."""
    if not below.rstrip().endswith(","):
        return ""
    return next((text for closer, text in language.last_elements if closer == closers[0]), "")


# the judgement of a fill in it

MAX_SHORTER = 6  # most lines that are removed from the end of a fill to make it valid
NEAR = 10  # lines around a gap in which an error is evidence against the fill
MAX_SECONDS = 0.25  # processor time of all parses of a judgement, which takes a few milliseconds
MAX_FILLERS = 3  # texts that are tried in a gap: each is a parse
_OPEN_TAG = re.compile(r"(?<![\w)])<([\w.:-]*)(?:\s[^<>]*[^<>/=])?>$")
_BLOCK = re.compile("block|body|compound")  # part of the names that grammars give to the node of a block
_NO_EFFECT = frozenset(("pass_statement", "empty_statement", "ellipsis", "string", "concatenated_string"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text around the cursor that is parsed, in the model's style."""

    excerpt: Excerpt
    parser: LimitedParser
    errors_of: dict[str, list[Node]] = field(default_factory=dict)  # of the texts whose errors were counted

    @classmethod
    def around(cls, snapshot: Snapshot, start: int, end: int, style: TextStyle) -> Self | None:
        """The surroundings of `[start, end)` in a buffer. Cells of a notebook are parsed one by one.

        None if nothing can be checked: without an installed grammar, or without a place where a parser can start.
        """
        # twice the reach: tabs and line ends change lengths
        before = style.to_model(snapshot.text[max(snapshot.num_before, start - 2 * REACH) : start])
        after = style.to_model(snapshot.text[end : min(end + 2 * REACH, snapshot.end)])
        language = language_of(snapshot.language)
        grammar = grammar_of(language.grammar)
        excerpt = Excerpt.of(before, after, language) if grammar is not None else None
        if grammar is None or excerpt is None:
            return None
        return cls(excerpt, LimitedParser(grammar, MAX_SECONDS))

    @property
    def language(self) -> Language:
        """The language of the text."""
        return self.excerpt.language

    @property
    def _gap(self) -> Excerpt:
        """The excerpt as it is without a fill."""
        return _ended(self.excerpt, "")

    def _text(self, fill: str) -> str:
        """The text that is parsed, with `fill` at the cursor."""
        return _ended(self.excerpt, fill).text(fill)

    def keep_valid(self, fill: str) -> str | None:
        """The fill, or the closest version of it that adds no syntax error, or None.

        Tried in order: the fill; the fill with its open brackets closed; the fill up to the end of the block around the
        cursor; the fill without its last lines; the first line of an unfinished docstring. Unless the language says
        otherwise, every fill is valid where the text around it is not: grammars recover from errors in many ways.
        """
        errors = self._errors(self._text(fill))
        if not errors:
            return fill
        is_torn = self._is_torn(fill)
        num_known = self._num_known() if self.language.checks_broken else 0
        if not is_torn and self._is_excused(fill, errors, num_known):
            return self._inside_block(fill) if self._closes_too_much(fill) else fill
        versions = (text for text in self._versions(fill) if not (is_torn and self._is_torn(text)))
        if not num_known:
            return next((text for text in versions if self._is_valid(self._text(text))), None)
        return next((text for text in versions if self.num_errors(text) <= num_known), None)

    def _num_known(self) -> int:
        """Number of errors around the gap that a fill may leave: none, if it should complete the line that has them."""
        return 0 if self._is_valid(self._gap.without_line().text("")) else self.num_errors("")

    def _is_excused(self, fill: str, errors: list[Node], num_known: int) -> bool:
        """True if the errors with a fill are no evidence against it.

        Most important in files that are being written, where text is missing that later lines will have.
        """
        if self.language.checks_broken:
            return self.num_errors("") > 0 and self._can_be_finished(fill, alone=num_known > 0)
        return (
            not self._are_near(errors, fill)
            or self._ends_namespace(fill)
            or not (self._is_valid(self._gap.text("")) or self._is_sound())  # the text has errors of its own
            or self._can_be_finished(fill)
        )

    def _are_near(self, errors: Sequence[Node], fill: str) -> bool:
        """True if one of the errors is within `NEAR` lines of the fill."""
        first = self.excerpt.before.count("\n") - NEAR
        last = first + fill.count("\n") + 2 * NEAR
        return any(node.end_point.row >= first and node.start_point.row <= last for node in errors)

    def _is_sound(self) -> bool:
        """True if some text in the gap, or instead of its line, makes the whole valid: other errors are the fill's.

        Otherwise wrong fills would be shown wherever the line of the cursor is unfinished.
        """
        for part, num in ((self._gap, MAX_FILLERS), (self._gap.without_line(), 1)):
            before, after = part.before, part.after("")
            unmatched = balance(before + after, self.language)
            heads = self.language.fillers if not unmatched.strays else ("", *self.language.headers)
            heads = (*heads[:num], *([part.unclosed("")] if self.language.block_ends else ()))
            texts = (unmatched.quote + unmatched.closers + text + unmatched.openers for text in dict.fromkeys(heads))
            if any(self._is_valid(before + text + after) for text in texts):
                return True
        return False

    def _ends_namespace(self, fill: str) -> bool:
        """True if the fill ends a block of C++ that begins above the excerpt: its `}` stands alone at the margin."""
        part = self._gap
        text = part.above + part.line_prefix + fill
        unmatched = balance(text, self.language)
        at = unmatched.first_stray
        if not (self.language.has_macros and part.is_in_block) or at is None:
            return False
        is_alone = unmatched.strays == "}" and not unmatched.closers
        return is_alone and at >= len(part.above) and text.startswith("\n}", at - 1)

    def _closes_too_much(self, fill: str) -> bool:
        """True if the fill closes a bracket that the text below closes, too: errors elsewhere do not excuse that."""
        if not balance(self.excerpt.line_prefix + fill, self.language).strays or self._ends_namespace(fill):
            return False
        gap = balance(self._gap.text(""), self.language)
        return bool(balance(self._text(fill), self.language).strays) and not (gap.num_stray or gap.quote)

    def _is_torn(self, fill: str) -> bool:
        """True if a bracket of the fill has a wrong partner, or if a string that it opens has no end."""
        part = _ended(self.excerpt, fill)
        whole = balance(part.text(fill), self.language)
        if len(whole.quote) == 1 and not balance(part.text(""), self.language).quote:
            return True
        if whole.mismatch is None:
            return False
        opening, closing = whole.mismatch
        start = len(part.before)
        end = start + len(fill)
        is_in_fill = opening >= start or start <= closing < end
        return is_in_fill and opening < end + len(part.line_rest)

    def strands_block(self, fill: str) -> bool:
        """True if the next line is deeper than the fill's last line, which opens no block. Grammars accept that.

        False inside brackets and strings.
        """
        opener = self.language.indents
        if not opener or self.excerpt.line_rest.strip():
            return False
        following = first_line(_ended(self.excerpt, fill).below.split("\n"))
        if not following:
            return False
        unmatched = balance(self.excerpt.above + self.excerpt.line_prefix + fill, self.language)
        if unmatched.closers or unmatched.quote:
            return False
        lines = [line for line in (self.excerpt.line_prefix + fill).split("\n") if line.strip()]
        code, mark, _ = lines[-1].partition(f" {self.language.comment}")  # marks inside strings are not recognised
        last = (code if mark and code.strip() else lines[-1]).rstrip()
        return bool(last) and depth_of(following) > depth_of(last) and not last.endswith((opener, "\\"))

    def _versions(self, fill: str) -> Iterator[str]:
        yield fill
        closers, quote = self._left_open(fill)
        # after a comma, an argument is missing, not a bracket
        if closers and not quote and not fill.rstrip().endswith(","):
            yield with_closers(self.excerpt.line_prefix, fill, len(closers), self.language)
        if (whole := self._inside_block(fill)).strip():
            yield whole
        lines = fill.split("\n")
        for num in range(len(lines) - 1, max(0, len(lines) - 1 - MAX_SHORTER), -1):
            shorter = "\n".join(lines[:num]).rstrip()
            if shorter.strip():
                yield shorter
        if len(quote) == 3 and not closers:
            yield lines[0].rstrip() + quote

    def _inside_block(self, fill: str) -> str:
        """The lines before the one that closes a bracket from above, or empty."""
        stray = balance(self.excerpt.line_prefix + fill, self.language).first_stray
        if stray is None or self.language.block_end is None:
            return ""
        return fill[: max(0, stray - len(self.excerpt.line_prefix))].rpartition("\n")[0].rstrip()

    def _left_open(self, fill: str) -> tuple[str, str]:
        """Closers of the brackets and of the string that `fill` opens and does not close."""
        typed = balance(self.excerpt.line_prefix, self.language)
        whole = balance(self.excerpt.line_prefix + fill, self.language)
        closers = whole.closers[: max(0, len(whole.closers) - len(typed.closers))]
        return closers, "" if whole.quote == typed.quote else whole.quote

    def _can_be_finished(self, fill: str, *, alone: bool = False) -> bool:
        """True if the cursor's line is a valid beginning: closing its brackets and a usual ending make it parse."""
        closers, quote = self._left_open(fill + self.excerpt.line_rest)
        opens_block = "\n" not in fill and (fill + self.excerpt.line_rest).rstrip().endswith(OPENERS)
        if quote or (closers and not (opens_block and self.language.block_end)):
            return False
        line = self.excerpt.line_prefix + fill + self.excerpt.line_rest
        unmatched = balance(line, self.language)
        line += unmatched.quote + unmatched.closers
        is_line = "\n" not in fill
        part = self._gap
        endings = [ending.replace("{indentation}", indentation_of(line)) for ending in self.language.endings]
        if is_line:
            endings += (f"\n{indentation_of(line)}{end}" for end in self.language.block_ends)
        if tag := _OPEN_TAG.search(line):
            endings += [f"</{tag[1]}>{ending}" for ending in endings]
        closers = part.unclosed(fill)
        texts = [line + ending + unclosed for unclosed in dict.fromkeys(("", closers)) for ending in endings]
        return any(self._is_valid(text if alone else part.without_line().text(text)) for text in texts)

    def num_errors(self, fill: str) -> int:
        """Number of syntax errors of the text with `fill` at the cursor."""
        return len(self._errors(self._text(fill)))

    def num_hollow(self, fill: str) -> int:
        """Number of blocks without a statement that does something, in the text with `fill` at the cursor.

        0 outside Python, where an empty block needs no statement.
        Counted: headers without a body, and bodies of `pass`, `...`, comments and strings only. Not counted: handlers
        of exceptions, and classes with a base.
        """
        num = 0
        root = self.parser.root(self._gap.text(fill)) if self.language.id == "python" else None
        waiting = [root] if root is not None else []
        while waiting:
            node = waiting.pop()
            waiting.extend(node.named_children)
            if node.child_by_field_name("superclasses") is None:
                bodies = (node.child_by_field_name(name) for name in ("body", "consequence"))
                num += any(body is not None and _BLOCK.search(body.type) and _is_hollow(body) for body in bodies)
        return num

    def empties(self, old: str, new: str) -> bool:
        """True if whole lines at the cursor contain statements, and `new` only comments, strings and the like.

        False inside brackets, where a string is an element.
        """
        part = self.excerpt
        has_rest = part.line_rest.strip() and not old.endswith("\n")
        if part.line_prefix.strip() or has_rest or balance(part.above, self.language).closers:
            return False
        roots = [self.parser.root(dedent(part.line_prefix + text)) for text in (old, new)]
        return [root is not None and _is_hollow(root) for root in roots] == [False, True]

    def _is_valid(self, text: str) -> bool:
        """True if `text` has no error; faster than `_errors`, which counts them."""
        return not self.errors_of[text] if text in self.errors_of else not self.parser.has_error(text)

    def _errors(self, text: str) -> list[Node]:
        if text not in self.errors_of:
            root = self.parser.root(text)
            self.errors_of[text] = list(errors_in(root)) if root is not None else []
        return self.errors_of[text]


def _is_hollow(block: Node) -> bool:
    """True if no statement of the block does something."""
    statements = (node for node in block.named_children if "comment" not in node.type)
    # an expression alone; `"a",` has two children
    only = (
        node.child(0) if node.type == "expression_statement" and node.child_count == 1 else node for node in statements
    )
    return all(node is not None and node.type in _NO_EFFECT for node in only)
