"""What the benchmarks are known by: hashes of their runs of ten words, never their text. Knows no packages.

`benchmarks.bin` is made by `python -m dg_lsp.training benchmarks FILE...` from the benchmarks' own files.
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from dg_lsp.training.words import WORD, Hashes, WordHashes, runs, word_hashes

HASHES = Path(__file__).with_name("benchmarks.bin")
RUN_WORDS = 10
MIN_DIFFERENT = 4  # names in a telling run; fewer: "0 1 2 3 4", or "for i in range n for j in range n"
MAX_HITS = 0  # telling runs a file may share
BYTES = np.dtype("<u8")


def read_problems(path: Path) -> list[str]:
    """The texts of a benchmark file, plain or gzip, one JSON object a line or one JSON list.

    HumanEval-Infilling gives `prompt`, `canonical_solution`, `suffix`; MBPP its task (`text` or `prompt`) and `code`.
    """
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode()
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines() if line]
    return [_problem(row) for row in rows]


def _problem(row: dict[str, str]) -> str:
    if "canonical_solution" in row:
        return row["prompt"] + row["canonical_solution"] + row.get("suffix", "")
    return "\n".join(row.get(key, "") for key in ("text", "prompt", "code"))


def run_hashes(problems: Iterable[str]) -> Hashes:
    """(num_runs,), ascending and distinct: every telling run of ten words of the problems."""
    known = WordHashes()
    found = [np.zeros(0, np.uint64)]
    for problem in problems:
        words = WORD.findall(problem.lower())
        hashes = runs(word_hashes(problem, known), RUN_WORDS)
        telling = [_is_telling(words[i : i + RUN_WORDS]) for i in range(len(hashes))]
        found.append(hashes[np.array(telling, bool)])
    return np.unique(np.concatenate(found))


def _is_telling(words: list[str]) -> bool:
    return len({word for word in words if len(word) > 1 and not word.isdigit()}) >= MIN_DIFFERENT


def write_hashes(hashes: Hashes, path: Path = HASHES) -> None:
    """8 bytes each, little endian, ascending."""
    path.write_bytes(hashes.astype(BYTES).tobytes())


def read_hashes(path: Path = HASHES) -> Hashes:
    """What `write_hashes` wrote."""
    return np.frombuffer(path.read_bytes(), BYTES).astype(np.uint64)


def num_hits(words: Hashes, benchmark: Hashes) -> int:
    """How many different runs of ten words a text shares with the benchmarks; `words` as `word_hashes` gives them."""
    hashes = np.unique(runs(words, RUN_WORDS))
    at = np.minimum(np.searchsorted(benchmark, hashes), len(benchmark) - 1)
    return int(np.count_nonzero(benchmark[at] == hashes)) if len(benchmark) else 0
