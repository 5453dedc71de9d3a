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
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from dg_lsp.errors import InputFileError
from dg_lsp.system import replacement
from dg_training.adapt import Adaptation, checkpoint_path
from dg_training.train import AdaptOptions, Trainer

MIB = 2**20
MANIFEST = "manifest.json"
CORPUS = ("train.jsonl.xz", "val.jsonl.xz")
START = "start.gguf"
ARCHIVE = "run.tar"
EXPORTS = "exports"
LOG = "log.jsonl"
NAME = "gpu"
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
        self._kept = kept
        self._out = out
        kept.parent.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        text = json.dumps({"at": round(self.seconds, 1), **line})
        print(text, flush=True)
        with self._kept.open("a") as file:
            file.write(text + "\n")
        shutil.copyfile(self._kept, self._out / LOG)

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
) -> None:
    """One command: takes slices of the packed run, trains for `part_minutes`, and sends what is missing of the newest
    export.

    With a checkpoint in `root` the run goes on from that. Otherwise it begins with the model file `start`, or else with
    that of the packed run. Without minutes nothing is trained.

    Raises:
        InputFileError: there is no corpus, or no whole model file to start with.
        ModelError: the model file is damaged or not supported.
    """
    log = RunLog(root / LOG, parcel.out)
    is_gpu = options.device.startswith("cuda")
    device = torch.cuda.get_device_name(options.device) if is_gpu else f"{platform.machine()} CPU"
    log({"do": "start", "host": platform.node(), "device": device, "torch": torch.__version__})
    log({"do": "unpacked", "is_whole": unpack(packed, root)})
    if part_minutes:
        start = start or root / START
        has_state = checkpoint_path(root, NAME).exists()
        adaptation = Adaptation(start, root, NAME, replace(options, is_resumed=has_state))
        trainer = adaptation.trainer()
        place = {"step": trainer.progress.step, "seconds": round(trainer.progress.seconds, 1)}
        log({"do": "train", "from": "checkpoint" if has_state else str(start), **place, **adaptation.facts})

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


def _export(root: Path, adaptation: Adaptation, trainer: Trainer, slice_bytes: int) -> Path:
    """Write the averaged weights in slices into a new folder on the disk of the run; older ones are removed."""
    path = root / f"{NAME}.gguf"
    adaptation.export(path, trainer.average, trainer.progress)
    older = _exports(root)
    folder = root / EXPORTS / f"{trainer.progress.step:07}"
    if folder not in older:
        split_file(path.name, path.read_bytes(), folder, slice_bytes, asdict(trainer.progress))
        for old in older:
            shutil.rmtree(old)
    return folder


def _exports(root: Path) -> list[Path]:
    return sorted((root / EXPORTS).glob("[0-9]*"))


def send(root: Path, parcel: Parcel) -> int:
    """Move slices of the newest export into the parcel, as far as there is room.

    Returns the number of slices that are left. Older exports in the parcel are removed.
    """
    if not (folders := _exports(root)):
        return 0
    newest = folders[-1]
    target = parcel.out / newest.name
    for old in parcel.out.iterdir():
        if old.is_dir() and old != target:
            shutil.rmtree(old)
    target.mkdir(exist_ok=True)
    shutil.copyfile(newest / MANIFEST, target / MANIFEST)
    missing = sorted(set(newest.iterdir()) - {newest / MANIFEST})
    room = parcel.total_bytes - sum(path.stat().st_size for path in parcel.out.rglob("*") if path.is_file())
    while missing and (size := missing[0].stat().st_size) <= room:
        shutil.move(missing.pop(0), target)
        room -= size
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
        with replacement(path) as new:
            new.write_bytes(content)
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
    archive = BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in CORPUS:
            tar.add(root / name, name)
        if start is not None:
            tar.add(start, START)
    shutil.rmtree(folder, ignore_errors=True)
    split_file(ARCHIVE, archive.getvalue(), folder, slice_bytes, {})


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


def split_file(name: str, content: bytes, folder: Path, slice_bytes: int, facts: Mapping[str, Any]) -> None:
    """Writes a file as slices `NAME.01`, ... and a manifest with its checksum into a new `folder`.

    The folder appears at once: a command that is cut off leaves a whole one or none.
    """
    slices = [content[at : at + slice_bytes] for at in range(0, len(content), slice_bytes)]
    names = [f"{name}.{number:02}" for number in range(1, len(slices) + 1)]
    manifest = {**facts, "name": name, "slices": names, "sha256": hashlib.sha256(content).hexdigest()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacement(folder) as new:
        new.mkdir()
        for slice_name, part in zip(names, slices, strict=True):
            (new / slice_name).write_bytes(part)
        (new / MANIFEST).write_text(json.dumps(manifest) + "\n")


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
