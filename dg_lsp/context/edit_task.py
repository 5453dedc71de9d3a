"""What kind of edit a request is about, so that benchmarks and live records count results by the same tasks."""

import re
from enum import StrEnum
from typing import Self

from dg_lsp.context.document import Cursor, Snapshot, indentation_of, line_start
from dg_lsp.context.languages import Language, language_of
from dg_lsp.context.window import shown_path

_TEST_FILE = re.compile(
    r"(?:^|/)(?:tests?|specs?|__tests__)/|(?:^|/)(?:test_[^/]+|conftest\.py)$|[._-](?:test|tests|spec)\.\w+$"
    r"|[a-z0-9](?:Tests?|Spec)\.\w+$"
)
"""Names of test files in the last parts of a path, by the conventions of pytest, Jest, Go, Ruby and JUnit."""
_UNFINISHED = ("(", "[", "{", ",", "=", "+", "%")
"""Ends of code that a string continues, so that the string is a value and no docstring."""
_BRACKETS = ("(", "[", "{")
_STRING = re.compile(r"""(["'`])(?:\\.|(?!\1)[^\\])*+\1""")


class EditTask(StrEnum):
    """What a request is for. Where several apply to a place, the one that is listed last counts."""

    LINE_END = "line-end"  # the rest of a line with text
    WHOLE_LINE = "whole-line"  # a blank line
    BLOCK = "block"  # a blank line below one that opens a block, which has no line yet
    TEST = "test"  # any place in a test file
    DOCSTRING = "docstring"  # in a comment or a docstring
    STRUCTURED_TEXT = "structured-text"  # any place in a file of data or markup
    REWRITE = "rewrite"  # of a selection or of gaps, without an instruction
    INSTRUCTION = "instruction"  # a rewrite that follows an instruction
    NEXT_EDIT = "next-edit"

    @classmethod
    def at(cls, snapshot: Snapshot, offset: int) -> Self:
        """The task of a completion at a code-point offset."""
        language = language_of(snapshot.language)
        cursor = Cursor.at(snapshot.text, offset)
        if language.is_structured:
            return cls.STRUCTURED_TEXT
        if _is_documentation(snapshot.text, offset, cursor, language):
            return cls.DOCSTRING
        if _TEST_FILE.search(shown_path(snapshot.file_uri)):
            return cls.TEST
        if not cursor.is_blank_line:
            return cls.LINE_END
        return cls.BLOCK if _is_empty_block(cursor, language) else cls.WHOLE_LINE


def _is_documentation(text: str, offset: int, cursor: Cursor, language: Language) -> bool:
    """Whether an offset is in a comment or a docstring, by their marks outside of strings; the text is not parsed."""
    mark = language.comment_start or re.escape(language.comment)
    if mark and _has_mark(cursor.line_prefix, mark, language):
        return True
    if language.block_comment:
        opener, closer = language.block_comment
        start = text.rfind(opener, 0, offset)
        if start > text.rfind(closer, 0, offset):
            line = text[line_start(text, start) : start + len(opener)]
            return _has_mark(line, re.escape(opener), language)
    quote = next((quote for quote in language.multiline if len(quote) > 1 and text.count(quote, 0, offset) % 2), "")
    if not quote:
        return False
    above, _, before = text[: text.rfind(quote, 0, offset)].rpartition("\n")
    return not before.strip(" \trRuUfF") and not above.rstrip().endswith(_UNFINISHED)


def _has_mark(line: str, mark: str, language: Language) -> bool:
    """Whether the mark of a comment is in the code of a line, or of its beginning."""
    code = _STRING.sub("", line)
    match = re.search(mark, code)
    quotes = '"`' if language.has_chars else "\"'`"  # there a single quote may begin a lifetime
    return match is not None and not any(quote in code[: match.start()] for quote in quotes)


def _is_empty_block(cursor: Cursor, language: Language) -> bool:
    openers = (*_BRACKETS, language.indents) if language.indents else _BRACKETS
    is_opened = cursor.line_above.rstrip().endswith(openers)
    return is_opened and len(indentation_of(cursor.line_below)) <= len(indentation_of(cursor.line_above))
