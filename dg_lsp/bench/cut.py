"""Test cases cut out of source files: a place of a text is left out, and the text around it is what a model gets."""

import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dg_lsp.bench.dataset import TestCase
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
    paths = sorted(_files_in(folder.resolve(), is_excluded))
    random.Random(seed).shuffle(paths)
    sources: dict[str, Source] = {}
    for path in paths:
        source = _read(path, folder.resolve())
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
    weights = [min(source.text.count("\n"), MAX_WEIGHT) for source in sources]
    for _ in range(num * _TRIES):
        if num_cut == num:
            return
        [source] = rng.choices(sources, weights)
        case = cut(source, rng, KINDS[num_cut % len(KINDS)], by_grammar=by_grammar)
        if case and is_wanted(case):
            num_cut += 1
            yield case


def useful_cases(sources: Sequence[Source], num: int, seed: int) -> list[TestCase]:
    """Test cases with a word character, and blocks by the grammar; no place and no copy of it comes twice.

    Of blocks that start at one place, such as a body and its first statement, only one is taken: their ids are equal.
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

    return list(cuts(sources, num, seed, by_grammar=True, is_wanted=is_wanted))
