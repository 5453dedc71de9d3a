"""Languages: detection, grammars, comments, strings, and how blocks open and close; the table is languages.toml."""

import importlib.util
import logging
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from dg_lsp.context.document import TAB_WIDTH, Cursor, TextStyle, depth_of, indentation_of
from dg_lsp.errors import with_extra

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar

PLAIN_TEXT = "plaintext"
"""Id of a text in no known language."""
MAX_HEADER = 10_000  # characters of a header that are searched for Objective-C
MAX_FIRST_LINE = 200  # characters of a first line that are searched for an interpreter
_DEEPEST_UNIT = 8  # columns of one indentation level
_INTERPRETER = re.compile(r"#! *(?:\S*/env +(?:-\S+ +)*(?:\w+=\S* +)*)?(?:[^\s/]*/)*([A-Za-z-]+)")
_OBJECTIVE_C = re.compile(r"^(?:#import|@(?:class|import|interface|protocol))\b", re.MULTILINE)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Language:
    """One table of languages.toml, whose head explains all keys; the grammar is loaded when it is first used."""

    id: str = PLAIN_TEXT  # LSP language id
    ids: tuple[str, ...] = ()  # further ids that editors send
    suffixes: tuple[str, ...] = ()  # of file names, without the dot
    names: tuple[str, ...] = ()  # of files
    interpreters: tuple[str, ...] = ()  # in a first line that begins with `#!`
    grammar: str = ""  # importable module, and its function where that is not `language`
    comment: str = ""  # mark of a line comment
    block_comment: tuple[str, ...] = ()  # marks around a comment
    quotes: tuple[str, ...] = ()  # of strings that end on their line
    multiline: tuple[str, ...] = ()  # quotes of strings that may contain line ends
    comment_start: str = ""  # pattern of the mark where it begins a comment in some places only
    has_chars: bool = False  # 'x' is a character, and a single quote opens no string
    has_macros: bool = False  # directives stand at the margin, and what is in a namespace does too
    is_structured: bool = False  # data or markup instead of statements
    has_tags: bool = False  # it consists of tags between < and >
    block_end: re.Pattern[str] | None = None  # matches a line that ends a block
    landmark: re.Pattern[str] | None = None  # None: syntax is not checked
    containers: tuple[tuple[str, str, str], ...] = ()  # group of the landmark, and what opens and closes its container
    last_elements: tuple[tuple[str, str], ...] = ()  # brackets, and an element that may precede each of them
    block_closes: tuple[tuple[str, str], ...] = ()  # patterns of lines, and the words that close their blocks
    block_ends: tuple[str, ...] = ()  # end the block that a line opens without a bracket
    raw_string: str = ""  # pattern of strings that `quotes` do not describe
    checks_broken: bool = False  # fills are checked where the text around them has errors
    fillers: tuple[str, ...] = ("", "a", "a;", "a,")  # one of them makes code with a gap valid
    headers: tuple[str, ...] = ("a() ", "if (a) ")  # the same before brackets that the code after the gap closes
    endings: tuple[str, ...] = ("",)  # complete a valid beginning of a line; `{indentation}` is the line's own
    ends_by_depth: bool = False  # a block has no other end than a line that is less deep
    indents: str = ""  # end of a line that opens an indented block; empty where indentation has no meaning
    block_header: re.Pattern[str] | None = None  # matches a line that opens a block whose end needs no text

    def commented(self, text: str) -> str:
        """One line of text as a comment; empty in a language without comments."""
        if self.comment:
            return f"{self.comment} {text}"
        if not self.block_comment:
            return ""
        start, end = self.block_comment
        return f"{start} {text.replace(end, ' ')} {end}"


_PATTERNS = ("block_end", "landmark", "block_header")


@cache
def _language(language_id: str) -> Language:
    fields: dict[str, Any] = {name: _frozen(value) for name, value in _TABLE[language_id].items()}
    for name in _PATTERNS:
        if name in fields:
            # landmarks are searched in a text, the others match one line
            fields[name] = re.compile(f"^{fields[name]}" if name == "landmark" else fields[name], re.MULTILINE)
    return Language(language_id, **fields)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


PLAIN = Language(quotes=('"',), multiline=("`",))
_TABLE: dict[str, dict[str, Any]] = tomllib.loads(
    (resources.files(__package__) / "languages.toml").read_text(encoding="utf-8")
)
LANGUAGE_IDS = tuple(_TABLE)


def _ids_by(field: str) -> dict[str, str]:
    return {name.lower(): language_id for language_id, row in _TABLE.items() for name in row.get(field, ())}


_BY_ID = _ids_by("ids") | {language_id: language_id for language_id in _TABLE}
_BY_NAME, _BY_SUFFIX, _BY_INTERPRETER = map(_ids_by, ("names", "suffixes", "interpreters"))


def language_of(language_id: str) -> Language:
    """The language with this id; plain text for unknown ids."""
    known_id = _BY_ID.get(language_id.lower())
    return _language(known_id) if known_id else PLAIN


def language_id_of(path: str, text: str = "") -> str:
    """LSP language id from the name of a file, else from the interpreter in the first line of its text.

    A header is one of Objective-C if it begins as such.
    """
    name = re.split(r"[/\\]", path)[-1].lower()
    suffix = name.rpartition(".")[2] if "." in name else ""
    language_id = _BY_NAME.get(name) or _BY_SUFFIX.get(suffix)
    # a suffix before the language, as in Dockerfile.dev
    language_id = language_id or _BY_NAME.get(name.partition(".")[0])
    if suffix == "h" and _OBJECTIVE_C.search(text, 0, MAX_HEADER):
        return "objective-c"
    if language_id is None and (line := _INTERPRETER.match(text[:MAX_FIRST_LINE])):
        language_id = _BY_INTERPRETER.get(line[1].lower())
    return language_id or PLAIN_TEXT


@cache
def grammar_of(grammar: str) -> "Grammar | None":
    """The grammar of a language, cached: grammars are immutable. None without one, or if it is not installed."""
    from tree_sitter import Language as Grammar

    module, _, function = grammar.partition(":")
    if not module:
        return None
    try:
        return Grammar(getattr(importlib.import_module(module), function or "language")())
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: built for another tree-sitter
        wheel = module.replace("_", "-")
        log.warning("%s: syntax is not checked (%s); %s", wheel, error, with_extra("languages"))
        return None


def missing_grammars() -> tuple[str, ...]:
    """Packages with grammars that are not installed."""
    modules = dict.fromkeys(row["grammar"].partition(":")[0] for row in _TABLE.values() if "grammar" in row)
    return tuple(name.replace("_", "-") for name in modules if importlib.util.find_spec(name) is None)


def opening_of(text: str, offset: int, language_id: str) -> str:
    """The line end and indentation that begin the body of the block opened before the cursor, or empty.

    Empty if text follows the cursor, the line opens no block, or the block has a body.
    """
    header = language_of(language_id).block_header
    cursor = Cursor.at(text, offset)
    if not header or not cursor.is_line_end or not header.fullmatch(cursor.line_prefix):
        return ""
    shown = cursor.as_shown()
    depths = [depth_of(line) for line in (*shown.below, *shown.above) if line.strip()]
    if any(line.strip() for line in shown.below) and depths[0] > depth_of(shown.line_prefix):
        return ""
    unit = min((depth for depth in depths if 1 < depth <= _DEEPEST_UNIT), default=TAB_WIDTH)
    style = TextStyle.of(text, offset)
    return style.line_end + indentation_of(cursor.line_prefix) + ("\t" if style.uses_tabs else " " * unit)
