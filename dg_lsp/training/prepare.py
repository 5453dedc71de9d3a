"""Wheels -> clean files -> split by package -> tokenizer -> token arrays, with a manifest of every source."""

import hashlib
import json
import lzma
import platform
import shutil
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from dg_lsp.training.corpus import SourceFile, capped
from dg_lsp.training.duplicates import deduplicate
from dg_lsp.training.licences import is_allowed
from dg_lsp.training.reading import read_sources
from dg_lsp.training.store import build_store, write_store
from dg_lsp.training.tokenizer import load_tokenizer, tokenizer_of, train_tokenizer
from dg_lsp.training.wheels import PACKAGES, STDLIB, Pins, Wheel, fetch, read_pins, read_wheels

MAX_PACKAGE_CHARS = 10_000_000
TOKENIZER_STRIDE = 3  # the tokenizer learns from every third file: more changes nothing but the wait
SPLITS = ("train", "val")
MANIFEST = Path(__file__).with_name("manifest.json")  # the bundled weights' lies beside their card

Manifest = dict[str, object]


@dataclass(frozen=True, slots=True)
class Source:
    """One line of the manifest: `files` and `bytes` count what was kept."""

    package: str
    version: str
    licence: str
    split: str
    files: int
    bytes: int


def read_texts(path: Path) -> list[SourceFile]:
    """The files of one split."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        return [SourceFile(**json.loads(line)) for line in lines]


def write_texts(path: Path, files: list[SourceFile]) -> None:
    """One JSON object a line, xz."""
    with lzma.open(path, "wt", preset=1, encoding="utf-8") as out:
        for file in files:
            out.write(json.dumps(asdict(file)) + "\n")


def build_corpus(
    wheels: list[Wheel], pins: Pins, counts: Counter[str], processes: int = 0
) -> dict[str, list[SourceFile]]:
    """The files of each split. Held-out packages go first, so that of a shared file the training copy is dropped."""
    reads = read_sources(wheels, counts, processes)
    reads.sort(key=lambda r: (r.file.package not in pins.held_out, r.file.package, r.file.path))
    distinct = deduplicate(reads, counts)
    kept = capped(distinct, MAX_PACKAGE_CHARS)
    counts["over the package's share"] = len(distinct) - len(kept)
    return {split: [f for f in kept if (f.package in pins.held_out) == (split == "val")] for split in SPLITS}


def _manifest(splits: dict[str, list[SourceFile]], wheels: list[Wheel], counts: Counter[str]) -> Manifest:
    stated = {wheel.package: (wheel.version, wheel.licence) for wheel in wheels}
    stated[STDLIB] = (platform.python_version(), "PSF-2.0")
    sources = []
    for split, files in splits.items():
        for package in sorted({f.package for f in files}):
            texts = [f.text for f in files if f.package == package]
            version, licence = stated[package]
            source = Source(package, version, licence, split, len(texts), sum(len(t.encode()) for t in texts))
            sources.append(asdict(source))
    return {"sources": sources, "dropped": dict(counts)}


def prepare(
    root: Path,
    *,
    offline: bool = False,
    packages: Path = PACKAGES,
    copy: Path | None = MANIFEST,
    vocabulary: Path | None = None,
    processes: int = 0,
) -> Manifest:
    """Everything `train` needs, under `root`; returns the manifest, which is written there and to `copy`.

    `vocabulary` is a GGUF whose tokenizer is taken over; without it a new one is trained on every third file.
    """
    pins = read_pins(packages)
    missing = [] if offline else fetch(pins, root / "wheels")
    pinned = [w for w in read_wheels(root / "wheels") if pins.versions.get(w.package) == w.version]
    wheels = [w for w in pinned if is_allowed(w.licence)]
    counts: Counter[str] = Counter()
    splits = build_corpus(wheels, pins, counts, processes)
    tokenizer_path = root / "tokenizer.json"
    learned = (f.text for f in splits["train"][::TOKENIZER_STRIDE])
    (tokenizer_of(vocabulary) if vocabulary else train_tokenizer(learned)).save(str(tokenizer_path))
    tokenizer = load_tokenizer(tokenizer_path)
    manifest = _manifest(splits, wheels, counts)
    manifest["tokenizer_sha256"] = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    manifest["refused_licences"] = {w.package: w.licence for w in pinned if not is_allowed(w.licence)}
    manifest["not_available"] = missing
    manifest["tokens"] = {s: write_tokens(root / s, files, tokenizer) for s, files in splits.items()}
    for split, files in splits.items():
        write_texts(root / f"{split}.jsonl.xz", files)
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    if copy:
        shutil.copyfile(root / "manifest.json", copy)
    return manifest


def write_tokens(folder: Path, files: list[SourceFile], tokenizer: Tokenizer) -> int:
    """The token store of one split; returns how many tokens it holds."""
    store = build_store([f.text for f in files], tokenizer, [f.path for f in files])
    write_store(folder, store)
    return len(store.tokens)
