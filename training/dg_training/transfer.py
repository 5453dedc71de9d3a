"""The corpus and model files in parts of limited size, each with checksums.

A part of the corpus is a tar file that is of use alone: tokenizer, validation split, and whole packages of the training
split. A part of a model file is a slice of it.
"""

import hashlib
import io
import json
import lzma
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dg_lsp.errors import InputFileError
from dg_training.store import CorpusFile, read_texts, replacing

MIB = 2**20
MANIFEST = "manifest.json"
TOKENIZER, VALIDATION, TRAINING = "tokenizer.json", "val.jsonl.xz", "train.jsonl.xz"
MEMBERS = (TOKENIZER, VALIDATION, TRAINING)
TAR_BYTES = 64 * 1024  # of headers and padding of a part
IMPORTED = re.compile(r"^\s*(?:from|import) +(\w+)", re.MULTILINE)
PRESET = 6  # of xz


@dataclass(frozen=True, slots=True)
class CorpusPart:
    """A part that was written, and the packages in it."""

    path: Path
    num_bytes: int
    packages: tuple[str, ...]


def by_use(files: Sequence[CorpusFile]) -> list[str]:
    """The packages of a split, those first that most files of other packages import."""
    owners: dict[str, set[str]] = {}
    for file in files:
        owners.setdefault(file.path.split("/")[0].removesuffix(".py"), set()).add(file.package)
    uses = Counter[str](dict.fromkeys((file.package for file in files), 0))
    for file in files:
        imported = {owner for name in set(IMPORTED.findall(file.text)) for owner in owners.get(name, ())}
        uses.update(imported - {file.package})
    return sorted(uses, key=lambda package: (-uses[package], package))


def pack_corpus(
    root: Path, folder: Path, part_bytes: int, most_bytes: int | None = None, num_processes: int = 0
) -> tuple[list[CorpusPart], list[str]]:
    """Write the corpus in `root` as parts of at most `part_bytes` each and `most_bytes` together.

    Packages are taken whole, in the order of `by_use`; one that does not fit is left out. Returns the parts, and the
    packages that were left out.

    Raises:
        InputFileError: there is no corpus, or a limit has no room for a package.
    """
    files = read_texts(root / TRAINING)
    packages: dict[str, list[CorpusFile]] = {}
    for file in files:
        packages.setdefault(file.package, []).append(file)
    order = by_use(files)
    lists = [packages[name] for name in order]
    if num_processes == 1:
        streams = list(map(_compressed, lists))
    else:
        with ProcessPoolExecutor(num_processes or None, mp_context=get_context("spawn")) as pool:
            streams = list(pool.map(_compressed, lists))
    common = {name: (root / name).read_bytes() for name in (TOKENIZER, VALIDATION)}
    fixed = TAR_BYTES + sum(map(len, common.values()))
    parts = _fitted(dict(zip(order, streams, strict=True)), fixed, part_bytes, most_bytes)
    if not parts:
        needed = (fixed + min(map(len, streams))) / MIB
        raise InputFileError(f"no package fits into {part_bytes / MIB:.1f} MiB; at least {needed:.1f} MiB are needed")
    pack = hashlib.sha256("".join(name for part in parts for name in part).encode() + common[TOKENIZER]).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("corpus-*.tar"):
        old.unlink()
    written = []
    for number, part in enumerate(parts, 1):
        path = folder / f"corpus-{number}.tar"
        contents = {**common, TRAINING: b"".join(part.values())}
        facts = {"pack": pack, "part": number, "parts": len(parts), "packages": list(part)}
        _write_part(path, contents, facts)
        written.append(CorpusPart(path, path.stat().st_size, tuple(part)))
    packed = {name for part in parts for name in part}
    return written, [name for name in order if name not in packed]


def _compressed(files: list[CorpusFile]) -> bytes:
    """One xz stream; several in a row are a valid file."""
    return lzma.compress("".join(json.dumps(asdict(file)) + "\n" for file in files).encode(), preset=PRESET)


def _fitted(
    streams: Mapping[str, bytes], fixed: int, part_bytes: int, most_bytes: int | None
) -> list[dict[str, bytes]]:
    """Each package in the first part with room for it."""
    parts: list[dict[str, bytes]] = []
    sizes: list[int] = []
    for name, stream in streams.items():
        room = [i for i, size in enumerate(sizes) if size + len(stream) <= part_bytes]
        total = sum(sizes) + len(stream) + (0 if room else fixed)
        if (most_bytes is not None and total > most_bytes) or fixed + len(stream) > part_bytes:
            continue
        if not room:
            room = [len(parts)]
            parts.append({})
            sizes.append(fixed)
        parts[room[0]][name] = stream
        sizes[room[0]] += len(stream)
    return parts


def _write_part(path: Path, contents: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = json.dumps({**facts, "sha256": sums}).encode()
    with replacing(path) as partial, tarfile.open(partial, "w") as archive:
        for name, content in {MANIFEST: manifest, **contents}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def unpack_corpus(parts: Iterable[Path], root: Path) -> bool:
    """Verify parts and add them to the corpus in `root`. Returns whether the corpus changed.

    Raises:
        InputFileError: a part is damaged, or is of another corpus than `root`.
    """
    held = root / "parts"
    held.mkdir(parents=True, exist_ok=True)
    is_changed = False
    for path in parts:
        facts, contents = _read_part(path)
        known = held / "pack"
        if known.exists() and known.read_text() != facts["pack"]:
            raise InputFileError(f"{path} is a part of another corpus than {root} holds; choose another --root")
        known.write_text(facts["pack"])
        target = held / f"{int(facts['part'])}.xz"
        if not target.exists():
            _write(target, contents[TRAINING])
            is_changed = True
        for name in (TOKENIZER, VALIDATION):
            _write(root / name, contents[name])
    if is_changed:
        _write(root / TRAINING, b"".join(one.read_bytes() for one in sorted(held.glob("*.xz"))))
    return is_changed


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as partial:
        partial.write_bytes(content)


def _read_part(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            contents = {name: _member(archive, name) for name in (MANIFEST, *MEMBERS)}
        facts = json.loads(contents.pop(MANIFEST))
        sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
        is_whole = sums == facts["sha256"]
    except (tarfile.TarError, KeyError, ValueError, OSError) as error:
        raise InputFileError(f"{path} is no part of a corpus, or is damaged: {error}") from error
    if not is_whole:
        raise InputFileError(f"{path} is damaged: a checksum differs")
    return facts, contents


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    found = archive.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found.read()


def split_model(path: Path, folder: Path, part_bytes: int, facts: Mapping[str, Any]) -> None:
    """Write a file as slices `PATH.01`, ... and a manifest with its checksum into a new `folder`.

    The folder appears at once: a command that is cut off leaves a whole one or none.
    """
    content = path.read_bytes()
    partial = path.with_name(path.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    slices = [content[at : at + part_bytes] for at in range(0, len(content), part_bytes)]
    names = [f"{path.name}.{number:02}" for number in range(1, len(slices) + 1)]
    for name, part in zip(names, slices, strict=True):
        (partial / name).write_bytes(part)
    manifest = {**facts, "name": path.name, "slices": names, "sha256": hashlib.sha256(content).hexdigest()}
    (partial / MANIFEST).write_text(json.dumps(manifest) + "\n")
    try:
        partial.rename(folder)
    except OSError:  # another disk
        copy = folder.with_name(folder.name + ".partial")
        shutil.copytree(partial, copy, dirs_exist_ok=True)
        copy.rename(folder)
        shutil.rmtree(partial)


def join_model(folders: Sequence[Path]) -> tuple[dict[str, Any], bytes]:
    """The manifest and the content of a file that `split_model` wrote; its slices may be in several folders.

    Raises:
        InputFileError: a slice is missing or damaged.
    """
    here = [folder for folder in folders if (folder / MANIFEST).exists()]
    names = ", ".join(map(str, here or folders))
    try:
        facts = json.loads((here[0] / MANIFEST).read_text())
        paths = [next(path for folder in here if (path := folder / name).exists()) for name in facts["slices"]]
        content = b"".join(path.read_bytes() for path in paths)
        is_whole = hashlib.sha256(content).hexdigest() == facts["sha256"]
    except (OSError, ValueError, KeyError, IndexError, StopIteration) as error:
        raise InputFileError(f"{names} holds no whole model file") from error
    if not is_whole:
        raise InputFileError(f"{names} is damaged: the checksum differs")
    return facts, content
