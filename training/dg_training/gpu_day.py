"""Training on a machine without a network, in commands of limited time: `run` there, `collect` here.

Files are copied back from one folder. The other machine's disk is kept from one command to the next, but may be lost at
any time. So the whole state of a run stays on that disk, and a quantized model file with its place in the run is
exported to the folder every few minutes.
"""

import json
import platform
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from dg_lsp.errors import InputFileError
from dg_training.documents import NUM_SENTINELS
from dg_training.export import read_model, training_progress, write_model
from dg_training.rows import BatchLoader, RowConfig
from dg_training.store import replacing
from dg_training.tokenizer import load_tokenizer
from dg_training.train import TrainConfig, Trainer, checkpoint_network
from dg_training.transfer import join_model, split_model, unpack_corpus

EXPORT, LOG = "export-", "log.jsonl"
RESERVE = 25.0  # seconds of a command for the last checkpoint and export
PEAK_FLOPS, UTILISATION = 989e12, 0.25  # of an H200 in bfloat16; a share that a small network reaches (a guess)
Show = Callable[[Mapping[str, Any]], None]


def flop_per_token(config: TrainConfig, *, is_causal: bool) -> float:
    """Floating-point operations of a training step per clean token.

    Six per weight and position for the products, forward and backward, and as many per visible key and channel twice.
    """
    network, rows = config.network, config.rows
    attention = network.heads + network.kv_heads
    per_layer = network.width * network.head_width * 2 * attention + 3 * network.width * network.hidden
    weights = network.layers * per_layer + network.num_tokens * network.width  # the output product
    num_noisy = 0 if is_causal else rows.num_noisy
    keys = rows.max_prompt / 2  # visible on average
    attended = 2 * network.layers * network.heads * network.head_width * keys
    return 6 * (weights + attended) * (rows.num_clean + num_noisy) / rows.num_clean


def expected_speed(config: TrainConfig, peak_flops: float = PEAK_FLOPS, utilisation: float = UTILISATION) -> float:
    """Clean tokens per second, the mean over a planned run, by arithmetic."""
    clean, both = (flop_per_token(config, is_causal=is_causal) for is_causal in (True, False))
    first = config.causal_share * clean + (1 - config.causal_share) * both
    return peak_flops * utilisation * (config.causal_until / first + (1 - config.causal_until) / both)


def loader_speed(root: Path, rows: RowConfig, num_processes: int, seconds: float) -> float:
    """Clean tokens per second of `num_processes` loader processes, after their first batch."""
    num_tokens = 0
    with closing(iter(BatchLoader(root, rows, 1, num_processes))) as batches:
        for _ in range(4 * max(1, num_processes)):  # what the processes made before the measurement
            next(batches)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            num_tokens += next(batches).tokens.size
        return num_tokens / (time.monotonic() - started)


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
    config: TrainConfig,
    parts: Sequence[Path],
    out: Path,
    *,
    part_minutes: float,
    part_bytes: int,
    start: Path | None = None,
    device: str = "cpu",
) -> None:
    """One command: adds parts of the corpus, continues the run and exports the model.

    Without minutes it ends before the training. With a checkpoint in `root` it continues from that; `start` is a model
    file that was exported on another machine.
    """
    log = RunLog(root / "runs" / f"{config.name}-{LOG}", out)
    log({"do": "start", "host": platform.node(), "device": _device_name(device), "torch": torch.__version__})
    if unpack_corpus(parts, root):
        log({"do": "unpacked", "parts": len(parts)})
    if not part_minutes:
        return
    trainer = Trainer(root, config, device=device)
    has_checkpoint = trainer.path.exists()
    if has_checkpoint:
        trainer.resume()
    elif start:
        trainer.start_from(start, continues=True)
    source = "checkpoint" if has_checkpoint else str(start) if start else "random weights"
    place = {"step": trainer.progress.step, "seconds": round(trainer.progress.seconds, 1)}
    log({"do": "train", "from": source, **place, "expected_tokens_per_second": round(expected_speed(config))})

    def export() -> None:
        started = log.seconds
        folder = _export(root, config, out, part_bytes)
        log({"do": "exported", "to": folder.name, "took": round(log.seconds - started, 1)})

    with _stopped_by_signal(trainer):
        left = part_minutes * 60 - log.seconds - min(RESERVE, part_minutes * 15)
        trainer.run(log, minutes=max(left, 1.0) / 60, on_save=export)
    log({"do": "end", "is_stopped": trainer.is_stopped, "is_complete": trainer.progress.seconds >= config.minutes * 60})


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else f"{platform.machine()} CPU"


@contextmanager
def _stopped_by_signal(trainer: Trainer) -> Iterator[None]:
    """SIGTERM ends the run after its current step."""
    before = signal.signal(signal.SIGTERM, lambda *_: trainer.stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _export(root: Path, config: TrainConfig, out: Path, part_bytes: int) -> Path:
    """The averaged weights of the checkpoint as Q8_0, in slices, in a new folder; older ones are removed."""
    network, progress = checkpoint_network(root / "runs" / f"{config.name}.pt")
    place = {"steps": progress["step"], "seconds": progress["seconds"]}
    path = root / "runs" / f"{config.name}-q8_0.gguf"
    metadata = config.metadata(progress["tokens"], **place)
    write_model(path, network, load_tokenizer(root / "tokenizer.json"), metadata)
    older = list(out.glob(f"{EXPORT}*"))
    folder = out / f"{EXPORT}{progress['step']:07}"
    if folder not in older:
        split_model(path, folder, part_bytes, {**place, "tokens": progress["tokens"]})
        for one in older:
            shutil.rmtree(one)
    return folder


def collect(folders: Iterable[Path], path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Join the latest export that is whole in any of `folders`, and write it to `path`.

    Returns its manifest and the lines of the logs, without repetitions.

    Raises:
        InputFileError: there is no whole export.
    """
    folders = list(folders)
    found: tuple[dict[str, Any], bytes] | None = None
    errors = []
    for folder in sorted((one for home in folders for one in home.rglob(f"{EXPORT}*") if one.is_dir()), reverse=True):
        try:
            facts, content = join_model(folder)
        except InputFileError as error:
            errors.append(str(error))
            continue
        if found is None or facts["steps"] > found[0]["steps"]:
            found = facts, content
    if found is None:
        raise InputFileError("; ".join(errors) or f"no export in {', '.join(map(str, folders))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(found[1])
    lines = [line for home in folders for log in sorted(home.rglob(LOG)) for line in log.read_text().splitlines()]
    return found[0], [json.loads(line) for line in dict.fromkeys(lines) if line.endswith("}")]


def add_statistics(
    path: Path, root: Path, config: TrainConfig, facts: Mapping[str, Any], table: Mapping[str, str]
) -> None:
    """Write a collected file again with its decoder statistics."""
    network, (_, tokens, _) = read_model(path, config.network), training_progress(path)
    place = {"steps": facts["steps"], "seconds": facts["seconds"]}
    metadata = config.metadata(tokens, decoder_statistics=table, **place)
    write_model(path, network, load_tokenizer(root / "tokenizer.json"), metadata)


def log_entry(
    title: str,
    config: TrainConfig,
    facts: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    table: Mapping[str, str],
) -> str:
    """The log's entry of a run as Markdown: losses by time, speed, and the decoders at the test cases."""
    from dg_training.evaluate import MIN_HITS  # needs llama.cpp, which the other machine lacks

    devices = dict.fromkeys(str(line["device"]) for line in lines if line.get("do") == "start")
    speeds = sorted(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
    middle = f"{speeds[len(speeds) // 2]:,} clean tokens/s" if speeds else "not measured"
    rows = config.rows
    num_commands = sum(line.get("do") == "train" for line in lines)
    summary = (
        f"Configuration `{config.name}`: {facts['steps']:,} steps, {facts['tokens'] / 1e6:.1f} M clean tokens, "
        f"{facts['seconds'] / 60:.1f} minutes of training in {num_commands} commands, "
        f"prompts up to {rows.max_prompt + NUM_SENTINELS} tokens, canvases {rows.canvas_lengths}. "
        f"Median speed {middle}; {expected_speed(config):,.0f} were expected on an H200 at "
        f"{UTILISATION:.0%} of its peak."
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
    text += ["", "Losses in nats of the averaged weights on the validation packages.", ""]
    if table:
        text += [
            "| tuning cases, decoder | causal passes | verifying | canvas | right first lines |",
            "|---|---|---|---|---|",
        ]
        for name, numbers in table.items():
            *passes, hits = numbers.split(",")
            share = float(hits) if float(hits) > MIN_HITS else 0.0
            text.append(f"| {name} | {' | '.join(passes)} | {share:.1%} |")
    return "\n".join(text) + "\n"
