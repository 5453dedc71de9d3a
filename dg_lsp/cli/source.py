"""Source files: locations on the command line, reading, and writing without other changes.

Text keeps its line ends; positions inside are code-point offsets.
"""

import difflib
import io
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.cli.printing import plural
from dg_lsp.context.document import Encoding, LineIndex, Snapshot
from dg_lsp.context.exclusion import repository_around
from dg_lsp.context.languages import language_id_of
from dg_lsp.engine.request import Replacement
from dg_lsp.errors import InputFileError, UsageError, map_input_errors
from dg_lsp.system import replace_file

_BOM = b"\xef\xbb\xbf"
_UNCHANGED = " (it is unchanged)"
_UNUSUAL = re.compile(rb"[\x00-\x1f\x7f\"\\]")
_NUMBER = "([0-9]{1,12})"
_LOCATION = re.compile(f"(.*?)(?::{_NUMBER}(?:-{_NUMBER}|:{_NUMBER})?)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file at the time of reading."""

    path: Path
    data: bytes  # the whole file
    text: str  # decoded, without the byte order mark, line ends as in the file

    @classmethod
    def read(cls, path: Path) -> "SourceFile":
        """Reads UTF-8, with or without a byte order mark.

        Raises InputFileError: missing, no regular file, unreadable, binary or in another encoding.
        """
        with map_input_errors("read", path):
            if path.is_dir():
                raise InputFileError(f"{path} is a directory: name a file in it")
            if not stat.S_ISREG(path.stat().st_mode):
                raise InputFileError(f"{path} is no regular file: save it first and name that file")
            data = path.read_bytes()
            if b"\0" in data:
                raise InputFileError(f"{path} is binary: only text files can be filled")
            return cls(path, data, data.removeprefix(_BOM).decode("utf-8"))

    @property
    def language(self) -> str:
        """LSP language id, from the name of the file or the interpreter in its first line."""
        return language_id_of(self.path.name, self.text)

    def snapshot(self) -> Snapshot:
        """The file as an editor would open it, for the engine."""
        return Snapshot(self.path.absolute().as_uri(), self.text, self.language)

    def offset_at(self, line: int, column: int | None) -> int:
        """Code-point offset of a 1-based line and column, which must exist; without a column the end of the line."""
        lines = LineIndex.of(self.text)
        if not 1 <= line <= lines.num_lines:
            raise UsageError(f"{self.path} has {plural(lines.num_lines, 'line')}: there is no line {line}")
        start, end = lines.span(line - 1)
        if column is None:
            return end
        if not 1 <= column <= end - start + 1:
            problem = f"its last column is {end - start + 1}, not {column}"
            raise UsageError(f"line {line} of {self.path} has {plural(end - start, 'character')}: {problem}")
        return start + column - 1

    def span_of(self, location: "Location") -> tuple[int, int]:
        """The offsets of the lines of a location; without a line those of the whole text."""
        if not location.first:
            return 0, len(self.text)
        return self.offset_at(location.first, 1), self.offset_at(location.last, None)

    def line_of(self, offset: int) -> int:
        """The 1-based number of the line of an offset."""
        return LineIndex.of(self.text).position_at(offset, Encoding.UTF32)[0] + 1

    def check_writable(self) -> None:
        """Raises InputFileError if the file cannot be written; without a write bit it is refused for root too."""
        with map_input_errors("write", self.path, _UNCHANGED):
            target = self.path.resolve(strict=True)
            mode = target.stat().st_mode
        if not os.access(target, os.W_OK) or not mode & 0o222:
            raise InputFileError(f"{self.path} is read-only: nothing was written; change its permissions first")

    def replace(self, edit: Replacement) -> None:
        """Replaces a part of the text and writes the file; all other bytes stay the same.

        Raises InputFileError: no permission, no space, or the file has changed since it was read. It stays unchanged.
        """
        self.check_writable()
        with map_input_errors("write", self.path, _UNCHANGED):
            replace_file(self.path.resolve(strict=True), self.data, self.data_with(edit))

    def data_with(self, edit: Replacement) -> bytes:
        """The bytes of the file with a part of the text replaced; all other bytes are the same."""
        mark = _BOM if self.data.startswith(_BOM) else b""
        return mark + (self.text[: edit.start] + edit.text + self.text[edit.end :]).encode()

    def patch(self, edit: Replacement) -> bytes:
        """A unified diff of the replacement that `git apply` takes. Its path begins at the top of the repository.

        Outside of repositories the path begins at the working directory.
        """
        path, folder = self.path.resolve(), Path.cwd()
        top = repository_around(path) or (folder if path.is_relative_to(folder) else path.parent)
        name = os.fsencode(path.relative_to(top).as_posix())
        old_name, new_name = (_quoted(side + name) for side in (b"a/", b"b/"))
        blank = b"\t" if b" " in name else b""  # ends a name with blanks, as git does
        old, new = (list(io.BytesIO(data)) for data in (self.data, self.data_with(edit)))
        lines = difflib.diff_bytes(difflib.unified_diff, old, new, old_name + blank, new_name + blank, lineterm=b"\n")
        ended = (line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n" for line in lines)
        return b"".join([b"diff --git %s %s\n" % (old_name, new_name), *ended])


def _quoted(name: bytes) -> bytes:
    """The name as git writes it: in quotes with octal escapes if it has control characters, quotes or backslashes."""
    if not _UNUSUAL.search(name):
        return name
    return b'"%s"' % _UNUSUAL.sub(lambda match: b"\\%03o" % match[0][0], name)


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a file as the command line names it. Lines and columns count from 1."""

    path: Path
    first: int  # line; 0 for the whole file
    last: int  # line
    column: int | None


def parse_location(text: str, form: str) -> Location:
    """Reads `FILE`, `FILE:LINE`, `FILE:LINE:COL` or `FILE:FIRST-LAST` from the right: the path may contain colons.

    Raises UsageError: a part is missing or too much in this `form`, a number is 0, or the range is reversed.
    """
    match = _LOCATION.fullmatch(text)
    assert match is not None  # any text is a path
    path, *numbers = match.groups()
    first, last, column = (None if number is None else int(number) for number in numbers)
    if (
        (first is None and "FILE[" not in form)
        or (last is not None and "LAST" not in form)
        or (column is not None and "COL" not in form)
    ):
        raise UsageError(f"{text}: expected {form}, for example samples/shapes.py:12")
    is_reversed = last is not None and last < (first or 0)
    if is_reversed or 0 in (first, last, column):
        raise UsageError(f"{text}: {'LAST is before FIRST' if is_reversed else 'lines and columns start at 1'}")
    return Location(Path(path), first or 0, last or first or 0, column)
