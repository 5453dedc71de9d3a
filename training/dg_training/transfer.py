"""Files in slices of limited size with a checksum, and the corpus with the model to start with as such a file."""

import hashlib
import json
import re
import shutil
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dg_lsp.errors import InputFileError
from dg_training.store import CorpusFile, read_texts, write_texts

MIB = 2**20
MANIFEST = "manifest.json"
TOKENIZER, VALIDATION, TRAINING = "tokenizer.json", "val.jsonl.xz", "train.jsonl.xz"
START = "start.gguf"
ARCHIVE = "run.tar"
IMPORTED = re.compile(r"^\s*(?:from|import) +(\w+)", re.MULTILINE)


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


def pack_run(
    root: Path, folder: Path, slice_bytes: int, start: Path | None = None, text_bytes: int | None = None
) -> list[str]:
    """Writes the corpus in `root` and the model `start` as one archive in slices into a new `folder`.

    At most `text_bytes` of text are packed, in whole packages, in the order of `by_use`. Returns the packages that are
    left out.

    Raises:
        InputFileError: there is no corpus.
    """
    files = read_texts(root / TRAINING)
    sizes = Counter[str]()
    for file in files:
        sizes[file.package] += len(file.text.encode())
    chosen: set[str] = set()
    for package in by_use(files):
        if text_bytes is None or sizes[package] + sum(sizes[chosen_package] for chosen_package in chosen) <= text_bytes:
            chosen.add(package)
    with TemporaryDirectory() as temporary:
        training, archive = Path(temporary) / TRAINING, Path(temporary) / ARCHIVE
        write_texts(training, [file for file in files if file.package in chosen])
        with tarfile.open(archive, "w") as tar:
            for path in (training, root / TOKENIZER, root / VALIDATION):
                tar.add(path, path.name)
            if start is not None:
                tar.add(start, START)
        shutil.rmtree(folder, ignore_errors=True)
        split_file(archive, folder, slice_bytes, {})
    return sorted(sizes.keys() - chosen)


def unpack_run(folders: Sequence[Path], root: Path) -> bool:
    """Keeps slices of a packed run in `root`, and unpacks it there once all have come; returns whether that is so.

    Raises:
        InputFileError: a slice is damaged.
    """
    held = root / "slices"
    held.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        shutil.copytree(folder, held, dirs_exist_ok=True)
    manifest = held / MANIFEST
    names = json.loads(manifest.read_text())["slices"] if manifest.exists() else ()
    if names and all((held / name).exists() for name in names):
        _, content = join_file([held])
        with tarfile.open(fileobj=BytesIO(content)) as archive:
            for name in (TOKENIZER, VALIDATION, TRAINING, START):
                if name in archive.getnames() and (member := archive.extractfile(name)) is not None:
                    (root / name).write_bytes(member.read())
        shutil.rmtree(held)
    return (root / TRAINING).exists()


def split_file(path: Path, folder: Path, slice_bytes: int, facts: Mapping[str, Any]) -> None:
    """Writes a file as slices `PATH.01`, ... and a manifest with its checksum into a new `folder`.

    The folder appears at once: a command that is cut off leaves a whole one or none.
    """
    content = path.read_bytes()
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    slices = [content[at : at + slice_bytes] for at in range(0, len(content), slice_bytes)]
    names = [f"{path.name}.{number:02}" for number in range(1, len(slices) + 1)]
    for name, part in zip(names, slices, strict=True):
        (partial / name).write_bytes(part)
    manifest = {**facts, "name": path.name, "slices": names, "sha256": hashlib.sha256(content).hexdigest()}
    (partial / MANIFEST).write_text(json.dumps(manifest) + "\n")
    partial.rename(folder)


def join_file(folders: Sequence[Path]) -> tuple[dict[str, Any], bytes]:
    """The manifest and the content of a file that `split_file` wrote; its slices may be in several folders.

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
        raise InputFileError(f"{names} holds no whole file") from error
    if not is_whole:
        raise InputFileError(f"{names} is damaged: the checksum differs")
    return facts, content
