"""Test cases cut out of source files: a place of a text is left out, and the text around it is what a model gets."""

import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dg_lsp.context.document import Snapshot, depth_of
from dg_lsp.context.exclusion import mask_secrets
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
from dg_lsp.context.syntax_tree import whole_line_nodes
from dg_lsp.errors import InputFileError

KINDS = ("line-end", "whole-line", "block")
MIN_CHARS, MAX_CHARS, MAX_LINE = 400, 150_000, 300  # of a file; longer lines are machine-made
MAX_LINES = 10  # of a block
MAX_FILES = 2000  # of a folder are read
MAX_WEIGHT = 400  # lines of a file that count when files are chosen
_TRIES = 50  # places that are looked at for each case
_WORD = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of a known language."""

    path: str  # in its folder, with slashes
    text: str
    language: str  # LSP language id


@dataclass(frozen=True, slots=True)
class Middle:
    """A part of a file, as a model would fill it."""

    prefix: str
    text: str
    suffix: str
    kind: str
    source: Source

    @property
    def id(self) -> str:
        """The place where it starts, and its kind."""
        line = self.prefix.count("\n") + 1
        column = len(self.prefix) - self.prefix.rfind("\n")
        return f"{self.source.path}:{line}:{column}/{self.kind}"

    def problem(self) -> dict[str, str]:
        """The middle as a test case of HumanEval-Infilling, with its kind, path and language."""
        return {
            "task_id": self.id,
            "prompt": self.prefix,
            "suffix": self.suffix,
            "canonical_solution": self.text,
            "kind": self.kind,
            "path": self.source.path,
            "language": self.source.language,
        }


def is_source(text: str) -> bool:
    """True for a text that people write: no binary, no minified file."""
    lines = text.split("\n")
    return not ({"\0", "\ufffd"} & set(text)) and len(lines) > 10 and max(map(len, lines)) <= MAX_LINE


def read_sources(
    folder: Path, languages: Sequence[str], seed: int, is_excluded: Callable[[Snapshot], bool]
) -> list[Source]:
    """The files below a folder in known languages, or in these, each text once. Links are not followed.

    Secrets in a text are masked. Of a large folder, `MAX_FILES` random files that the seed chooses are read.

    Raises:
        InputFileError: the folder does not exist, or has no such file.
    """
    if not folder.is_dir():
        raise InputFileError(f"{folder} is no folder: name one with source files")
    paths = list(_files_in(folder.resolve(), is_excluded))
    random.Random(seed).shuffle(paths)
    sources: dict[str, Source] = {}
    for path in paths:
        source = _read(path, folder.resolve())
        if source is None or source.text in sources or (languages and source.language not in languages):
            continue
        if not is_excluded(Snapshot(path.as_uri(), 0, source.text, source.language)):
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
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or is_excluded(Snapshot(path.as_uri() + "/" * is_folder, 0, "", "")):
            continue
        if is_folder:
            yield from _files_in(path, is_excluded)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _read(path: Path, folder: Path) -> Source | None:
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


def cut(source: Source, rng: random.Random, kind: str, *, by_grammar: bool = False) -> Middle | None:
    """A middle of this kind from a random place of the text; None if the place has none.

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
    return Middle(before, middle, text[len(before) + len(middle) :], kind, source)


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
    is_wanted: Callable[[Middle], bool] = lambda _: True,
) -> Iterator[Middle]:
    """`num` middles of all kinds in turn, from random places; fewer if the files have too few."""
    rng = random.Random(seed)
    num_cut = 0
    weights = [min(source.text.count("\n"), MAX_WEIGHT) for source in sources]
    for _ in range(num * _TRIES):
        if num_cut == num:
            return
        [source] = rng.choices(sources, weights)
        middle = cut(source, rng, KINDS[num_cut % len(KINDS)], by_grammar=by_grammar)
        if middle and is_wanted(middle):
            num_cut += 1
            yield middle


def case_middles(sources: Sequence[Source], num: int, seed: int) -> list[Middle]:
    """Middles for test cases: with a word character, blocks by the grammar; no place and no copy of it comes twice.

    Of blocks that start at one place, such as a body and its first statement, only one is taken: their ids are equal.
    """
    ids = set[str]()
    copies = set[tuple[str, ...]]()

    def is_wanted(middle: Middle) -> bool:
        above = [line.strip() for line in middle.prefix.split("\n")[-3:]]
        if not _WORD.search(middle.text) or (middle.kind == "line-end" and not above[-1]):
            return False
        copy = (middle.kind, *above, middle.text, middle.suffix.lstrip().partition("\n")[0].strip())
        if middle.id in ids or copy in copies:
            return False
        ids.add(middle.id)
        copies.add(copy)
        return True

    return list(cuts(sources, num, seed, by_grammar=True, is_wanted=is_wanted))


def write_cases(middles: Sequence[Middle], path: Path) -> Counter[str]:
    """Writes the test cases as JSON lines; returns how many each language has.

    Raises:
        InputFileError: the file cannot be written.
    """
    try:
        path.write_text("".join(json.dumps(middle.problem()) + "\n" for middle in middles), encoding="utf-8")
    except OSError as error:
        raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error
    return Counter(middle.source.language for middle in middles)
