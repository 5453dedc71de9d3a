"""The files of the corpus as compressed text, and the code of neighbouring files.

Code of neighbours has the form in which a prompt shows it, see `canvas.fim.snippet_ids`: a comment with the path, then
signatures of what a file imports; last the path of the file itself.
"""

import json
import lzma
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from dg_lsp.context.languages import language_of
from dg_lsp.context.tags import ALL, Import, definitions_of, imports_of
from dg_lsp.context.window import shown_path
from dg_lsp.errors import InputFileError

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a package.

    The text has LF line ends, no trailing spaces and one newline at the end; Python has no tabs.
    """

    package: str
    path: str
    text: str


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; the file there becomes `path` at the end, so that `path` is whole at any time."""
    partial = path.with_name(path.name + ".partial")
    yield partial
    partial.replace(path)


def read_texts(path: Path) -> list[CorpusFile]:
    """Read the files of one split; InputFileError if it does not exist."""
    if not path.exists():
        raise InputFileError(f"no such file: {path}; `data` makes it, `gpu-day run` unpacks it")
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [CorpusFile(**json.loads(line)) for line in lines]


def write_texts(path: Path, files: list[CorpusFile]) -> None:
    """Write one JSON object a line, compressed by xz."""
    with lzma.open(path, "wt", preset=1, encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(file)) + "\n" for file in files)


MAX_FILES, MAX_NAMES = 12, 12  # shown of one file, as in the editor
MAX_CHARS = 100_000  # of a file that is parsed
MAX_PARSED = 4096  # files whose definitions are kept
PYTHON = "python"


def heading(path: str) -> str:
    """The line that precedes code of a Python file."""
    return f"{language_of(PYTHON).commented(shown_path(path))}\n"


class Neighbours:
    """For a Python file the code that it imports from other files of its package."""

    def __init__(self, files: Iterable[CorpusFile]) -> None:
        self._packages: dict[str, dict[str, str]] = {}
        for file in files:
            if file.path.endswith(".py"):
                self._packages.setdefault(file.package, {})[file.path] = file.text
        self._definitions = lru_cache(MAX_PARSED)(self._parsed)

    def chunks(self, file: CorpusFile) -> list[str]:
        """The file's heading, then signatures of the files that it imports from; empty for other languages.

        The file with the most imported names comes first.
        """
        texts = self._packages.get(file.package, {})
        if file.path not in texts or len(file.text) > MAX_CHARS:
            return []
        wanted: dict[str, list[str]] = {}
        for imported in imports_of(file.text, PYTHON):
            if imported.name not in ("", ALL):
                for target in _targets(imported, file.path):
                    is_other = target in texts and target != file.path
                    if is_other and imported.name in self._definitions(file.package, target):
                        wanted.setdefault(target, []).append(imported.name)
                        break
        chunks = [heading(file.path)]
        for target, names in sorted(wanted.items(), key=lambda item: -len(item[1]))[:MAX_FILES]:
            definitions = self._definitions(file.package, target)
            lines = "\n".join(definitions[name] for name in names[:MAX_NAMES]).strip("\n")
            chunks.append(f"{heading(target)}{lines}\n")
        return chunks

    def _parsed(self, package: str, path: str) -> Mapping[str, str]:
        text = self._packages[package][path]
        return definitions_of(text, PYTHON) if len(text) <= MAX_CHARS else {}


def _targets(imported: Import, path: str) -> Iterator[str]:
    """Paths that may hold the module of an import."""
    name = imported.module.lstrip(".")
    depth, folder = len(imported.module) - len(name), ""
    if depth:
        folder = posixpath.dirname(path)
        for _ in range(depth - 1):
            folder = posixpath.dirname(folder)
    module = posixpath.join(folder, name.replace(".", "/")) if name else folder
    yield from (f"{module}.py", f"{module}/__init__.py")
