"""Syntax checks with tree-sitter, whose grammars recover from errors: an unfinished buffer is the normal state.

Not checked by them: indentation, names, and errors that a grammar accepts (Python's accepts `print x`). Where the
result must not break a file, CPython's own parser decides.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from textwrap import dedent
from typing import Self

from tree_sitter import Node

from dg_lsp.context.document import LINE_END, Snapshot, TextStyle, depth_of, indentation_of, line_start
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser, errors_in
from dg_lsp.postprocess.brackets import OPENER_OF, OPENERS, balance
from dg_lsp.postprocess.excerpt import REACH, Excerpt

MAX_SHORTER = 6  # most lines that are removed from the end of a fill to make it valid
MAX_ERRORS = 40  # a text with more is in no known state: the inside of a string, another dialect
NEAR = 10  # lines around a gap in which an error is evidence against the fill
MAX_SECONDS = 0.25  # processor time of all parses of a judgement, which takes a few milliseconds
MAX_PARSED = 100_000  # characters of a Python file that CPython parses with each fill: they may take 0.1 s a time
MAX_FILLERS = 3  # texts that are tried in a gap: each is a parse
_BLOCK = re.compile("block|body|compound")  # part of the names that grammars give to the node of a block
_NO_EFFECT = frozenset(("pass_statement", "empty_statement", "ellipsis", "string", "concatenated_string"))


class Validity(IntEnum):
    """What CPython accepts of a text."""

    INVALID = 0
    PARSES = 1  # with an error that its compiler finds: `return` outside of a function
    COMPILES = 2


def python_validity(text: str) -> Validity:
    """What the Python that runs this program accepts of `text`. Nothing of it is executed."""
    if _accepts(text, 0):
        return Validity.COMPILES
    return Validity.PARSES if parses(text) else Validity.INVALID


def parses(text: str) -> bool:
    """Whether it is more than `INVALID`; takes a third of the time of `python_validity` where it is."""
    return _accepts(text, ast.PyCF_ONLY_AST)


def _accepts(text: str, flags: int) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text.removeprefix("\ufeff"), "<buffer>", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL, a lone surrogate, deep nesting
            return False
    return True


@dataclass(frozen=True, slots=True)
class PythonGap:
    """A Python text around a cursor, for CPython's parser."""

    before: str
    after: str
    language: Language

    @classmethod
    def at(cls, snapshot: Snapshot, offset: int) -> Self:
        """That at a position of a document; a cell of a notebook is a text of its own."""
        document = snapshot.alone()
        at = offset - snapshot.num_before
        return cls(document.text[:at], document.text[at:], language_of(document.language))

    def keep_parsing(self, fill: str, shown: Callable[[str], str], *, may_lack_body: bool) -> str | None:
        """The fill, or its longest beginning of whole lines, with which CPython parses the text; None without one.

        `shown` gives a fill in the style of the text. A header may lack its body with `may_lack_body`. Where no fill
        makes the text parse, it has an error elsewhere: then the text up to the end of the cursor's line counts.
        """
        if len(self.before) + len(self.after) > MAX_PARSED:
            return fill
        lines = fill.split("\n")
        versions = ["\n".join(lines[:num]).rstrip() for num in range(len(lines), 0, -1)]
        versions = [version for version in versions[: MAX_SHORTER + 1] if version.strip()]
        for version in versions:
            if self._has(shown(version), may_lack_body=may_lack_body):
                return version
        if _can_parse(self):
            return None
        upper = replace(self, after=self._line_rest)
        if not _can_parse(upper):
            return fill
        return next((version for version in versions if upper.begins(shown(version))), None)

    @property
    def _line_rest(self) -> str:
        return LINE_END.split(self.after, maxsplit=1)[0]

    def _has(self, fill: str, *, may_lack_body: bool) -> bool:
        """The text with the fill parses."""
        if parses(self.before + fill + self.after):
            return True
        return may_lack_body and parses(self.before + fill + self._body(fill) + self.after)

    def begins(self, fill: str) -> bool:
        """The text that ends with the fill parses, or would with its brackets closed or with a body."""
        text = self.before + fill + self.after
        closers = balance(text, self.language).closers
        return parses(text + closers) or parses(text + self._body(fill))

    def _body(self, fill: str) -> str:
        """What a header or decorator at the end of the fill lacks."""
        line = (self.before + fill).split("\n")[-1]
        indentation = indentation_of(line)
        if line.lstrip().startswith("@"):
            return f"\n{indentation}def _(): pass"
        handler = f"\n{indentation}finally: pass" if line.strip() == "try:" else ""
        return f"\n{indentation} pass{handler}"

    def can_parse(self) -> bool:
        """Some text at the cursor, or in place of its line, makes the text parse."""
        start = line_start(self.before, len(self.before))
        indentation = indentation_of(self.before[start:])
        below = self.after[len(self._line_rest) :]
        whole = balance(self.before + self.after, self.language)
        openers = "".join(OPENER_OF[closer] for closer in reversed(whole.strays))
        typed = balance(self.before, self.language).quote
        left = (typed if len(typed) == 1 else whole.quote) + whole.closers
        texts = (f"{text}{left}{end}{openers}" for text in ("", "_") for end in ("", ":"))
        if any(parses(self.before + text + self.after) for text in texts):
            return True
        above = self.before[:start] + indentation
        without_line = balance(above + below, self.language)
        ends = without_line.quote + without_line.closers
        # inside brackets no line is needed
        is_inside = bool(ends or balance(above, self.language).closers)
        heads = ("_", "") if is_inside else ("pass", "if _:", "try:", "except:", "except: pass", "def _(): pass")
        return any(parses(above + text + ends + below) for text in heads)


@lru_cache(maxsize=2)  # all candidates of a request have the same gap
def _can_parse(gap: PythonGap) -> bool:
    return gap.can_parse()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text around the cursor that is parsed, in the model's style, and its language."""

    excerpt: Excerpt
    language: Language
    parser: LimitedParser
    errors_of: dict[str, list[Node]] = field(default_factory=dict)  # errors of the texts that were parsed
    valid: dict[str, bool] = field(default_factory=dict)  # texts of which no more was asked

    @classmethod
    def of(cls, before: str, after: str, language: Language) -> Self | None:
        """None if nothing can be checked: without an installed grammar, or without a place where a parser can start."""
        grammar = grammar_of(language.grammar)
        excerpt = Excerpt.of(before, after, language) if grammar is not None else None
        if grammar is None or excerpt is None:
            return None
        return cls(excerpt, language, LimitedParser(grammar, MAX_ERRORS, MAX_SECONDS))

    @classmethod
    def around(cls, snapshot: Snapshot, start: int, end: int, style: TextStyle) -> Self | None:
        """The surroundings of `[start, end)` in a buffer. Cells of a notebook are parsed one by one."""
        # twice the reach: tabs and line ends change lengths
        before = style.to_model(snapshot.text[max(snapshot.num_before, start - 2 * REACH) : start])
        after = style.to_model(snapshot.text[end : min(end + 2 * REACH, snapshot.end)])
        return cls.of(before, after, language_of(snapshot.language))

    @property
    def _gap(self) -> Excerpt:
        """The excerpt as it is without a fill."""
        return self.excerpt.with_fill("")

    def keep_valid(self, fill: str) -> str | None:
        """The fill, or the closest version of it that adds no syntax error, or None.

        Tried in order: the fill; the fill with its open brackets closed; the fill up to the end of the block around the
        cursor; the fill without its last lines; the first line of an unfinished docstring. Unless the language says
        otherwise, every fill is valid where the text around it is not: grammars recover from errors in many ways.
        """
        excerpt = self.excerpt.with_fill(fill)
        is_strict = self.language.checks_broken
        errors = self._errors(excerpt.text(fill))
        if not errors:
            return fill
        is_torn = self._is_torn(fill)
        if is_strict:
            num_before = self.num_errors("")
            if num_before > MAX_ERRORS:  # prose of a long docstring
                return fill
            num_allowed = 0 if self._is_valid(self._gap.without_line().text("")) else num_before
            if not is_torn and num_before and self._can_be_finished(fill, alone=num_allowed > 0):
                return fill
        else:
            num_allowed = 0
            distant = _distant(errors, excerpt, fill)
            is_excused = len(distant) == len(errors) or self._is_macro(fill) or not self._is_known()
            if not is_torn and (is_excused or self._can_be_finished(fill)):
                return fill
        versions = (text for text in self._versions(fill) if not (is_torn and self._is_torn(text)))
        if not num_allowed:
            return next((text for text in versions if self._is_valid(self.excerpt.with_fill(text).text(text))), None)
        return next((text for text in versions if self.num_errors(text) <= num_allowed), None)

    def _is_known(self) -> bool:
        """True if the text around the gap has no error of its own, such as one that a fill leaves where it is."""
        if not self._gap.is_whole:
            return False
        errors = self._errors(self._gap.text(""))
        return not errors or self._is_sound()

    def _is_sound(self) -> bool:
        """True if some text in the gap, or instead of its line, makes the whole valid: other errors are the fill's."""
        for part, num in ((self._gap, MAX_FILLERS), (self._gap.without_line(), 1)):
            before, after = part.before, part.after("")
            left = balance(before + after, self.language)
            openers = "".join(OPENER_OF[closer] for closer in reversed(left.strays))
            quote = "" if openers else left.quote
            heads = self.language.fillers if not openers else ("", *self.language.headers)
            heads = (*heads[:num], *([part.unclosed("")] if self.language.block_ends else ()))
            texts = (quote + left.closers + text + openers for text in dict.fromkeys(heads))
            if any(self._is_valid(before + text + after) for text in texts):
                return True
        return False

    def _is_macro(self, fill: str) -> bool:
        """True if errors are no evidence, because the grammar does not know macros, and the brackets fit."""
        if not self.language.has_macros:
            return False
        before, after = self._gap.above + self._gap.line_prefix, self._gap.line_rest + self._gap.below
        filled, without = (balance(before + text + after, self.language) for text in (fill, ""))
        is_inside = balance(after, self.language).strays != filled.strays  # of a block that begins above
        if self._gap.is_cut and is_inside and not filled.mismatch and not filled.closers:  # `}` of a namespace around
            return True
        fits = filled.num_unmatched == 0 or filled.num_unmatched < without.num_unmatched
        return fits and self.num_errors("") > 0

    def _is_torn(self, fill: str) -> bool:
        """True if a bracket of the fill has a wrong partner, or if a string that it opens has no end."""
        # without the fill, a line that begins a string has no known end
        is_string = bool(balance(self.excerpt.line_prefix, self.language).quote)
        part = self.excerpt.with_fill(fill if is_string else "")
        whole = balance(part.text(fill), self.language)
        if len(whole.quote) == 1 and not balance(part.text(""), self.language).quote:
            return True
        if whole.mismatch is None:
            return False
        opening, closing = whole.mismatch
        start = len(part.before)
        end = start + len(fill)
        if opening >= start or start <= closing < end:
            return opening < end + len(part.line_rest)
        # a fill of several lines that closes nothing may leave its block open
        leaves_open = "\n" in fill and not balance(part.line_prefix + fill, self.language).strays
        return closing >= end and not leaves_open and not self.language.has_macros

    def strands_block(self, fill: str) -> bool:
        """True if the next line is deeper than the fill's last line, which opens no block. Grammars accept that.

        False inside brackets and strings.
        """
        opener = self.language.indents
        if not opener or self.excerpt.line_rest.strip():
            return False
        following = next((line for line in self.excerpt.with_fill(fill).below.split("\n") if line.strip()), "")
        if not following:
            return False
        left = balance(self.excerpt.above + self.excerpt.line_prefix + fill, self.language)
        if left.closers or left.quote:
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
            yield self._closed(fill, len(closers))
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

    def _closed(self, fill: str, num: int) -> str:
        """The fill with its `num` innermost brackets closed: on lines of their own where a block was opened."""
        text = self.excerpt.line_prefix + fill
        shown = fill.rstrip()
        left = balance(text, self.language)
        for closer, opening in zip(left.closers[:num], left.openings, strict=False):
            rest, _, below = text[opening + 1 :].partition("\n")
            is_block = self.language.block_end is not None and not rest.strip() and bool(below.strip())
            line = text[text.rfind("\n", 0, opening) + 1 :]
            shown += f"\n{indentation_of(line)}{closer}" if is_block else closer
        return shown

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
        left = balance(line, self.language)
        line += left.quote + left.closers
        is_line = "\n" not in fill
        part = self._gap
        endings = [ending.replace("{indentation}", indentation_of(line)) for ending in self.language.endings]
        if is_line:
            endings += (f"\n{indentation_of(line)}{end}" for end in self.language.block_ends)
        closers = part.unclosed(fill)
        texts = [line + ending + unclosed for unclosed in dict.fromkeys(("", closers)) for ending in endings]
        return any(self._is_valid(text if alone else part.without_line().text(text)) for text in texts)

    def num_errors(self, fill: str) -> int:
        """Number of syntax errors of the text with `fill` at the cursor."""
        return len(self._errors(self.excerpt.with_fill(fill).text(fill)))

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
        if self.excerpt.line_prefix.strip() or (self.excerpt.line_rest.strip() and not old.endswith("\n")):
            return False
        if balance(self.excerpt.above, self.language).closers:
            return False
        roots = [self.parser.root(dedent(self.excerpt.line_prefix + text)) for text in (old, new)]
        return [root is not None and _is_hollow(root) for root in roots] == [False, True]

    def _is_valid(self, text: str) -> bool:
        """True if `text` has no error; faster than `_errors`, which counts them."""
        if text not in self.errors_of and text not in self.valid:
            self.valid[text] = not self.parser.has_error(text)
        return not self.errors_of[text] if text in self.errors_of else self.valid[text]

    def _errors(self, text: str) -> list[Node]:
        if text not in self.errors_of:
            root = self.parser.root(text)
            self.errors_of[text] = list(errors_in(root)) if root is not None else []
        return self.errors_of[text]


def _distant(errors: Sequence[Node], excerpt: Excerpt, fill: str) -> set[tuple[str, int]]:
    """The errors that are not near the lines of the fill: their types and distances from it, in bytes."""
    first = excerpt.before.count("\n")
    start = len(excerpt.before.encode())
    last = first + fill.count("\n")
    end = start + len(fill.encode())
    above = {(node.type, node.start_byte - start) for node in errors if node.end_point.row < first - NEAR}
    return above | {(node.type, node.start_byte - end) for node in errors if node.start_point.row > last + NEAR}


def _is_hollow(block: Node) -> bool:
    """True if no statement of the block does something."""
    statements = (node for node in block.named_children if "comment" not in node.type)
    # an expression alone; `"a",` has two children
    only = (
        node.child(0) if node.type == "expression_statement" and node.child_count == 1 else node for node in statements
    )
    return all(node is not None and node.type in _NO_EFFECT for node in only)
