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
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from dg_lsp.errors import InputFileError
from dg_lsp.system import replacement
from dg_training.adapt import Adaptation, checkpoint_path
from dg_training.options import Causal, Device, FileType, Name, Root, device_of
from dg_training.train import AdaptOptions, Trainer

app = typer.Typer(no_args_is_help=True, help="Train on a machine without a network that is yours for some minutes.")

MIB = 2**20
MANIFEST = "manifest.json"
CORPUS = ("train.jsonl.xz", "val.jsonl.xz")
START = "start.gguf"
ARCHIVE = "run.tar"
EXPORTS = "exports"
LOG = "log.jsonl"
NAME = "gpu"
RESERVE = 25.0  # seconds of a command for the last checkpoint and export


@app.command()
def run(
    root: Root,
    out: Annotated[Path, typer.Option(envvar="OUT", help="The folder whose files are copied back.")],
    packed: Annotated[list[Path] | None, typer.Option("--pack", help="A folder of slices; may be repeated.")] = None,
    start: Annotated[Path | None, typer.Option(help="The model file to start with; default: the packed one.")] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="`--start` came from a lost machine: go on there.")] = False,
    minutes: Annotated[float, typer.Option(help="Planned training of the whole run, over all commands.")] = 20,
    part: Annotated[float, typer.Option(help="Minutes of this command; 0: unpack and send only.")] = 9.5,
    every: Annotated[float, typer.Option(help="Minutes from one export to the next.")] = 3,
    size: Annotated[float, typer.Option(help="Largest file in `out` in MiB.")] = 15,
    most: Annotated[float, typer.Option(help="All files in `out` together in MiB.")] = 60,
    rate: Annotated[float, typer.Option(help="Largest learning rate.")] = 4e-4,
    causal: Causal = False,
    file_type: FileType = "IQ4_NL",
    name: Name = "",
    device: Device = "",
) -> None:
    """Unpack and train; the state of the run stays in the work folder, exports go to `out`.

    With a checkpoint in the work folder the run goes on from that. The slices that are missing of the newest export are
    sent at the end. Reports are lines of JSON with the seconds since the start, printed and in a file in `out`.
    """
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)

    def log(line: Mapping[str, Any]) -> None:
        text = json.dumps({"at": round(time.monotonic() - started, 1), **line})
        print(text, flush=True)
        with (out / LOG).open("a") as file:
            print(text, file=file)

    has_state = checkpoint_path(root, NAME).exists()
    options = AdaptOptions(
        minutes=minutes,
        learning_rate=rate,
        is_causal=causal,
        name=name,
        file_type=file_type,
        device=device_of(device),
        checkpoint_minutes=every,
        is_resumed=has_state,
        is_continued=go_on,
    )
    is_gpu = options.device.startswith("cuda")
    processor = torch.cuda.get_device_name(options.device) if is_gpu else f"{platform.machine()} CPU"
    log({"do": "start", "host": platform.node(), "device": processor, "torch": torch.__version__})
    log({"do": "unpacked", "is_whole": unpack(packed or [], root)})
    if part:
        start = start or root / START
        adaptation = Adaptation(start, root, NAME, options)
        trainer = adaptation.trainer()
        place = {"step": trainer.progress.step, "seconds": round(trainer.progress.seconds, 1)}
        log({"do": "train", "from": "checkpoint" if has_state else str(start), **place, **adaptation.facts})

        def export() -> None:
            began = time.monotonic()
            folder = _export(root, adaptation, trainer, int(size * MIB))
            log({"do": "exported", "to": folder.name, "took": round(time.monotonic() - began, 1)})
            send(root, out, int(most * MIB))

        with trainer.stopped_by_signal():
            left = part * 60 - (time.monotonic() - started) - min(RESERVE, part * 15)
            trainer.run(log, minutes=max(left, 1.0) / 60, on_save=export)
        is_complete = trainer.progress.seconds >= minutes * 60
        log({"do": "end", "is_stopped": trainer.is_stopped, "is_complete": is_complete})
    log({"do": "sent", "missing": send(root, out, int(most * MIB))})


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


def send(root: Path, out: Path, most: int) -> int:
    """Move slices of the newest export into the folder that is copied back, at most so many bytes with what is there.

    Returns the number of slices that are left. Older exports in the folder are removed.
    """
    if not (folders := _exports(root)):
        return 0
    newest = folders[-1]
    target = out / newest.name
    for old in out.iterdir():
        if old.is_dir() and old != target:
            shutil.rmtree(old)
    target.mkdir(exist_ok=True)
    shutil.copyfile(newest / MANIFEST, target / MANIFEST)
    missing = sorted(set(newest.iterdir()) - {newest / MANIFEST})
    room = most - sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    while missing and (size := missing[0].stat().st_size) <= room:
        shutil.move(missing.pop(0), target)
        room -= size
    return len(missing)


@app.command()
def collect(
    folders: Annotated[list[Path], typer.Argument(help="Folders that came back.")],
    out: Annotated[Path, typer.Option(help="The GGUF to write.")],
) -> None:
    """Join the newest whole export."""
    errors = []
    names = {manifest.parent.name for folder in folders for manifest in folder.glob(f"*/{MANIFEST}")}
    for name in sorted(names, reverse=True):
        try:
            facts, content = join_file([folder / name for folder in folders])
        except InputFileError as error:
            errors.append(str(error))
            continue
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacement(out) as new:
            new.write_bytes(content)
        progress = f"step {facts['step']}, {facts['tokens'] / 1e6:.2f} M tokens"
        print(f"{out}: {len(content) / MIB:.1f} MiB, {progress}")
        return
    raise InputFileError("; ".join(errors) or f"no export in {', '.join(map(str, folders))}")


# what travels


@app.command()
def pack(
    root: Root,
    to: Annotated[Path, typer.Option(help="The folder of the slices; what is in it is removed.")],
    start: Annotated[Path | None, typer.Option(help="The model file to start with.")] = None,
    size: Annotated[float, typer.Option(help="Largest slice in MiB.")] = 50,
) -> None:
    """Write the corpus that `data` made and the model to start with in slices."""
    if missing := [name for name in CORPUS if not (root / name).exists()]:
        raise InputFileError(f"{root} has no {missing[0]}: python -m dg_training data makes it")
    archive = BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in CORPUS:
            tar.add(root / name, name)
        if start is not None:
            tar.add(start, START)
    shutil.rmtree(to, ignore_errors=True)
    split_file(ARCHIVE, archive.getvalue(), to, int(size * MIB), {})
    print("\n".join(f"{path}: {path.stat().st_size / MIB:.1f} MiB" for path in sorted(to.iterdir())))


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
