"""The training corpus: Python files from pinned wheels and the standard library, without duplicates and benchmark text.

MinHash finds two versions of one file; repeated lines find files that were assembled from several others.
"""

import functools
import gzip
import hashlib
import json
import platform
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from email.parser import HeaderParser
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

from dg_lsp.training.store import SPLITS, CorpusFile, tokenize_splits, write_texts
from dg_lsp.training.tokenizer import SPECIAL_TOKENS, tokenizer_from_gguf, train_tokenizer

Hashes = npt.NDArray[np.uint64]
Signature = npt.NDArray[np.uint32]

PACKAGES = Path(__file__).with_name("packages.toml")
STDLIB = "stdlib"
MAX_PACKAGE_CHARS = 10_000_000
NUM_DOWNLOADS = 4  # at the same time
TOKENIZER_STRIDE = 3  # the tokenizer is trained on every third file; more files do not change it

NOT_CODE = re.compile(
    r"(^|/)(_?vendor(ed|s)?|_?extern(al|s)?|third_party|thirdparty|packages|tests?|testing|testsuite|test_?data|"
    r"fixtures?|snapshots|_?generated|build/lib|locales?|locale-data|"
    r"idlelib|lib2to3|site-packages|__pycache__|data|conf/locale|unicode\d*|cjk\w*|encodings|migrations|"
    r"pydoc_data|ensurepip|turtledemo|lexers/_\w+|_mapping|_pb2|_pb2_grpc)(/|\.py$)"
    r"|(^|/)(test_\w+|\w+_tests?|conftest|_version|\w+_pb2|\w+_pb2_grpc)\.py$"
)
BENCHMARK_NAME = re.compile(r"(?i)human[-_ ]?eval|\bmbpp\b|has_close_elements")
GENERATED = re.compile(r"(?i)auto[- ]?generated|generated (by|from|file)|do not edit|this file was generated|stainless")
SECRET = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY|\bA(?:KIA|SIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{50,}"
    r"|\bglpat-[\w-]{20}|\bsk-[A-Za-z0-9]{32,}|\bsk-(?:ant|proj)-[\w-]{32,}|\b[sr]k_live_[0-9A-Za-z]{20,}"
    r"|\bxox[abprs]-[0-9A-Za-z-]{20,}|hooks\.slack\.com/services/T\w{8,}/|\beyJ[\w-]{20,}\.eyJ[\w-]{20,}"
    r"|\bAIza[\w-]{35}\b|\bya29\.[\w-]{40,}|\bhf_[A-Za-z]{34}\b|\bnpm_[A-Za-z0-9]{36}\b|\bpypi-AgE[\w-]{50,}"
    r"|\bSG\.[\w-]{22}\.[\w-]{43}\b|\bAccountKey=[A-Za-z0-9+/]{60,}"
    # a long value of letters and digits that is assigned to the name of a secret
    r"|(?i:secret|token|passw(?:or)?d|api_?key|access_?key)\w*[\"']?\s*[:=]\s*[\"']"
    r"(?=[A-Za-z+/_-]*\d)(?=[\d+/_-]*[A-Za-z])[A-Za-z0-9+/_-]{32,}={0,2}[\"']"
)
MIN_CHARS, MAX_CHARS = 200, 200_000
MAX_LINE, MAX_MEAN_LINE = 400, 80  # characters; longer lines: minified code or a data table
MAX_DIGITS, MAX_NON_ASCII = 0.12, 0.03  # shares of the characters

ALLOWED_LICENCE = re.compile(
    r"(?i)\b(mit(-0|-cmu)?|expat|bsd|0bsd|bsd[- ][0-9]-clause|[0-9]-clause bsd|apache|asl|psf|python-2\.0|"
    r"python software foundation|isc|iscl|zlib|unlicense|hpnd|historical permission notice|cc0|boost|bsl-1\.0)\b"
)
REFUSED_LICENCE = re.compile(
    r"(?i)\b[al]?gpl|general public|\bmpl\b|mozilla|\beupl|\bepl\b|eclipse|\bcddl|\bcecill|\bosl\b|affero|"
    r"proprietary|commercial|\bcc-by-(nc|sa)|business source|\bsspl|elastic license|all rights reserved"
)

WORD = re.compile(r"\w+")
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that the hash of an n-gram depends on the order of its words
NUM_MINHASHES = 128
MINHASH_NGRAM = 5  # words
MIN_SIMILARITY = 0.7  # estimated Jaccard similarity from which two files are near duplicates
MAX_REPEATED_LINES = 0.5  # share of a file's distinct lines that are also in earlier files
MIN_LINE_CHARS = 12  # shorter lines ("else:", "return x") are no evidence of copying
NEW_MINHASH = functools.partial(MinHash, NUM_MINHASHES, scheme="affine32", hashfunc=int)
PERMUTATIONS = NEW_MINHASH().permutations

BENCHMARK_HASHES = Path(__file__).with_name("benchmarks.bin")
"""Little-endian 64-bit hashes of the benchmarks' n-grams, ascending, without their text; see `write_benchmarks`."""
BENCHMARK_NGRAM = 10  # words
MIN_DISTINCT_NAMES = 4  # an n-gram with fewer names is a row of numbers or a bare loop


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel, or the folder of the standard library, with the licence that its metadata states."""

    name: str
    version: str
    licence: str
    path: Path

    def sources(self) -> Iterator[tuple[str, bytes]]:
        """Relative path and content of each Python file."""
        if self.path.is_dir():
            for path in sorted(self.path.rglob("*.py")):
                yield path.relative_to(self.path).as_posix(), path.read_bytes()
            return
        with zipfile.ZipFile(self.path) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py"):
                    yield name, archive.read(name)


def read_package_list(path: Path = PACKAGES) -> tuple[dict[str, str], frozenset[str]]:
    """The content of packages.toml: exact versions, and the packages of the validation split."""
    table = tomllib.loads(path.read_text())
    return dict(table["versions"]), frozenset(table["held_out"])


def download(versions: Mapping[str, str], folder: Path) -> list[str]:
    """Download the wheels that `folder` lacks with pip. Returns the packages that are not available."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {(wheel.name, wheel.version) for wheel in read_wheels(folder)}
    missing = [item for item in versions.items() if item not in present]

    def run_pip(item: tuple[str, str]) -> int:
        command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(folder), "==".join(item)]
        return subprocess.run(command, capture_output=True, check=False).returncode

    with ThreadPoolExecutor(NUM_DOWNLOADS) as pool:
        return [name for (name, _), code in zip(missing, pool.map(run_pip, missing), strict=True) if code]


def read_wheels(folder: Path) -> list[Package]:
    """Every wheel in `folder`, by file name."""
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(path) as archive:
            # a wheel may also carry the metadata of vendored packages, with longer paths
            names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA") and n.count("/") == 1]
            metadata = archive.read(min(names, key=len)).decode("utf-8", "replace") if names else ""
        name, version = path.name.split("-")[:2]
        wheels.append(Package(name.lower().replace("_", "-"), version, stated_licence(metadata), path))
    return wheels


def standard_library() -> Package:
    """The standard library of the running interpreter."""
    return Package(STDLIB, platform.python_version(), "PSF-2.0", Path(sysconfig.get_paths()["stdlib"]))


def stated_licence(metadata: str) -> str:
    """The licence in a METADATA file: License-Expression, else the classifiers, else the first line of License."""
    headers = HeaderParser().parsestr(metadata)
    if expression := headers.get("License-Expression"):
        return str(expression).strip()
    classifiers = [str(c) for c in headers.get_all("Classifier") or []]
    found = [c.split("::")[-1].strip() for c in classifiers if c.startswith("License ::")]
    if found := [c for c in found if c != "OSI Approved"]:
        return " AND ".join(found)
    lines = [line.strip() for line in str(headers.get("License") or "").splitlines() if line.strip()]
    return lines[0][:120] if lines else ""


def is_allowed(licence: str) -> bool:
    """True for permissive licences. False for copyleft, unknown and missing ones."""
    return bool(ALLOWED_LICENCE.search(licence)) and not REFUSED_LICENCE.search(licence)


def is_code_path(path: str) -> bool:
    """False for the paths of tests, vendored copies, generated files, locale tables and benchmarks."""
    return not (NOT_CODE.search(path) or BENCHMARK_NAME.search(path))


def decode(raw: bytes) -> str | None:
    """The normalized text of a file, see `CorpusFile`; None if it is not UTF-8."""
    try:
        text = raw.decode("utf-8").lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n").expandtabs(4)
    except UnicodeDecodeError:
        return None
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n") + "\n"


def rejection_reason(text: str) -> str | None:
    """Why a text is not suitable for training, in one word, or None."""
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        return "size"
    lines = text.split("\n")
    if GENERATED.search(text[:1000]):
        return "generated"
    if BENCHMARK_NAME.search(text):
        return "benchmark"
    if SECRET.search(text):
        return "secret"
    if max(map(len, lines)) > MAX_LINE or len(text) / len(lines) > MAX_MEAN_LINE:
        return "minified"
    digits = sum(map(text.count, "0123456789"))
    non_ascii = len(text) - len(text.encode("ascii", "ignore"))
    if digits > MAX_DIGITS * len(text) or non_ascii > MAX_NON_ASCII * len(text):
        return "data"
    return "special" if any(special in text for special in SPECIAL_TOKENS) else None


def filter_files(package: Package) -> tuple[list[tuple[CorpusFile, Signature]], Counter[str]]:
    """The suitable files of a package with their MinHash signatures, and the reasons of the others."""
    counts, kept, benchmark = Counter[str](), [], read_benchmarks()
    for path, raw in package.sources():
        counts["seen"] += 1
        if not is_code_path(path):
            counts["path"] += 1
        elif (text := decode(raw)) is None:
            counts["encoding"] += 1
        elif reason := rejection_reason(text):
            counts[reason] += 1
        elif num_benchmark_ngrams(words := word_hashes(text), benchmark):
            counts["benchmark text"] += 1
        else:
            kept.append((CorpusFile(package.name, path, text), minhash(words)))
    return kept, counts


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
    found = NEW_MINHASH(permutations=PERMUTATIONS)
    found.update_batch(np.unique(ngram_hashes(words, min(MINHASH_NGRAM, max(1, len(words)))) >> np.uint64(32)))
    return np.asarray(found.hashvalues, np.uint32)


def num_benchmark_ngrams(words: Hashes, benchmark: frozenset[int]) -> int:
    """Number of distinct 10-grams that a text, given as `word_hashes`, shares with the benchmarks."""
    return len(benchmark.intersection(ngram_hashes(words, BENCHMARK_NGRAM).tolist()))


def write_benchmarks(files: Iterable[Path], path: Path = BENCHMARK_HASHES) -> int:
    """Write the hashes of characteristic 10-grams of benchmark files, and return their number.

    The files are JSON or JSON lines, plain or gzip, in the format of HumanEval-Infilling or MBPP.
    """
    found: set[int] = set()
    for file in files:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        text = raw.decode()
        for row in json.loads(text) if text.startswith("[") else map(json.loads, filter(None, text.splitlines())):
            is_humaneval = "canonical_solution" in row
            keys = ("prompt", "canonical_solution", "suffix") if is_humaneval else ("text", "prompt", "code")
            problem = ("" if is_humaneval else "\n").join(row.get(key, "") for key in keys)
            words = WORD.findall(problem.lower())
            hashes = ngram_hashes(word_hashes(problem), BENCHMARK_NGRAM).tolist()
            found |= {hashed for i, hashed in enumerate(hashes) if _is_characteristic(words[i : i + BENCHMARK_NGRAM])}
    np.array(sorted(found), "<u8").tofile(path)
    return len(found)


def _is_characteristic(words: list[str]) -> bool:
    return len({word for word in words if len(word) > 1 and not word.isdigit()}) >= MIN_DISTINCT_NAMES


def read_benchmarks(path: Path = BENCHMARK_HASHES) -> frozenset[int]:
    """Read the file that `write_benchmarks` wrote."""
    return frozenset(np.fromfile(path, "<u8").tolist())


def build_splits(
    packages: list[Package], held_out: frozenset[str], counts: Counter[str], num_processes: int = 0
) -> dict[str, list[CorpusFile]]:
    """The files of each split; 0 processes: one for each core.

    Validation packages are deduplicated first: of a file in both splits, the training copy is dropped.
    """
    found: list[tuple[CorpusFile, Signature]] = []
    with ProcessPoolExecutor(num_processes or None, mp_context=get_context("spawn")) as pool:
        for files, reasons in (map if num_processes == 1 else pool.map)(filter_files, packages):
            found += files
            counts.update(reasons)
    found.sort(key=lambda item: (item[0].package not in held_out, item[0].package, item[0].path))
    distinct = deduplicate(found, counts)
    kept = limit_packages(distinct, MAX_PACKAGE_CHARS)
    counts["package limit"] = len(distinct) - len(kept)
    return {split: [f for f in kept if (f.package in held_out) == (split == "val")] for split in SPLITS}


def deduplicate(files: Iterable[tuple[CorpusFile, Signature]], counts: Counter[str]) -> list[CorpusFile]:
    """The first file of each group of duplicates; `counts` gets the reasons of the others."""
    kept: list[CorpusFile] = []
    digests: set[bytes] = set()
    known_lines: set[int] = set()
    index, signatures = MinHashLSH(threshold=MIN_SIMILARITY, num_perm=NUM_MINHASHES), list[Signature]()
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


def limit_packages(files: Iterable[CorpusFile], max_chars: int) -> list[CorpusFile]:
    """At most `max_chars` of each package, selected by the hash of the path."""
    used: Counter[str] = Counter()
    kept = []
    for file in sorted(files, key=lambda f: hashlib.blake2b(f.path.encode()).digest()):
        if used[file.package] + len(file.text) <= max_chars:
            used[file.package] += len(file.text)
            kept.append(file)
    return sorted(kept, key=lambda f: (f.package, f.path))


def prepare(
    root: Path,
    *,
    packages: Path = PACKAGES,
    tokenizer_source: Path | None = None,
    num_processes: int = 0,
) -> dict[str, Any]:
    """Write the corpus and its tokens under `root`. Returns the manifest, which lists each source with its licence.

    `tokenizer_source` is a GGUF file whose tokenizer is used; without it a new one is trained.
    """
    versions, held_out = read_package_list(packages)
    missing = download(versions, root / "wheels")
    pinned = [w for w in read_wheels(root / "wheels") if versions.get(w.name) == w.version]
    allowed = [*(w for w in pinned if is_allowed(w.licence)), standard_library()]
    counts: Counter[str] = Counter()
    splits = build_splits(allowed, held_out, counts, num_processes)
    sample = (f.text for f in splits["train"][::TOKENIZER_STRIDE])
    tokenizer = tokenizer_from_gguf(tokenizer_source) if tokenizer_source else train_tokenizer(sample)
    tokenizer.save(str(root / "tokenizer.json"))
    for split, files in splits.items():
        write_texts(root / f"{split}.jsonl.xz", files)
    manifest = {
        "sources": [source for split, files in splits.items() for source in _manifest_rows(split, files, allowed)],
        "dropped": dict(counts),
        "tokenizer_sha256": hashlib.sha256((root / "tokenizer.json").read_bytes()).hexdigest(),
        "refused_licences": {w.name: w.licence for w in pinned if not is_allowed(w.licence)},
        "not_available": missing,
        "tokens": tokenize_splits(root),
    }
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _manifest_rows(split: str, files: list[CorpusFile], packages: list[Package]) -> Iterator[dict[str, Any]]:
    for package in sorted(packages, key=lambda p: p.name):
        sizes = [len(f.text.encode()) for f in files if f.package == package.name]
        if sizes:
            row = {"package": package.name, "version": package.version, "licence": package.licence}
            yield {**row, "split": split, "files": len(sizes), "bytes": sum(sizes)}
