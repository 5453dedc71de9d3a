"""Adapting a model on a machine without a network, in commands of limited time: `run` there, `collect` here.

Files are copied back from one folder, in which each command has limited room. The other machine's disk is kept from one
command to the next, but may be lost at any time. So the state of a run stays on that disk, a model file with its place
in the run is exported every few minutes, and a command that has room sends what is missing of the newest one.
"""

import hashlib
import json
import platform
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from dg_lsp.errors import InputFileError
from dg_training.adapt import Adaptation, AdaptOptions
from dg_training.export import training_progress
from dg_training.store import replacing
from dg_training.train import Trainer

MIB = 2**20
MANIFEST = "manifest.json"
CORPUS = ("train.jsonl.xz", "val.jsonl.xz")
START = "start.gguf"
ARCHIVE = "run.tar"
EXPORTS = "exports"
LOG = "log.jsonl"
NAME = "gpu"
SENT = "sent"  # a file beside an export: the slices that have come home
RESERVE = 25.0  # seconds of a command for the last checkpoint and export


@dataclass(frozen=True, slots=True)
class Parcel:
    """The folder that is copied back, and its limits."""

    out: Path
    slice_bytes: int = 15 * MIB  # of one file
    total_bytes: int = 60 * MIB


class RunLog:
    """Lines of JSON with the seconds since the start, printed and written to the disk of the run and to `out`."""

    def __init__(self, kept: Path, out: Path) -> None:
        self._started = time.monotonic()
        kept.parent.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        self._paths = (kept, out / LOG)
        if kept.exists():
            shutil.copyfile(kept, out / LOG)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        text = json.dumps({"at": round(time.monotonic() - self._started, 1), **line})
        print(text, flush=True)
        for path in self._paths:
            with path.open("a") as out:
                out.write(text + "\n")

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started


def run(
    root: Path,
    packed: Sequence[Path],
    parcel: Parcel,
    options: AdaptOptions,
    *,
    part_minutes: float,
    start: Path | None = None,
    is_continued: bool = False,
) -> None:
    """One command: takes slices of the packed run, trains for `part_minutes`, and sends what is missing of the newest
    export.

    With a checkpoint in `root` the run goes on from that. Otherwise it begins with the model file `start`, or else with
    that of the packed run; `is_continued` takes over the file's place in the planned time too. Without minutes nothing
    is trained.

    Raises:
        InputFileError: there is no corpus, or no whole model file to start with.
        ModelError: the model file is damaged or not supported.
    """
    log = RunLog(root / LOG, parcel.out)
    log({"do": "start", "host": platform.node(), "device": _device_name(options.device), "torch": torch.__version__})
    log({"do": "unpacked", "is_whole": unpack(packed, root)})
    if part_minutes:
        trainer, adaptation = _prepared(root, start or root / START, options, log, is_continued=is_continued)

        def export() -> None:
            began = log.seconds
            folder = _export(root, adaptation, trainer, parcel.slice_bytes)
            log({"do": "exported", "to": folder.name, "took": round(log.seconds - began, 1)})
            send(root, parcel)

        with trainer.stopped_by_signal():
            left = part_minutes * 60 - log.seconds - min(RESERVE, part_minutes * 15)
            trainer.run(log, minutes=max(left, 1.0) / 60, on_save=export)
        is_complete = trainer.progress.seconds >= options.minutes * 60
        log({"do": "end", "is_stopped": trainer.is_stopped, "is_complete": is_complete})
    log({"do": "sent", "missing": send(root, parcel)})


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{platform.machine()} CPU"


def _prepared(
    root: Path, start: Path, options: AdaptOptions, log: RunLog, *, is_continued: bool
) -> tuple[Trainer, Adaptation]:
    adaptation = Adaptation(start, root, NAME, options)
    trainer = adaptation.trainer()
    if has_state := trainer.path.exists():
        trainer.resume()
    elif is_continued:
        trainer.progress = training_progress(start)
    place = {"step": trainer.progress.step, "seconds": round(trainer.progress.seconds, 1)}
    log({"do": "train", "from": "checkpoint" if has_state else str(start), **place, **adaptation.facts})
    return trainer, adaptation


def _export(root: Path, adaptation: Adaptation, trainer: Trainer, slice_bytes: int) -> Path:
    """Write the averaged weights in slices into a new folder on the disk of the run; older ones are removed."""
    path = root / f"{NAME}.gguf"
    adaptation.export(path, trainer.average, trainer.progress)
    older = _exports(root)
    folder = root / EXPORTS / f"{trainer.progress.step:07}"
    folder.parent.mkdir(exist_ok=True)
    if folder not in older:
        split_file(path, folder, slice_bytes, asdict(trainer.progress))
        for old in older:
            shutil.rmtree(old)
    return folder


def _exports(root: Path) -> list[Path]:
    return sorted(folder for folder in (root / EXPORTS).glob("*") if folder.is_dir() and folder.suffix != ".partial")


def send(root: Path, parcel: Parcel) -> int:
    """Copy into the parcel what has not come home of the newest export, as far as there is room.

    Returns the number of slices that are still missing. Older exports in the parcel are removed.
    """
    if not (folders := _exports(root)):
        return 0
    newest = folders[-1]
    target = parcel.out / newest.name
    record = root / EXPORTS / f"{newest.name}.{SENT}"
    for old in parcel.out.iterdir():
        if old.is_dir() and old != target:
            shutil.rmtree(old)
    target.mkdir(exist_ok=True)
    shutil.copyfile(newest / MANIFEST, target / MANIFEST)
    sent = record.read_text().split() if record.exists() else []
    missing = [name for name in json.loads((newest / MANIFEST).read_text())["slices"] if name not in sent]
    room = parcel.total_bytes - sum(path.stat().st_size for path in parcel.out.rglob("*") if path.is_file())
    while missing and (size := (newest / missing[0]).stat().st_size) <= room:
        shutil.copyfile(newest / missing[0], target / missing[0])
        sent.append(missing.pop(0))
        room -= size
    record.write_text(" ".join(sent))
    return len(missing)


def collect(homes: Sequence[Path], path: Path) -> dict[str, Any]:
    """Join the newest export whose slices are all in `homes`, the folders that came back, and write it to `path`.

    Returns its manifest.

    Raises:
        InputFileError: there is no whole export.
    """
    errors = []
    names = {manifest.parent.name for home in homes for manifest in home.glob(f"*/{MANIFEST}")}
    for name in sorted(names, reverse=True):
        try:
            facts, content = join_file([home / name for home in homes])
        except InputFileError as error:
            errors.append(str(error))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(content)
        return facts
    raise InputFileError("; ".join(errors) or f"no export in {', '.join(map(str, homes))}")


# what travels


def pack(root: Path, folder: Path, slice_bytes: int, start: Path | None = None) -> None:
    """Writes the corpus in `root` and the model `start` as one archive in slices into a new `folder`.

    Raises:
        InputFileError: there is no corpus.
    """
    if missing := [name for name in CORPUS if not (root / name).exists()]:
        raise InputFileError(f"{root} has no {missing[0]}: python -m dg_training data makes it")
    with TemporaryDirectory() as temporary:
        archive = Path(temporary) / ARCHIVE
        with tarfile.open(archive, "w") as tar:
            for name in CORPUS:
                tar.add(root / name, name)
            if start is not None:
                tar.add(start, START)
        shutil.rmtree(folder, ignore_errors=True)
        split_file(archive, folder, slice_bytes, {})


def unpack(folders: Sequence[Path], root: Path) -> bool:
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
            for name in (*CORPUS, START):
                if name in archive.getnames() and (member := archive.extractfile(name)) is not None:
                    (root / name).write_bytes(member.read())
        shutil.rmtree(held)
    return all((root / name).exists() for name in CORPUS)


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
