"""Test cases in the HumanEval-Infilling format."""

import gzip
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dg_lsp.context.document import Cursor, Snapshot
from dg_lsp.context.languages import PLAIN_TEXT, language_id_of
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
    cases: dict[str, TestCase] = {}
    for number, line in enumerate(_read_text(path).split("\n"), 1):
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

    Raises:
        InputFileError: the file cannot be written.
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


def _read_text(path: Path) -> str:
    with map_input_errors("read", path):
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP) else data).decode("utf-8")


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
