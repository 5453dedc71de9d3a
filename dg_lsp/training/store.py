"""The files of the corpus, as compressed text and as arrays of tokens, with code of neighbouring files.

Code of neighbours has the form in which a prompt shows it, see `canvas.fim.snippet_ids`: a comment with the path, then
signatures of what a file imports; last the path of the file itself.
"""

import json
import lzma
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dg_lsp.context.languages import language_of
from dg_lsp.context.tags import ALL, Import, definitions_of, imports_of
from dg_lsp.context.window import shown_path
from dg_lsp.errors import InputFileError
from dg_lsp.training.tokenizer import load_tokenizer

SPLITS = ("train", "val")


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """One file of a package. The text has LF line ends, no tabs, no trailing spaces, and one newline at the end."""

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
MAX_BYTES = 100_000  # of a file that is parsed
PYTHON = "python"


def heading(path: str) -> str:
    """The line that precedes code of a file."""
    return f"{language_of(PYTHON).commented(shown_path(path))}\n"


def contexts_of(texts: Mapping[str, str]) -> list[list[str]]:
    """For each file of a package, given by path: its heading, then signatures of the files that it imports from.

    The file with the most imported names comes first.
    """

    @cache
    def definitions(path: str) -> dict[str, str]:
        return definitions_of(texts[path], PYTHON) if len(texts[path]) <= MAX_BYTES else {}

    def shown(path: str) -> Iterator[str]:
        wanted: dict[str, list[str]] = {}
        for one in imports_of(texts[path], PYTHON):
            if one.name not in ("", ALL):
                for target in _targets(one, path):
                    if target in texts and target != path and one.name in definitions(target):
                        wanted.setdefault(target, []).append(one.name)
                        break
        found = sorted(wanted.items(), key=lambda item: -len(item[1]))[:MAX_FILES]
        for target, names in found:
            lines = "\n".join(definitions(target)[name] for name in names[:MAX_NAMES]).strip("\n")
            yield f"{heading(target)}{lines}\n"

    return [[heading(path), *shown(path)] for path in texts]


def _targets(one: Import, path: str) -> Iterator[str]:
    """Paths that may hold the module of an import."""
    name = one.module.lstrip(".")
    depth, folder = len(one.module) - len(name), ""
    if depth:
        folder = posixpath.dirname(path)
        for _ in range(depth - 1):
            folder = posixpath.dirname(folder)
    module = posixpath.join(folder, name.replace(".", "/")) if name else folder
    yield from (f"{module}.py", f"{module}/__init__.py")


NEWLINE = 10
STARTS = ("token_starts", "char_starts", "line_starts", "chunk_starts", "file_chunks")
PROCESS_FILES = 2000  # files from which on several processes are faster than one
FILES_PER_BATCH = 512  # files tokenized at once; an Encoding takes much more memory than its ids


@dataclass(frozen=True, slots=True)
class TokenStore:
    """Flat arrays over all files of a split.

    tokens (num_tokens,) uint16; chars (num_chars,) uint32 code points; line_chars, line_tokens (num_lines,) uint32:
    where each non-blank line starts in its file; token_starts, char_starts, line_starts (num_files + 1,) int64.

    chunk_tokens uint16, chunk_starts (num_chunks + 1,) int64: code of neighbouring files as a prompt shows it.
    file_chunks (num_files + 1,) int64: the chunks of each file. The first one is the file's own path.
    """

    tokens: npt.NDArray[np.uint16]
    chars: npt.NDArray[np.uint32]
    line_chars: npt.NDArray[np.uint32]
    line_tokens: npt.NDArray[np.uint32]
    token_starts: npt.NDArray[np.int64]
    char_starts: npt.NDArray[np.int64]
    line_starts: npt.NDArray[np.int64]
    chunk_tokens: npt.NDArray[np.uint16]
    chunk_starts: npt.NDArray[np.int64]
    file_chunks: npt.NDArray[np.int64]

    @property
    def num_lines(self) -> int:
        """Number of non-blank lines."""
        return len(self.line_chars)

    def file_of_line(self, line: int) -> int:
        """Index of the file that contains a line."""
        return int(np.searchsorted(self.line_starts, line, side="right")) - 1


def build_store(texts: Sequence[str], tokenizer: Tokenizer, contexts: Sequence[Sequence[str]] = ()) -> TokenStore:
    """Tokenize every file, and its chunks as `contexts_of` returns them."""
    chunks = [chunk for context in contexts for chunk in context]
    chunk_ids = [np.array(ids, np.uint16) for ids in _encoded(chunks, tokenizer)]
    lengths = [len(context) for context in contexts] or [0] * len(texts)
    tokens, chars, line_chars, line_tokens = [], [], [], []
    batches = (texts[i : i + FILES_PER_BATCH] for i in range(0, len(texts), FILES_PER_BATCH))
    encodings = (e for batch in batches for e in tokenizer.encode_batch(batch, add_special_tokens=False))
    for text, encoding in zip(texts, encodings, strict=True):
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        token_offsets = np.array([offset[0] for offset in encoding.offsets], np.uint32)
        is_line_start = np.concatenate([[True], points[:-1] == NEWLINE])[: len(points)]
        starts = np.flatnonzero(is_line_start & (points != NEWLINE))
        token = np.searchsorted(token_offsets, starts)
        is_boundary = token_offsets[np.minimum(token, len(token_offsets) - 1)] == starts
        tokens.append(np.array(encoding.ids, np.uint16))
        chars.append(points)
        line_chars.append(starts[is_boundary].astype(np.uint32))
        line_tokens.append(token[is_boundary].astype(np.uint32))
    parts = (tokens, chars, line_chars, line_tokens)
    starts_of = [np.cumsum([0, *map(len, part)], dtype=np.int64) for part in parts[:3]]
    chunk_starts, file_chunks = (np.cumsum([0, *sizes], dtype=np.int64) for sizes in (map(len, chunk_ids), lengths))
    chunk_tokens = np.concatenate([*chunk_ids, np.empty(0, np.uint16)])
    return TokenStore(*map(np.concatenate, parts), *starts_of, chunk_tokens, chunk_starts, file_chunks)  # type: ignore[arg-type, call-arg]


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def join_stores(stores: Sequence[TokenStore]) -> TokenStore:
    """The files of several stores in one."""

    def joined(name: str) -> npt.NDArray[Any]:
        arrays = [getattr(store, name) for store in stores]
        if name not in STARTS:
            return np.concatenate(arrays)
        ends = np.cumsum([0, *(array[-1] for array in arrays)])
        return np.concatenate([[0], *(array[1:] + end for array, end in zip(arrays, ends[:-1], strict=True))])

    return TokenStore(**{field.name: joined(field.name) for field in fields(TokenStore)})


def write_store(folder: Path, store: TokenStore) -> None:
    """Write one .npy file per array, so that several processes can map them."""
    folder.mkdir(parents=True, exist_ok=True)
    for field in fields(store):
        np.save(folder / f"{field.name}.npy", getattr(store, field.name))


def load_store(folder: Path) -> TokenStore:
    """Memory-map the arrays in `folder`."""
    return TokenStore(**{f.name: np.load(folder / f"{f.name}.npy", mmap_mode="r") for f in fields(TokenStore)})


def tokenize_splits(root: Path, num_processes: int = 0, *, texts: Path | None = None) -> dict[str, int]:
    """Tokenize the texts of each split in `root`, or in `texts`; 0 processes: one for each core.

    Returns the numbers of tokens.
    """
    path, num_tokens = root / "tokenizer.json", {}
    load_tokenizer(path)  # an error is raised here, not in a process
    for split in SPLITS:
        files = read_texts((texts or root) / f"{split}.jsonl.xz")
        packages = [list(group) for _, group in groupby(files, key=lambda file: file.package)]
        tasks = [(path, package) for package in packages]
        if len(files) < PROCESS_FILES or num_processes == 1:
            stores = [_package_store(task) for task in tasks]
        else:
            with ProcessPoolExecutor(num_processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
                stores = list(pool.map(_package_store, tasks))
        store = join_stores(stores)
        write_store(root / split, store)
        num_tokens[split] = len(store.tokens)
    return num_tokens


def _package_store(task: tuple[Path, list[CorpusFile]]) -> TokenStore:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    path, files = task
    contexts = contexts_of({file.path: file.text for file in files})
    return build_store([file.text for file in files], load_tokenizer(path), contexts)
