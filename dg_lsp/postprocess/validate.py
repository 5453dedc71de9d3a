"""Turns the output of a model into a candidate for its position in the buffer, or into a rejection with a reason.

Results in Python are also checked with the Python that runs this program: what it accepts of a text, and which names
the text binds. Nothing of a text is executed.
"""

import ast
import builtins
import math
import re
import symtable
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from operator import attrgetter
from textwrap import dedent
from typing import ClassVar, Self, TypeVar

from dg_lsp.context.document import (
    LINE_END,
    Cursor,
    Snapshot,
    TextStyle,
    allowed_lines,
    depth_of,
    indentation_of,
    line_start,
)
from dg_lsp.context.languages import Language, language_of
from dg_lsp.postprocess import text_edits
from dg_lsp.postprocess.brackets import OPENERS, balance
from dg_lsp.postprocess.syntax import MAX_SHORTER, Surroundings

Made = TypeVar("Made")


class Reason(StrEnum):
    """Why a fill is not shown, and what is wrong with it, to be read after `it` or `the result`."""

    problem: str

    def __new__(cls, value: str, problem: str) -> Self:
        """A member, whose value is the word of records."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.problem = problem
        return member

    EMPTY = "empty", "is empty"
    REPEATS_SUFFIX = "repeats-suffix", "repeats the text after the cursor"
    REPEATS_PREFIX = "repeats-prefix", "repeats the lines before the cursor"
    REPEATS_ITSELF = "repeats-itself", "repeats a few words in a loop"
    SYNTAX_ERROR = "syntax-error", "would add a syntax error"
    HOLLOW = "hollow", "has a header without a body, an empty body, or only comments and strings"
    NO_EFFECT = "no-effect", "assigns a variable to itself"
    CLOSERS = "closers", "has only closing brackets"
    LICENCE = "licence", "is a licence header of the training data"
    UNKNOWN_NAME = "unknown-name", "reads a name that nothing binds"  # of a gap in Python
    INDENTATION = "indentation", "would leave the lines below indented too deeply"
    UNCHANGED = "unchanged", "equals the text that it would replace"
    REVERSAL = "reversal", "takes back an edit of the user"
    NOT_TEXT = "not-text", "is not UTF-8, or has control characters"
    LOW_CONFIDENCE = "low-confidence", "has a low probability of being right"
    FAILS_TEST = "fails-test", "does not pass the test"
    UNFINISHED = "unfinished", "was not finished within its time and length"


MISFITS = (Reason.SYNTAX_ERROR, Reason.INDENTATION, Reason.REPEATS_PREFIX, Reason.REPEATS_SUFFIX)
"""Of a fill that does not fit into the code around it, although the model has something to say there."""
MIN_REPEATED = 8  # letters and digits of a line whose repetition is a fault: `0, 0,` and `self.up()` may repeat
MIN_BEGINNING = 0.4
"""Probability of a beginning that is shown in place of an improbable line: half of them are right (docs/models.md)."""
MIN_LETTERS = 3  # letters and digits of such a beginning
NO_ENDS = (*OPENERS, '"', "'", "`")  # an editor closes those that the user types, and not those that are accepted
_EMPTY_STRINGS = ('""""""', "''''''", '""', "''")
_LICENCE = re.compile(
    r"copyright (?:\(c\)|\d)|\(c\) \d{4}|© ?\d|spdx-license|all rights reserved|licensed under|licensed to the"
    r"|permission is hereby granted|redistribution and use|under the terms of|without warrant|general public licen",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"^(?=(.+(?:\n.+)?)\n\1$)", re.MULTILINE)  # before a line, or two, and the same again
_SELF_ASSIGNMENT = re.compile(r"\s*([\w.]+)\s*=\s*\1\s*;?\s*(?:(?:#|//).*)?")
_PHRASE = re.compile(r"\b([^\W\d_]+(?: (?!(?i:and|or)\b)[^\W\d_]+){3,8})\b.{0,20}?\b\1\b|\b([^\W\d_]+)(?: \2){2,}\b")
"""Words that occur twice, or one that occurs three times. Conditions repeat theirs before each `and`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Text to insert at the cursor, in the buffer's own line ends and indentation."""

    text: str
    score: float  # mean log probability per token, in nats; higher is better
    confidence: float = 1.0  # the model's probability that the first line is right; 1 where it is unknown
    fault: Reason | None = None  # why it is not worth showing unasked
    is_cut: bool = False  # the model might go on: a limit, the context or the deadline ended the text
    is_beginning: bool = False  # of an improbable line
    prefixes: tuple[tuple[int, float], ...] = ()
    """Beginnings of the first line by token: number of characters, and the probability that they are right."""

    @property
    def worth(self) -> float:
        """Between mean and sum of the log probabilities, of which one prefers long texts and the other short ones."""
        return self.score * -math.log(max(self.confidence, 1e-9))

    def rest(self, num_typed: int) -> "Candidate":
        """What is left after the user has typed its first characters, with its probability given these."""
        known = min((probability for length, probability in self.prefixes if length <= num_typed), default=1.0) or 1.0
        prefixes = ((length - num_typed, probability / known) for length, probability in self.prefixes)
        return replace(
            self,
            text=self.text[num_typed:],
            confidence=min(1.0, self.confidence / known),
            prefixes=tuple(prefix for prefix in prefixes if prefix[0] > 0),
        )

    def beginning(self, least: float) -> "Candidate | None":
        """The longest beginning of at least this probability; None where it has too few letters, or is on a line below.

        It cuts no word, and does not end with an opening bracket or quote.
        """
        for length, probability in reversed(self.prefixes):
            text = self.text[:length]
            is_whole = text[-1] not in NO_ENDS and not re.fullmatch(r"\w\w", self.text[length - 1 : length + 1])
            if is_whole and probability >= max(least, MIN_BEGINNING):
                is_long = len(re.findall(r"\w", text)) >= MIN_LETTERS and not LINE_END.search(text)
                begun = replace(self, text=text, confidence=probability, is_cut=True, is_beginning=True, prefixes=())
                return begun if is_long else None
        return None


@dataclass(frozen=True, slots=True)
class Rejection:
    """A fill that is not shown."""

    reason: Reason
    text: str = ""
    score: ClassVar = 0.0
    confidence: ClassVar = 0.0


def judge(
    fill: bytes,
    *,
    snapshot: Snapshot,
    offset: int,
    cursor: Cursor,
    max_lines: int | None,
    score: float,
    must_parse: bool = False,
    is_gap: bool = False,
) -> Candidate | Rejection:
    """The candidate for `offset`, or the reason why the fill is not shown.

    `fill` is the decoded text before the end token, `cursor` the lines around `offset`. With `max_lines` None, a line
    with text gets one line and a blank line any number. The candidate has the buffer's line ends and indentation;
    inserting it at `offset` changes nothing else. With `must_parse`, CPython parses a Python buffer with it, if it does
    so with any text there. With `is_gap`, what follows the gap's end is dropped, see `gap_end`.
    """
    text = text_edits.to_text(fill)
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    style = TextStyle.of(snapshot.text, offset)
    to_buffer = partial(style.from_model, line_prefix=cursor.line_prefix)
    cursor = cursor.as_shown()
    language = language_of(snapshot.language)
    max_lines = allowed_lines(cursor) if max_lines is None else max_lines
    if is_gap:
        text = text[: text_edits.gap_end(text, cursor, language)]
    shown = _shaped(text, cursor, max_lines, language)
    if not shown.strip():
        return Rejection(Reason.EMPTY, text)
    if text_edits.is_repetitive(text_edits.cut_lines(text, max_lines)):
        return Rejection(Reason.REPEATS_ITSELF, text)
    joined = _joined(shown, cursor, language)
    if isinstance(joined, Rejection):
        return joined
    valid = _valid_part(joined, cursor, snapshot, offset, style)
    if isinstance(valid, Rejection):
        return valid
    if must_parse and language.id == "python":
        # one more line may follow a header that the user began
        may_lack_body = bool(cursor.line_prefix.strip()) or max_lines == 1
        parsing = keep_parsing(valid, to_buffer, snapshot, offset, may_lack_body=may_lack_body)
        if parsing is None:
            return Rejection(Reason.SYNTAX_ERROR, joined)
        valid = parsing
    return Candidate(to_buffer(valid), score, fault=_fault_of(valid, cursor, language))


def _shaped(text: str, cursor: Cursor, max_lines: int | None, language: Language) -> str:
    """Limits the number of lines, aligns the indentation and trims blanks."""
    first, end, following = text.partition("\n") if cursor.line_prefix.strip() else ("", "", text)
    text = text_edits.drop_leading_blanks(first, cursor, language) + end + text_edits.expand_indentation(following)
    text = text_edits.cut_lines(text_edits.skip_blank_lines(text, cursor), max_lines)
    text = text_edits.cut_loops(text_edits.trim_blanks(text, is_line_end=cursor.is_line_end), language)
    aligned = text_edits.align(text, cursor, language)
    return text_edits.cut_at_margin(aligned, cursor, language) if max_lines is None else aligned


def _joined(shown: str, cursor: Cursor, language: Language) -> str | Rejection:
    """Removes text that the buffer already contains around the cursor."""
    joined = text_edits.drop_below(text_edits.drop_rest(shown, cursor, language), cursor, language)
    joined = text_edits.trim_blanks(joined, is_line_end=cursor.is_line_end)
    if not joined.strip():
        return Rejection(Reason.REPEATS_SUFFIX, shown)
    return Rejection(Reason.REPEATS_PREFIX, shown) if text_edits.repeats_above(joined, cursor, language) else joined


def _valid_part(joined: str, cursor: Cursor, snapshot: Snapshot, offset: int, style: TextStyle) -> str | Rejection:
    """The part of a fill that breaks no tag, adds no syntax error, and leaves no block below without its header."""
    language = language_of(snapshot.language)
    start = max(0, offset - MAX_PARSED)
    breaks_tags = language.has_tags and text_edits.breaks_tags(joined, cursor, snapshot.text[start:offset])
    may_have_elements = language.has_tags or language.id in ("javascript", "typescript", "typescriptreact")
    if breaks_tags or (may_have_elements and text_edits.closes_wrongly(joined, cursor)):
        return Rejection(Reason.SYNTAX_ERROR, joined)
    surroundings = Surroundings.around(snapshot, offset, offset, style)
    if surroundings is None:
        return joined
    valid = surroundings.keep_valid(joined)
    if not valid:
        return Rejection(Reason.SYNTAX_ERROR, joined)
    if surroundings.strands_block(valid):  # a model may go on with a line from below, and with other ones after it
        valid = text_edits.before_line_below(valid, cursor)
        if not valid or surroundings.strands_block(valid):
            return Rejection(Reason.INDENTATION, joined)
    return valid


def rank(
    results: Iterable[Candidate | Rejection], value: Callable[[Candidate], float] = attrgetter("confidence")
) -> tuple[tuple[Candidate, ...], tuple[Rejection, ...]]:
    """Distinct candidates by descending confidence or other value, ties in order; and the rejections.

    Of candidates that differ only in blanks and line ends, the best one is kept.
    """
    verdicts = tuple(results)
    candidates = [verdict for verdict in verdicts if isinstance(verdict, Candidate)]
    distinct: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=value, reverse=True):
        distinct.setdefault("".join(candidate.text.split()), candidate)
    return tuple(distinct.values()), tuple(verdict for verdict in verdicts if isinstance(verdict, Rejection))


def judge_rewrite(
    answer: bytes,
    *,
    snapshot: Snapshot,
    start: int,
    end: int,
    score: float,
    must_fix_errors: bool = False,
    instruction: str = "",
) -> Candidate | Rejection:
    """The replacement of `[start, end)` of the buffer, or the reason why it is refused.

    A selection that ended with a line end still does, and vice versa. The buffer must not have more syntax errors or
    empty blocks than before, and Python that CPython accepted must be accepted; with `must_fix_errors` it must have
    fewer errors, if it had any. A licence header is refused unless the selection or the instruction has one of its
    phrases.
    """
    text = text_edits.to_text(answer, snapshot.text[start:end])
    if text is None:
        return Rejection(Reason.NOT_TEXT)
    if not text.strip():
        return Rejection(Reason.EMPTY, text)
    style = TextStyle.of(snapshot.text, start)
    old, above, below = (
        style.to_model(part) for part in (snapshot.text[start:end], snapshot.text[:start], snapshot.text[end:])
    )
    text = text_edits.without_surroundings(text_edits.expand_indentation(text), old, above, below)
    loops = [text_edits.is_repetitive(part) or text_edits.cut_loops(part) != part for part in (text, old)]
    if loops == [True, False]:
        return Rejection(Reason.REPEATS_ITSELF, text)
    shaped = _with_end_of(old, text_edits.deepen(text, old))
    if shaped == old:
        return Rejection(Reason.UNCHANGED, text)
    if is_licence(shaped) and not is_licence(old) and "licen" not in instruction.lower():
        return Rejection(Reason.LICENCE, text)
    new = style.from_model(shaped, snapshot.text[line_start(snapshot.text, start) : start])
    new = text_edits.with_unchanged_lines(new, shaped, snapshot.text[start:end], old)
    broken = _broken(snapshot, start, end, old, shaped, new, must_fix_errors)
    return Rejection(broken, text) if broken else Candidate(new, score)


def breakage(snapshot: Snapshot, start: int, end: int, new: str) -> Reason | None:
    """What `new`, in the buffer's style, would break in place of `[start, end)`; a name that nothing binds is that too.

    A name that was read before without a binding may be read again.
    """
    style = TextStyle.of(snapshot.text, start)
    text = snapshot.text
    broken = _broken(snapshot, start, end, style.to_model(text[start:end]), style.to_model(new), new)
    if broken is None and snapshot.language == "python":
        unbound = unbound_names(text[:start] + new + text[end:]).intersection(re.findall(r"\w+", new))
        if unbound and not unbound <= unbound_names(text):
            return Reason.UNKNOWN_NAME
    return broken


def _broken(
    snapshot: Snapshot, start: int, end: int, old: str, shaped: str, new: str, must_fix_errors: bool = False
) -> Reason | None:
    """What is wrong with the buffer after a rewrite; `old` and `shaped` are the range in the model's style."""
    surroundings = Surroundings.around(snapshot, start, end, TextStyle.of(snapshot.text, start))
    if surroundings:
        num_old, num_new = surroundings.num_errors(old), surroundings.num_errors(shaped)
        if num_new > num_old or (must_fix_errors and num_new >= num_old > 0):
            return Reason.SYNTAX_ERROR
    first = snapshot.num_before
    if snapshot.language == "python" and _breaks_python(snapshot.alone().text, start - first, end - first, new):
        return Reason.SYNTAX_ERROR
    if surroundings and surroundings.num_hollow(shaped) > surroundings.num_hollow(old):
        return Reason.HOLLOW
    return Reason.HOLLOW if surroundings and surroundings.empties(old, shaped) else None


def _breaks_python(text: str, start: int, end: int, new: str) -> bool:
    """True if CPython accepts less of the buffer than before, or of the range if the buffer was invalid elsewhere."""
    for is_accepted in (compiles, parses):
        if is_accepted(text):
            return not is_accepted(text[:start] + new + text[end:])
    indentation = text[line_start(text, start) : start]
    if indentation != indentation_of(indentation):
        return False
    return [parses(dedent(indentation + body)) for body in (text[start:end], new)] == [True, False]


def _with_end_of(old: str, new: str) -> str:
    """The new text with exactly the trailing line ends of the old one."""
    lines = [line.rstrip() for line in new.rstrip().split("\n")]
    return "\n".join(lines) + old[len(old.rstrip("\n")) :]


def is_licence(text: str) -> bool:
    """True if a phrase of licence headers occurs; training data is full of them."""
    return _LICENCE.search(" ".join(text.split())) is not None


def _fault_of(fill: str, cursor: Cursor, language: Language) -> Reason | None:
    """What hides a candidate from a user who did not ask for it, or None: faults of small models in fills that parse.

    All texts are in the model's style.
    """
    above = "\n".join((*cursor.above, cursor.line_prefix))
    if is_licence(fill) and not is_licence(above):
        return Reason.LICENCE
    if _leaves_block_hollow(fill, cursor, language):
        return Reason.HOLLOW
    completed = (cursor.line_prefix + fill + cursor.line_rest).split("\n")  # lines as they would stand in the buffer
    # inside brackets, `x = x` passes an argument
    is_code = language.landmark is not None
    if is_code and any(map(_SELF_ASSIGNMENT.fullmatch, completed)) and not balance(above, language).closers:
        return Reason.NO_EFFECT
    # closing brackets alone are often right elsewhere than behind an opening one
    before = cursor.line_prefix.rstrip() or cursor.line_above.rstrip()
    if before.endswith(OPENERS) and all(char in ")]} \n" for char in fill):
        return Reason.CLOSERS
    is_phrase = any(map(_PHRASE.search, completed)) and not _PHRASE.search(cursor.line_prefix)
    return Reason.REPEATS_ITSELF if is_phrase or _repeats_lines(fill) else None


def _leaves_block_hollow(fill: str, cursor: Cursor, language: Language) -> bool:
    """True if the whole body of a block is a header without a body, or an empty docstring."""
    if not cursor.is_blank_line or not language.block_header:
        return False
    if "".join(fill.split()) in _EMPTY_STRINGS:
        return True
    header = cursor.line_prefix + fill
    is_body = language.block_header.fullmatch(cursor.line_above) and depth_of(header) > depth_of(cursor.line_above)
    if not is_body or "\n" in fill.strip() or not language.block_header.fullmatch(header):
        return False
    return depth_of(cursor.line_below) <= depth_of(header)


def _repeats_lines(fill: str) -> bool:
    """True for a line that follows its equal, and for a pair of lines that does."""
    lines = "\n".join(line.strip() for line in fill.split("\n") if line.strip())
    return any(sum(map(str.isalnum, pair[1])) >= MIN_REPEATED for pair in _REPEATED.finditer(lines))


# CPython

PYTHON = language_of("python")
MAX_PARSED = 100_000  # characters of a Python file that CPython parses with each fill: they may take 0.1 s a time
_STAR_IMPORT = re.compile(r"\bimport[\s\\(]*\*")
_DYNAMIC = frozenset(("exec", "globals", "locals", "vars", "builtins", "__builtins__", "__import__"))
"""Where one of these is read, names may be bound that no table has."""
_ALWAYS = frozenset(dir(builtins)) | {"WindowsError", "__file__", "__path__", "__cached__", "__annotations__"}
_ALWAYS |= {"__module__", "__qualname__", "__class__"}  # of a class


def compiles(text: str) -> bool:
    """Whether the Python that runs this program compiles `text`, which is not executed."""
    return _made(text, partial(compile, dont_inherit=True)) is not None


def parses(text: str) -> bool:
    """Whether CPython parses `text`: its compiler may refuse it, such as a `return` outside of a function."""
    return _made(text, ast.parse) is not None


def _made(text: str, make: Callable[[str, str, str], Made]) -> Made | None:
    """What this function of CPython makes of a text; None if it does not accept the text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return make(text.removeprefix("\ufeff"), "<buffer>", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a NUL, a lone surrogate, deep nesting
            return None


def keep_parsing(
    fill: str, shown: Callable[[str], str], snapshot: Snapshot, offset: int, *, may_lack_body: bool
) -> str | None:
    """The fill, or its longest beginning of whole lines, with which CPython parses the text; None without one.

    `shown` gives a fill in the style of the text. A header may lack its body with `may_lack_body`. Where no fill makes
    the text parse, because it has an error elsewhere, every fill is kept. A cell of a notebook is a text of its own.
    """
    text = snapshot.alone().text
    before, after = text[: offset - snapshot.num_before], text[offset - snapshot.num_before :]
    if len(text) > MAX_PARSED:
        return fill
    lines = fill.split("\n")
    versions = [fill, *("\n".join(lines[:num]).rstrip() for num in range(len(lines) - 1, 0, -1))]
    for version in versions[: MAX_SHORTER + 1]:
        begun = before + shown(version)
        if version.strip() and (
            parses(begun + after) or (may_lack_body and parses(begun + _missing_body(begun) + after))
        ):
            return version
    return None if _can_parse(before, after) else fill


def _missing_body(text: str) -> str:
    """What a header or decorator at the end of a text lacks."""
    line = text.rsplit("\n", maxsplit=1)[-1]
    indentation = indentation_of(line)
    if line.lstrip().startswith("@"):
        return f"\n{indentation}def _(): pass"
    handler = f"\n{indentation}finally: pass" if line.strip() == "try:" else ""
    return f"\n{indentation} pass{handler}"


@lru_cache(maxsize=2)  # all candidates of a request have the same gap
def _can_parse(before: str, after: str) -> bool:
    """Some text between the two, or in place of the line there, makes the whole parse."""
    whole = balance(before + after, PYTHON)
    closers = whole.quote + whole.closers
    texts = (f"{text}{closers}{end}{whole.openers}" for text in ("", "_") for end in ("", ":"))
    if any(parses(before + text + after) for text in texts):
        return True
    start = line_start(before, len(before))
    above = before[:start] + indentation_of(before[start:])
    below = after[len(LINE_END.split(after, maxsplit=1)[0]) :]
    without_line = balance(above + below, PYTHON)
    ends = without_line.quote + without_line.closers
    # inside brackets no line is needed
    is_inside = bool(ends or balance(above, PYTHON).closers)
    heads = ("_", "") if is_inside else ("pass", "if _:", "try:", "except:", "except: pass", "def _(): pass")
    return any(parses(above + text + ends + below) for text in heads)


def unbound_names(text: str) -> frozenset[str]:
    """Names that a Python text reads where no binding of the module, an enclosing function or the builtins is seen.

    CPython's own symbol tables find them. The order of binding and reading does not matter. None of a text that does
    not parse, and of one whose names cannot be known: with a star import, or code that binds names while it runs.
    """
    module = None if _STAR_IMPORT.search(text) else _made(text, symtable.symtable)
    if module is None:
        return frozenset()
    bound = set(_ALWAYS)
    read = set[str]()
    for table in _tables(module):
        for symbol in table.get_symbols():
            is_of_module = table is module or symbol.is_declared_global()
            if is_of_module and (symbol.is_assigned() or symbol.is_imported() or symbol.is_annotated()):
                bound.add(symbol.get_name())
            if symbol.is_global() and symbol.is_referenced():
                read.add(symbol.get_name())
    return frozenset() if read & _DYNAMIC else frozenset(read - bound)


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    waiting = [table]
    while waiting:
        yield (current := waiting.pop())
        waiting.extend(current.get_children())
