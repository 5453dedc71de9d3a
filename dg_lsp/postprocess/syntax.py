"""Syntax checks with tree-sitter, whose grammars recover from errors: an unfinished buffer is the normal state.

A fill is kept where it adds no error; where the text around it has errors of its own, the fill's brackets and quotes
decide. Not checked: indentation, names, and errors that a grammar accepts (Python's accepts `print x`), see `cpython`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Self

from tree_sitter import Node

from dg_lsp.context.document import Snapshot, TextStyle, depth_of, indentation_of
from dg_lsp.context.languages import Language, grammar_of, language_of
from dg_lsp.context.syntax_tree import LimitedParser, errors_in
from dg_lsp.postprocess.brackets import OPENER_OF, OPENERS, balance, with_closers
from dg_lsp.postprocess.excerpt import REACH, Excerpt

MAX_SHORTER = 6  # most lines that are removed from the end of a fill to make it valid
MAX_ERRORS = 40  # a text with more is in no known state: the inside of a string, another dialect
NEAR = 10  # lines around a gap in which an error is evidence against the fill
MAX_SECONDS = 0.25  # processor time of all parses of a judgement, which takes a few milliseconds
MAX_FILLERS = 3  # texts that are tried in a gap: each is a parse
_BLOCK = re.compile("block|body|compound")  # part of the names that grammars give to the node of a block
_NO_EFFECT = frozenset(("pass_statement", "empty_statement", "ellipsis", "string", "concatenated_string"))


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
        errors = self._errors(self.excerpt.with_fill(fill).text(fill))
        if not errors:
            return fill
        is_torn = self._is_torn(fill)
        num_known = self._num_known() if self.language.checks_broken else 0
        if not is_torn and self._is_excused(fill, errors, num_known):
            return fill
        versions = (text for text in self._versions(fill) if not (is_torn and self._is_torn(text)))
        if not num_known:
            return next((text for text in versions if self._is_valid(self.excerpt.with_fill(text).text(text))), None)
        return next((text for text in versions if self.num_errors(text) <= num_known), None)

    def _num_known(self) -> int:
        """Number of errors around the gap that a fill may leave: none, if it should complete the line that has them."""
        return 0 if self._is_valid(self._gap.without_line().text("")) else self.num_errors("")

    def _is_excused(self, fill: str, errors: list[Node], num_known: int) -> bool:
        """True if the errors with a fill are no evidence against it.

        Most important in files that are being written, where text is missing that later lines will have.
        """
        if self.language.checks_broken:
            num_before = self.num_errors("")
            is_prose = num_before > MAX_ERRORS  # of a long docstring
            return is_prose or (num_before > 0 and self._can_be_finished(fill, alone=num_known > 0))
        return (
            not self._are_near(errors, fill)
            or self._is_macro(fill)
            or not self._is_known()
            or self._can_be_finished(fill)
        )

    def _are_near(self, errors: Sequence[Node], fill: str) -> bool:
        """True if one of the errors is within `NEAR` lines of the fill."""
        first = self.excerpt.before.count("\n") - NEAR
        last = first + fill.count("\n") + 2 * NEAR
        return any(node.end_point.row >= first and node.start_point.row <= last for node in errors)

    def _is_known(self) -> bool:
        """True if the text around the gap has no error of its own, such as one that a fill leaves where it is."""
        if not self._gap.is_whole:
            return False
        errors = self._errors(self._gap.text(""))
        return not errors or self._is_sound()

    def _is_sound(self) -> bool:
        """True if some text in the gap, or instead of its line, makes the whole valid: other errors are the fill's.

        Otherwise wrong fills would be shown wherever the line of the cursor is unfinished.
        """
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
        """True if errors are no evidence, because the grammar does not know macros, and the brackets fit.

        For C and C++, whose correct lines would be refused below an `#if` or beside a macro.
        """
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


def _is_hollow(block: Node) -> bool:
    """True if no statement of the block does something."""
    statements = (node for node in block.named_children if "comment" not in node.type)
    # an expression alone; `"a",` has two children
    only = (
        node.child(0) if node.type == "expression_statement" and node.child_count == 1 else node for node in statements
    )
    return all(node is not None and node.type in _NO_EFFECT for node in only)
