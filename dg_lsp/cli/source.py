"""Source files: positions on the command line, reading, and writing without other changes.

Text keeps its line ends; positions inside are code-point offsets.
"""

import contextlib
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from dg_lsp.context.document import LineIndex, Snapshot
from dg_lsp.errors import InputFileError, PositionError, UsageError


def replace_file(path: Path, old: bytes, new: bytes) -> None:
    """Replaces `path` atomically by a temporary file that is flushed to the disk first.

    Mode, owner and extended attributes are kept as far as this user may set them. Hard links keep the old content.
    `path` must not be a symbolic link: the link itself would be replaced.

    Raises:
        InputFileError: the content of the file is not `old` any more.
        OSError: writing failed; the file is unchanged.
    """
    status = path.stat()
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(new)
            file.flush()
            _copy_rights(path, temporary, status)
            os.fsync(file.fileno())
        if path.read_bytes() != old:
            raise InputFileError(f"{path} changed while it was being filled: nothing was written; run it again")
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_directory(path.parent)


def _copy_rights(source: Path, target: Path, status: os.stat_result) -> None:
    """Copies owner, attributes and mode. The owner comes first: changing it clears the set-user-id bits."""
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(target, status.st_uid, status.st_gid)
    if hasattr(os, "listxattr"):
        with contextlib.suppress(OSError):
            for key in os.listxattr(source):
                os.setxattr(target, key, os.getxattr(source, key))
    target.chmod(status.st_mode & 0o7777)


def _sync_directory(directory: Path) -> None:
    """Flushes the rename to the disk, on systems that can open a directory."""
    with contextlib.suppress(OSError):
        number = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


_BOM = b"\xef\xbb\xbf"
_PYTHON_SCRIPT = re.compile(r"#![^\r\n]*\bpython")
_LANGUAGES = {".py": "python", ".pyi": "python", ".pyw": "python"}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A text file at the time of reading."""

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
        """LSP language id, from the suffix of the file or the interpreter in its first line."""
        if _PYTHON_SCRIPT.match(self.text):
            return "python"
        return _LANGUAGES.get(self.path.suffix.lower(), "plaintext")

    def snapshot(self) -> Snapshot:
        """The file as input of the engine."""
        return Snapshot(str(self.path), 0, self.text, self.language)

    def offset_at(self, line: int, column: int | None) -> int:
        """Code-point offset of a 1-based line and column; without a column the end of the line.

        Raises:
            PositionError: there is no such line or column.
        """
        lines = LineIndex.of(self.text)
        if not 1 <= line <= lines.num_lines:
            raise PositionError(f"{self.path} has {_count(lines.num_lines, 'line')}: there is no line {line}")
        start, end = lines.span(line - 1)
        if column is None:
            return end
        if not 1 <= column <= end - start + 1:
            raise PositionError(
                f"line {line} of {self.path} has {_count(end - start, 'character')}: "
                f"its last column is {end - start + 1}, not {column}"
            )
        return start + column - 1

    def check_writable(self) -> None:
        """Checks that the file can be written, before a model is loaded.

        Raises:
            InputFileError: no permission. Files without a write bit are refused for root too.
        """
        try:
            target = self.path.resolve(strict=True)
            mode = target.stat().st_mode
        except OSError as error:
            raise InputFileError(_cannot("write", self.path, error)) from error
        if not os.access(target, os.W_OK) or not mode & 0o222:
            raise InputFileError(f"{self.path} is read-only: nothing was written; change its permissions first")

    def insert(self, offset: int, text: str) -> None:
        """Inserts `text` and writes the file."""
        self.replace(offset, offset, text)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replaces `[start, end)` of the text and writes the file; all other bytes stay the same.

        Raises:
            InputFileError: no permission, no space, or the file has changed since it was read. It stays unchanged.
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


_NUMBER = "[0-9]{1,12}"
_LINES = re.compile(f"(?P<path>.+):(?P<first>{_NUMBER})(?:-(?P<last>{_NUMBER}))?", re.DOTALL)
_BOTH = re.compile(f"(?P<path>.+):(?P<line>{_NUMBER}):(?P<column>{_NUMBER})", re.DOTALL)
_LINE = re.compile(f"(?P<path>.+):(?P<line>{_NUMBER})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Location:
    """A position in a file."""

    path: Path
    line: int
    """Starts at 1."""
    column: int | None = None
    """Starts at 1, in characters; the position is before that character. None is the end of the line."""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Parses `FILE:LINE[:COL]` from the right, so the path may contain colons.

        Raises:
            UsageError: there is no line number.
            PositionError: a line or column is 0.
        """
        both, line = _BOTH.fullmatch(text), _LINE.fullmatch(text)
        if both and line and not _exists(both["path"]) and _exists(line["path"]):
            both = None  # the name of the file ends in a colon and a number
        match = both or line
        if match is None:
            raise UsageError(f"{text}: expected FILE:LINE or FILE:LINE:COL, for example samples/shapes.py:12")
        column = int(match["column"]) if match is both else None
        if int(match["line"]) == 0 or column == 0:
            raise PositionError(f"{text}: lines and columns start at 1")
        return cls(Path(match["path"]), int(match["line"]), column)

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" + ("" if self.column is None else f":{self.column}")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of a file; they start at 1, and both ends are included."""

    path: Path
    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Lines":
        """Parses `FILE:FIRST-LAST` or `FILE:LINE`.

        Raises:
            UsageError: the text has another form.
            PositionError: a line is 0, or the range is reversed.
        """
        match = _LINES.fullmatch(text)
        if match is None:
            raise UsageError(f"{text}: expected FILE:FIRST-LAST, for example samples/shapes.py:12-16")
        first = int(match["first"])
        last = int(match["last"] or first)
        if first == 0 or last < first:
            raise PositionError(f"{text}: lines start at 1, and FIRST is not after LAST")
        return cls(Path(match["path"]), first, last)


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # the name is too long, or the directory is not readable
        return False
