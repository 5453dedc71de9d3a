"""Test cases: files in the HumanEval-Infilling format, and places that are cut out of source files.

A place of a text is left out, and the text around it is what a model gets.
"""

import gzip
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from dg_lsp.context.document import Cursor, Snapshot, depth_of
from dg_lsp.context.exclusion import mask_secrets
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.syntax_tree import whole_line_nodes
from dg_lsp.errors import InputFileError, map_input_errors

_LINE_END = re.compile(r"\r?\n\Z")
_GZIP = b"\x1f\x8b"
_FORMAT = "the format of HumanEval-Infilling"
_REQUIRED = {"task_id": "id", "prompt": "prefix", "suffix": "suffix", "canonical_solution": "reference"}
_OPTIONAL = ("kind", "test", "entry_point", "path", "language")


@dataclass(frozen=True, slots=True)
class TestCase:
    """One gap to fill."""

    __test__ = False  # not a class for pytest to collect

    id: str
    kind: str  # `line-end`, `whole-line`, `block`, `span`, or the kind that the data names
    prefix: str
    suffix: str
    reference: str
    test: str | None = None  # source of a function `check(candidate)` that raises unless the program is right
    entry_point: str | None = None
    path: str = ""
    language: str = "python"  # LSP language id

    @property
    def snapshot(self) -> Snapshot:
        """The buffer without the reference."""
        return Snapshot(f"file:///{self.path or self.id}", self.prefix + self.suffix, self.language)

    @property
    def offset(self) -> int:
        """Cursor in the snapshot's text, in code points."""
        return len(self.prefix)

    def program(self, fill: str) -> str | None:
        """The completed program with a call of its tests; None for a case without tests."""
        if self.test is None or self.entry_point is None:
            return None
        return f"{self.prefix}{fill}{self.suffix}\n{self.test}\ncheck({self.entry_point})\n"

    def before_last_key(self) -> "TestCase":
        """The same case one typed character earlier."""
        return replace(self, prefix=self.prefix[:-1])


def read_cases(path: Path) -> tuple[TestCase, ...]:
    """Reads a JSONL file, plain or gzip.

    In the data a whole line ends with its line end. The cursor of an editor would stand on a line of its own, so that
    line end moves from the reference to the suffix.

    Raises:
        InputFileError: the file is unreadable or empty, or a line is not a test case; the message has the line number.
    """
    with map_input_errors("read", path):
        data = path.read_bytes()
        text = (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8")
    cases: dict[str, TestCase] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            case = _parse_case(json.loads(line))
            if case.id in cases:
                raise ValueError(f"duplicate task_id {case.id}")
        except (ValueError, TypeError, RecursionError) as error:
            raise InputFileError(f"{path}, line {number}: {error}; expected {_FORMAT}") from error
        cases[case.id] = case
    if not cases:
        raise InputFileError(f"{path} has no test cases: expected one JSON object per line")
    return tuple(cases.values())


def write_cases(cases: Sequence[TestCase], path: Path) -> Counter[str]:
    """Writes test cases without tests as JSON lines; returns how many each language has.

    Raises InputFileError: the file cannot be written.
    """
    names = _REQUIRED | {key: key for key in ("kind", "path", "language")}
    rows = ({key: getattr(case, name) for key, name in names.items()} for case in cases)
    with map_input_errors("write", path):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return Counter(case.language for case in cases)


def sample_cases(cases: Sequence[TestCase], limit: int | None, seed: int) -> tuple[TestCase, ...]:
    """`limit` random cases, or all of them in order. With the same seed a larger sample starts with the smaller one."""
    if limit is None:
        return tuple(cases)
    shuffled = list(cases)
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled[:limit])


def _parse_case(tree: Any) -> TestCase:
    """A test case of the data. Raises ValueError or TypeError with a short reason."""
    if not isinstance(tree, dict):
        raise TypeError("not an object")
    missing = [key for key in _REQUIRED if key not in tree]
    if missing:
        raise ValueError(f"no {missing[0]}")
    names = {**_REQUIRED, **{key: key for key in _OPTIONAL if tree.get(key) is not None}}
    for key in names:
        if not isinstance(tree[key], str):
            raise TypeError(f"{key} is not a string")
    case = TestCase(**{"kind": "", **{name: tree[key] for key, name in names.items()}})
    if "language" not in names and language_id_of(case.path) != PLAIN_TEXT:
        case = replace(case, language=language_id_of(case.path))
    if not case.reference.strip():
        raise ValueError("the canonical_solution is blank")
    if case.prefix[-1:] in ("", "\n") and (line_end := _LINE_END.search(case.reference)):
        case = replace(case, reference=case.reference[: line_end.start()], suffix=line_end[0] + case.suffix)
    return case if case.kind else replace(case, kind=_kind(case))


def _kind(case: TestCase) -> str:
    """The kind by where the reference begins and ends."""
    cursor = Cursor.at(case.snapshot.text, case.offset)
    if cursor.is_blank_line:
        return "block" if "\n" in case.reference.lstrip("\n") else "whole-line"
    return "line-end" if cursor.is_line_end and "\n" not in case.reference else "span"


# source files

KINDS = ("line-end", "whole-line", "block")
MIN_CHARS, MAX_CHARS, MAX_LINE = 400, 150_000, 300  # of a file; longer lines are machine-made
MAX_LINES = 10  # of a block
MAX_FILES = 2000  # of a folder are read
MAX_WEIGHT = 400  # lines of a file that count when files are chosen
_TRIES = 1000  # places that are looked at for one more case
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a known language."""

    path: str  # in its folder, with slashes
    text: str
    language: str  # LSP language id


def is_source(text: str) -> bool:
    """True for a text that people write: no binary, no minified file."""
    lines = text.split("\n")
    return not ({"\0", "\ufffd"} & set(text)) and len(lines) > 10 and max(map(len, lines)) <= MAX_LINE


def read_sources(
    folder: Path, languages: Sequence[str], seed: int, is_excluded: Callable[[Snapshot], bool]
) -> list[Source]:
    """The files below a folder in known languages, or in these, each text once. Links are not followed.

    Secrets in a text are masked. Of a large folder, `MAX_FILES` random files that the seed chooses are read.

    Raises InputFileError: the folder does not exist, or has no such file.
    """
    with map_input_errors("read", folder):
        is_folder = folder.is_dir()
    if not is_folder:
        raise InputFileError(f"{folder} is no folder: name one with source files")
    paths = sorted(_files_in(folder.resolve(), is_excluded))
    random.Random(seed).shuffle(paths)
    sources: dict[str, Source] = {}
    for path in paths:
        source = _read_source(path, folder.resolve())
        if source is None or source.text in sources or (languages and source.language not in languages):
            continue
        if not is_excluded(Snapshot(path.as_uri(), source.text, source.language)):
            sources[source.text] = source
        if len(sources) == MAX_FILES:
            break
    if not sources:
        kinds = ", ".join(languages) or "a known language"
        raise InputFileError(
            f"{folder} has no source file in {kinds} with {MIN_CHARS} to {MAX_CHARS:,} characters that the settings "
            "and .gitignore allow: name another folder or --language"
        )
    return sorted(sources.values(), key=lambda source: source.path)


def _files_in(folder: Path, is_excluded: Callable[[Snapshot], bool]) -> Iterator[Path]:
    def is_wanted(path: Path, end: str = "") -> bool:
        return path.name != ".git" and not is_excluded(Snapshot(path.as_uri() + end, "", ""))

    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if is_wanted(Path(parent, name), "/")]
        paths = (Path(parent, name) for name in files)
        yield from (path for path in paths if not path.is_symlink() and is_wanted(path))


def _read_source(path: Path, folder: Path) -> Source | None:
    """None for a file that is too long, cannot be read, is no UTF-8, in no known language, or written by no human."""
    try:
        if not MIN_CHARS <= path.stat().st_size <= MAX_CHARS:
            return None
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, ValueError):
        return None
    language = language_id_of(path.name, text)
    if language == PLAIN_TEXT or not is_source(text):
        return None
    return Source(path.relative_to(folder).as_posix(), mask_secrets(text), language)


def cut(source: Source, rng: random.Random, kind: str, *, by_grammar: bool = False) -> TestCase | None:
    """A test case of this kind from a random place of the text; None if the place has none.

    Blocks are statements, bodies and lists of the grammar that fill whole lines, or lines at least as deep as the
    first one: where the language has no grammar, and without `by_grammar`.
    """
    text = source.text
    lines = text.split("\n")
    first = rng.randrange(len(lines))
    if kind == "block" and by_grammar and (blocks := grammar_blocks(source)):
        first, last = rng.choice(blocks)
    elif kind == "block":
        last = _end_of_block(lines, first, rng.randint(2, MAX_LINES))
    else:
        last = first
    line = lines[first]
    if not line.strip() or (kind == "block" and last == first):
        return None
    indentation = len(line) - len(line.lstrip())
    start = rng.randrange(indentation, len(line.rstrip())) if kind == "line-end" else indentation
    if not line[start - 1 : start + 1].strip() and start > indentation:
        return None  # inside a run of blanks
    middle = "\n".join([line[start:], *lines[first + 1 : last + 1]]).rstrip()
    before = "\n".join([*lines[:first], line[:start]])
    return TestCase(
        id=f"{source.path}:{first + 1}:{start + 1}/{kind}",
        kind=kind,
        prefix=before,
        suffix=text[len(before) + len(middle) :],
        reference=middle,
        path=source.path,
        language=source.language,
    )


def _end_of_block(lines: Sequence[str], first: int, num: int) -> int:
    """The last of at most `num` lines that are at least as deep as the first one."""
    last = first
    depth = depth_of(lines[first].expandtabs(4))
    while last + 1 < min(len(lines), first + num):
        if lines[last + 1].strip() and depth_of(lines[last + 1].expandtabs(4)) < depth:
            break
        last += 1
    while last > first and not lines[last].strip():
        last -= 1
    return last


@cache
def grammar_blocks(source: Source) -> tuple[tuple[int, int], ...]:
    """First and last line of each node of the grammar that fills 2 to `MAX_LINES` whole lines and is no comment."""
    return tuple(sorted(set(whole_line_nodes(source.text, source.language, MAX_LINES))))


def cuts(
    sources: Sequence[Source],
    num: int,
    seed: int = 0,
    *,
    by_grammar: bool = False,
    is_wanted: Callable[[TestCase], bool] = lambda _: True,
) -> Iterator[TestCase]:
    """`num` test cases of all kinds in turn, from random places; fewer if the files have too few."""
    rng = random.Random(seed)
    num_cut = 0
    num_tries = 0
    weights = [min(source.text.count("\n"), MAX_WEIGHT) for source in sources]
    while num_cut < num and num_tries < _TRIES:
        num_tries += 1
        [source] = rng.choices(sources, weights)
        case = cut(source, rng, KINDS[num_cut % len(KINDS)], by_grammar=by_grammar)
        if case and is_wanted(case):
            num_cut += 1
            num_tries = 0
            yield case


def useful_cases(sources: Sequence[Source], num: int, seed: int) -> list[TestCase]:
    """Test cases with a word character, and blocks by the grammar; no place and no copy of it comes twice.

    Of blocks that start at one place, such as a body and its first statement, only one is taken: their ids are equal.

    Raises InputFileError: the files have no such place.
    """
    ids = set[str]()
    copies = set[tuple[str, ...]]()

    def is_wanted(case: TestCase) -> bool:
        above = [line.strip() for line in case.prefix.split("\n")[-3:]]
        if not _WORD.search(case.reference) or (case.kind == "line-end" and not above[-1]):
            return False
        copy = (case.kind, *above, case.reference, case.suffix.lstrip().partition("\n")[0].strip())
        if case.id in ids or copy in copies:
            return False
        ids.add(case.id)
        copies.add(copy)
        return True

    cases = list(cuts(sources, num, seed, by_grammar=True, is_wanted=is_wanted))
    if not cases:
        raise InputFileError("no place to cut a test case out of: name a folder with other files")
    return cases
