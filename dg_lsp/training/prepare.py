"""Wheels -> clean files -> split by package -> tokenizer -> token arrays, with a manifest of every source."""

import hashlib
import json
import lzma
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from dg_lsp.training.corpus import SourceFile, capped, clean, deduplicate, is_code_path
from dg_lsp.training.licences import is_allowed
from dg_lsp.training.store import build_store, write_store
from dg_lsp.training.tokenizer import load_tokenizer, train_tokenizer
from dg_lsp.training.wheels import (
    PACKAGES,
    STDLIB,
    Pins,
    Wheel,
    fetch,
    read_pins,
    read_wheels,
    stdlib_sources,
    wheel_sources,
)

MAX_PACKAGE_CHARS = 5_000_000
TOKENIZER_STRIDE = 3  # the tokenizer learns from every third file: more changes nothing but the wait
SPLITS = ("train", "val")
MANIFEST = Path(__file__).with_name("manifest.json")  # the bundled model's

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


def _write_texts(path: Path, files: list[SourceFile]) -> None:
    with lzma.open(path, "wt", preset=1, encoding="utf-8") as out:
        for file in files:
            out.write(json.dumps(asdict(file)) + "\n")


def _clean_files(wheels: list[Wheel], counts: Counter[str]) -> Iterator[SourceFile]:
    sources = [(wheel.package, wheel_sources(wheel.path)) for wheel in wheels] + [(STDLIB, stdlib_sources())]
    for package, files in sources:
        for path, raw in files:
            counts["seen"] += 1
            if not is_code_path(path):
                counts["path"] += 1
            elif (text := clean(raw)) is None:
                counts["content"] += 1
            else:
                yield SourceFile(package, path, text)


def build_corpus(wheels: list[Wheel], pins: Pins, counts: Counter[str]) -> dict[str, list[SourceFile]]:
    """The files of each split. Held-out packages go first, so that of a shared file the training copy is dropped."""
    files = sorted(_clean_files(wheels, counts), key=lambda f: (f.package not in pins.held_out, f.package, f.path))
    kept = capped(deduplicate(files, counts), MAX_PACKAGE_CHARS)
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


def prepare(root: Path, *, offline: bool = False, packages: Path = PACKAGES, copy: Path | None = MANIFEST) -> Manifest:
    """Everything `train` needs, under `root`; returns the manifest, which is written there and to `copy`."""
    pins = read_pins(packages)
    missing = [] if offline else fetch(pins, root / "wheels")
    pinned = [w for w in read_wheels(root / "wheels") if pins.versions.get(w.package) == w.version]
    wheels = [w for w in pinned if is_allowed(w.licence)]
    counts: Counter[str] = Counter()
    splits = build_corpus(wheels, pins, counts)
    for split, files in splits.items():
        _write_texts(root / f"{split}.jsonl.xz", files)
    tokenizer_path = root / "tokenizer.json"
    train_tokenizer(f.text for f in splits["train"][::TOKENIZER_STRIDE]).save(str(tokenizer_path))
    tokenizer = load_tokenizer(tokenizer_path)
    manifest = _manifest(splits, wheels, counts)
    manifest["tokenizer_sha256"] = hashlib.sha256(tokenizer_path.read_bytes()).hexdigest()
    manifest["refused_licences"] = {w.package: w.licence for w in pinned if not is_allowed(w.licence)}
    manifest["not_available"] = missing
    manifest["tokens"] = {s: _store(root / s, files, tokenizer) for s, files in splits.items()}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    if copy:
        shutil.copyfile(root / "manifest.json", copy)
    return manifest


def _store(folder: Path, files: list[SourceFile], tokenizer: Tokenizer) -> int:
    store = build_store([f.text for f in files], tokenizer)
    write_store(folder, store)
    return len(store.tokens)
