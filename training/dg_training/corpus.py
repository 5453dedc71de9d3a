"""The training corpus: files of pinned packages in several languages, without duplicates and benchmark text."""

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

from dg_lsp.bench.metrics import grouped
from dg_lsp.system import replacement
from dg_training.filters import (
    DECLARATIONS,
    PYTHON,
    decode,
    is_code_path,
    is_compiled_path,
    is_typescript,
    language_of_file,
    rejection_reason,
)
from dg_training.packages import (
    DEBIAN,
    DEBIAN_SOURCE,
    NPM,
    PACKAGES,
    Package,
    download,
    is_allowed,
    read_package_list,
    read_packages,
    registry_of,
    standard_library,
)
from dg_training.store import SPLITS, CorpusFile, write_texts

MAX_PACKAGE_CHARS = 10_000_000
MAX_LANGUAGE_CHARS = {"typescript": 18_000_000, "declarations": 2_000_000, "javascript": 20_000_000}
MAX_OTHER_CHARS = 4_000_000  # of each other language but Python
MAX_PACKAGE_SHARE = 0.125  # of each other language than Python
REGISTRIES = {PYTHON: ("",), "javascript": (NPM,), "typescript": (NPM,), "c": (DEBIAN, DEBIAN_SOURCE)}
"""Where languages are taken from, if not from everywhere: JavaScript in wheels is a build of another project."""

BENCHMARK_HASHES = Path(__file__).with_name("benchmarks.bin")
"""Little-endian 64-bit hashes of the benchmarks' n-grams, ascending, without their text."""
BENCHMARK_NGRAM = 10  # words

Hashes = npt.NDArray[np.uint64]
Signature = npt.NDArray[np.uint32]

WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the hash of an n-gram depends on the order of its words
NUM_MINHASHES = 128
MINHASH_NGRAM = 5  # words
MIN_SIMILARITY = 0.7  # estimated Jaccard similarity from which two files are near duplicates
MAX_REPEATED_LINES = 0.5  # share of a file's distinct lines that are also in earlier files
MIN_LINE_CHARS = 12  # shorter lines ("else:", "return x") are no evidence of copying
NEW_MINHASH = functools.partial(MinHash, NUM_MINHASHES, scheme="affine32", hashfunc=int)
PERMUTATIONS = NEW_MINHASH().permutations


def filter_files(package: Package) -> tuple[list[tuple[CorpusFile, Signature]], Counter[str]]:
    """The suitable files of a package with their MinHash signatures, and the reasons of the others."""
    counts = Counter[str]()
    kept = []
    benchmark = frozenset(np.fromfile(BENCHMARK_HASHES, "<u8").tolist())
    registry = registry_of(package.name)
    sources = list(package.sources())
    paths = {path for path, _ in sources}
    has_typescript = is_typescript(paths)
    for path, raw in sources:
        language = language_of_file(path, "" if "." in path.rpartition("/")[2] else raw[:200].decode("latin-1"))
        if language is None or registry not in REGISTRIES.get(language, (registry,)):
            continue
        counts["seen"] += 1
        if not is_code_path(path):
            counts["path"] += 1
        elif is_compiled_path(path, paths, has_typescript=has_typescript):
            counts["compiled"] += 1
        elif (text := decode(raw, language)) is None:
            counts["encoding"] += 1
        elif reason := rejection_reason(text, language):
            counts[reason] += 1
        elif benchmark.intersection(ngram_hashes(words := word_hashes(text), BENCHMARK_NGRAM).tolist()):
            counts["benchmark text"] += 1
        else:
            kept.append((CorpusFile(package.name, path, text), minhash(words)))
    return kept, counts


def build_splits(
    packages: list[Package], held_out: frozenset[str], counts: Counter[str], num_processes: int = 0
) -> dict[str, list[CorpusFile]]:
    """The files of each split; 0 processes: one for each core.

    Validation packages are deduplicated first: of a file in both splits, the training copy is dropped.
    """
    filtered: list[tuple[CorpusFile, Signature]] = []
    with ProcessPoolExecutor(num_processes or None, mp_context=get_context("spawn")) as pool:
        for files, reasons in (map if num_processes == 1 else pool.map)(filter_files, packages):
            filtered += files
            counts.update(reasons)
    filtered.sort(key=lambda item: (item[0].package not in held_out, item[0].package, item[0].path))
    distinct = deduplicate(filtered, counts)
    splits = {split: [f for f in distinct if (f.package in held_out) == (split == "val")] for split in SPLITS}
    splits["train"] = limit_languages(splits["train"])
    counts["limit"] = len(distinct) - sum(map(len, splits.values()))
    return splits


def limit_languages(files: Iterable[CorpusFile]) -> list[CorpusFile]:
    """The files within the limits of each language: small packages stay whole, of large ones a part is kept."""
    by_language = grouped(files, lambda f: "declarations" if DECLARATIONS.search(f.path) else _language(f))
    kept = limit_packages(by_language.pop(PYTHON, []), MAX_PACKAGE_CHARS)
    for language, language_files in by_language.items():
        total = MAX_LANGUAGE_CHARS.get(language, MAX_OTHER_CHARS)
        sizes = Counter[str]()
        for file in language_files:
            sizes[file.package] += len(file.text)
        kept += limit_packages(language_files, equal_limit(sizes.values(), total, int(MAX_PACKAGE_SHARE * total)))
    return sorted(kept, key=lambda f: (f.package, f.path))


def equal_limit(sizes: Iterable[int], total: int, limit: int) -> int:
    """The limit of each size, at most `limit`, with which their sum is at most `total`."""
    ascending = sorted(min(size, limit) for size in sizes)
    for i, size in enumerate(ascending):
        num_larger = len(ascending) - i
        if size * num_larger > total:
            return total // num_larger
        total -= size
    return limit


def limit_packages(files: Iterable[CorpusFile], max_chars: int) -> list[CorpusFile]:
    """At most `max_chars` of each package, selected by the hash of the path."""
    used: Counter[str] = Counter()
    kept = []
    for file in sorted(files, key=lambda f: hashlib.blake2b(f.path.encode()).digest()):
        if used[file.package] + len(file.text) <= max_chars:
            used[file.package] += len(file.text)
            kept.append(file)
    return sorted(kept, key=lambda f: (f.package, f.path))


def prepare(root: Path, *, packages: Path = PACKAGES, num_processes: int = 0) -> dict[str, Any]:
    """Write the corpus as text under `root`. Returns the manifest, which lists each source with its licence.

    This makes no tokenizer and no tokens.
    """
    versions, held_out = read_package_list(packages)
    missing = download(versions, root)
    pinned = read_packages(versions, root)
    allowed = [*(package for package in pinned if is_allowed(package.licence)), standard_library()]
    counts: Counter[str] = Counter()
    splits = build_splits(allowed, held_out, counts, num_processes)
    for split, files in splits.items():
        with replacement(root / f"{split}.jsonl.xz") as path:
            write_texts(path, files)
    manifest = {
        "sources": [source for split, files in splits.items() for source in _manifest_rows(split, files, allowed)],
        "languages": {split: _language_sizes(files) for split, files in splits.items()},
        "dropped": dict(counts),
        "refused_licences": {p.name: p.licence for p in pinned if not is_allowed(p.licence)},
        "not_available": missing,
    }
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _language(file: CorpusFile) -> str:
    return language_of_file(file.path, file.text) or ""


def _language_sizes(files: list[CorpusFile]) -> dict[str, dict[str, int]]:
    return {
        language: {"files": len(group), "characters": sum(len(file.text) for file in group)}
        for language, group in sorted(grouped(files, _language).items())
    }


def _manifest_rows(split: str, files: list[CorpusFile], packages: list[Package]) -> Iterator[dict[str, Any]]:
    by_package = grouped(files, lambda file: file.package)
    for package in sorted(packages, key=lambda package: package.name):
        if group := by_package.get(package.name):
            row = {"package": package.name, "version": package.version, "licence": package.licence, "split": split}
            yield {**row, "files": len(group), "bytes": sum(len(file.text.encode()) for file in group)}


# duplicates: MinHash finds two versions of one file; repeated lines find files that were assembled from several others


def word_hashes(text: str) -> Hashes:
    """Hash each word, ignoring case, punctuation and white space; the same in every process. Shape (num_words,)."""
    words = WORD.findall(text.lower())
    return np.fromiter(map(_word_hash, words), np.uint64, len(words))


@functools.lru_cache(maxsize=2_000_000)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def ngram_hashes(words: Hashes, length: int) -> Hashes:
    """Hash every n-gram of `length` words. Shape (max(0, num_words - length + 1),)."""
    num = max(0, len(words) - length + 1)
    total = np.zeros(num, np.uint64)
    for i in range(length if num else 0):
        total = total * FACTOR + words[i : i + num]
    return total


def minhash(words: Hashes) -> Signature:
    """MinHash signature of a text's word 5-grams. Shape (128,)."""
    signature = NEW_MINHASH(permutations=PERMUTATIONS)
    signature.update_batch(np.unique(ngram_hashes(words, min(MINHASH_NGRAM, max(1, len(words)))) >> np.uint64(32)))
    return np.asarray(signature.hashvalues, np.uint32)


def deduplicate(files: Iterable[tuple[CorpusFile, Signature]], counts: Counter[str]) -> list[CorpusFile]:
    """The first file of each group of duplicates; `counts` gets the reasons of the others."""
    kept: list[CorpusFile] = []
    digests: set[bytes] = set()
    known_lines: set[int] = set()
    index = MinHashLSH(threshold=MIN_SIMILARITY, num_perm=NUM_MINHASHES)
    signatures = list[Signature]()
    for file, signature in files:
        digest = hashlib.blake2b(file.text.encode()).digest()
        if digest in digests:
            counts["exact duplicate"] += 1
            continue
        entry = NEW_MINHASH(hashvalues=signature, permutations=PERMUTATIONS)
        if any(np.mean(signatures[i] == signature) >= MIN_SIMILARITY for i in index.query(entry)):
            counts["near duplicate"] += 1
            continue
        index.insert(len(signatures), entry)
        signatures.append(signature)
        lines = {hash(line) for text in file.text.split("\n") if len(line := " ".join(text.split())) >= MIN_LINE_CHARS}
        if len(lines & known_lines) > MAX_REPEATED_LINES * len(lines):
            counts["repeated lines"] += 1
            continue
        digests.add(digest)
        known_lines |= lines
        kept.append(file)
    return kept
