"""The files of the corpus as compressed text."""

import json
import lzma
from dataclasses import asdict, dataclass
from pathlib import Path

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
