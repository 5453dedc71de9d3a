"""Adapting a model on a machine without a network, in commands of limited time: `run` there, `collect` here.

Files are copied back from one folder, in which each command has limited room. The other machine's disk is kept from one
command to the next, but may be lost at any time. So the state of a run stays on that disk, a model file with its place
in the run is exported every few minutes, and a command that has room sends what is missing of the newest one.
"""

import json
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dg_lsp.errors import InputFileError
from dg_training.adapt import Adaptation, AdaptOptions
from dg_training.export import training_progress
from dg_training.store import replacing
from dg_training.train import Trainer, TrainingProgress
from dg_training.transfer import MANIFEST, MIB, START, join_file, split_file, unpack_run

EXPORTS, LOG, NAME = "exports", "log.jsonl", "gpu"
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
    log({"do": "unpacked", "is_whole": unpack_run(packed, root)})
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
        trainer.progress = TrainingProgress(*training_progress(start))
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
    target, record = parcel.out / newest.name, root / EXPORTS / f"{newest.name}.{SENT}"
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


def collect(homes: Sequence[Path], path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Join the newest export whose slices are all in `homes`, the folders that came back, and write it to `path`.

    Returns its manifest and the lines of the logs, without repetitions.

    Raises:
        InputFileError: there is no whole export.
    """
    errors = []
    for name in sorted(
        {manifest.parent.name for home in homes for manifest in home.glob(f"*/{MANIFEST}")}, reverse=True
    ):
        try:
            facts, content = join_file([home / name for home in homes])
        except InputFileError as error:
            errors.append(str(error))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            partial.write_bytes(content)
        texts = [(home / LOG).read_text() for home in homes if (home / LOG).exists()]
        lines = dict.fromkeys(line for text in texts for line in text.splitlines() if line.endswith("}"))
        return facts, [json.loads(line) for line in lines]
    raise InputFileError("; ".join(errors) or f"no export in {', '.join(map(str, homes))}")


def log_entry(title: str, facts: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> str:
    """The log's entry of a run as Markdown: speed, and losses by time."""
    devices = dict.fromkeys(str(line["device"]) for line in lines if line.get("do") == "start")
    speeds = sorted(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
    speed = f"{speeds[len(speeds) // 2]:,} tokens/s" if speeds else "not measured"
    num_commands = sum(line.get("do") == "train" for line in lines)
    summary = (
        f"{facts['step']:,} steps, {facts['tokens'] / 1e6:.1f} M tokens, {facts['seconds'] / 60:.1f} minutes of "
        f"training in {num_commands} commands, median speed {speed}. Losses in nats of the averaged weights on the "
        "validation packages:"
    )
    text = [
        f"## {title} · {', '.join(devices)}",
        "",
        summary,
        "",
        "| minutes | M tokens | next token, context | next token, middle | masked middle | all masked | leftmost |",
        "|---|---|---|---|---|---|---|",
    ]
    names = ("next_token_context", "next_token_middle", "masked_middle", "masked_middle_full", "masked_middle_leftmost")
    for line in (line for line in lines if "next_token_context" in line):
        losses = " | ".join(f"{line[name]:.2f}" if name in line else "" for name in names)
        text.append(f"| {line['seconds'] / 60:.1f} | {line['tokens'] / 1e6:.1f} | {losses} |")
    return "\n".join(text) + "\n"
