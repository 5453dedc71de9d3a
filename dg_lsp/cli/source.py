"""The file being filled: read, pointed into, and replaced without losing a byte.

Knows nothing of models. Text keeps its line ends; positions are code-point offsets into it.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.cli.replace import replace_file
from dg_lsp.context.snapshot import Snapshot
from dg_lsp.errors import InputFileError, PositionError

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(r"\r\n|\n|\r")
"""As LSP counts lines: form feeds and U+2028 end none."""

_PYTHON_SCRIPT = re.compile(r"#![^\r\n]*\bpython")
_LANGUAGES = {".py": "python", ".pyi": "python", ".pyw": "python"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file as it was when it was read."""

    path: Path
    data: bytes
    """The whole file."""
    text: str
    """Decoded, without the byte order mark, line ends as in the file."""

    @classmethod
    def read(cls, path: Path) -> "SourceFile":
        """Reads UTF-8, with or without a byte order mark.

        Raises:
            InputFileError: missing, no regular file, unreadable, binary or in another encoding.
        """
        try:
            if path.is_dir():
                raise InputFileError(f"{path} is a directory: name a file in it")
            if not stat.S_ISREG(path.stat().st_mode):
                raise InputFileError(f"{path} is no regular file: save it first and name that file")
            data = path.read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise InputFileError(_cannot("read", path, error)) from error
        if b"\0" in data:
            raise InputFileError(f"{path} is binary: only text files can be filled")
        try:
            return cls(path, data, data.removeprefix(_BOM).decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputFileError(f"{path} is not UTF-8 (byte {error.start}): convert it first") from error

    @property
    def language(self) -> str:
        """LSP language id from the file's suffix, or from the interpreter that its first line names."""
        if _PYTHON_SCRIPT.match(self.text):
            return "python"
        return _LANGUAGES.get(self.path.suffix.lower(), "plaintext")

    def snapshot(self) -> Snapshot:
        """The text as the engine takes it."""
        return Snapshot(str(self.path), 0, self.text, self.language)

    def offset_at(self, line: int, column: int | None) -> int:
        """Code-point offset of a 1-based line and column; without a column the end of the line.

        Raises:
            PositionError: the file has no such line, or the line no such column.
        """
        starts = [0, *(match.end() for match in _LINE_END.finditer(self.text))]
        if not 1 <= line <= len(starts):
            raise PositionError(f"{self.path} has {_count(len(starts), 'line')}: there is no line {line}")
        start = starts[line - 1]
        end_match = _LINE_END.search(self.text, start)
        end = end_match.start() if end_match else len(self.text)
        if column is None:
            return end
        if not 1 <= column <= end - start + 1:
            raise PositionError(
                f"line {line} of {self.path} has {_count(end - start, 'character')}: "
                f"its last column is {end - start + 1}, not {column}"
            )
        return start + column - 1

    def check_writable(self) -> None:
        """Refuses before any work is spent on a file that could not be written.

        Raises:
            InputFileError: no permission. A file without any write bit is refused for root, too.
        """
        try:
            target = self.path.resolve(strict=True)
            mode = target.stat().st_mode
        except OSError as error:
            raise InputFileError(_cannot("write", self.path, error)) from error
        if not os.access(target, os.W_OK) or not mode & 0o222:
            raise InputFileError(f"{self.path} is read-only: nothing was written; change its permissions first")

    def insert(self, offset: int, text: str) -> None:
        """`replace` of nothing."""
        self.replace(offset, offset, text)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces the file by itself with `text` for a stretch of it; all other bytes stay as they are.

        Raises:
            InputFileError: no permission, no space, or the file changed since it was read. The file is as it was then.
        """
        self.check_writable()
        head = len(self.text[:start].encode()) + (len(_BOM) if self.data.startswith(_BOM) else 0)
        tail = head + len(self.text[start:end].encode())
        data = self.data[:head] + text.encode() + self.data[tail:]
        try:
            replace_file(self.path.resolve(strict=True), self.data, data)
        except OSError as error:
            raise InputFileError(_cannot("write", self.path, error)) from error


def _cannot(verb: str, path: Path, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"no such file: {path}"
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"cannot {verb} {path}: {reason}" + (" (it is unchanged)" if verb == "write" else "")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
