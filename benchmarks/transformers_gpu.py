"""What a denoising step of DiffusionGemma costs through transformers: full size, random weights, made on the device.

    python benchmarks/transformers_gpu.py                       # 51 GB of GPU memory in bfloat16, minutes
    python benchmarks/transformers_gpu.py --dtype bfloat16 --dtype float8 --output steps.json
    python benchmarks/transformers_gpu.py --toy                 # seconds, on a CPU

Which token is said makes no difference to what a step costs, but which experts are asked does: random weights route
almost uniformly, which is the worst case for the bytes that are read.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from parts import PartTimes, measure_parts
from random_weights import random_model
from shape import REAL, TOY, Shape, bandwidth_of

from dg_lsp.backends.hf import float8
from dg_lsp.backends.hf.denoiser import HfDenoiser, Limits
from dg_lsp.backends.hf.devices import FLOAT8, Placement
from dg_lsp.backends.hf.network import Network
from dg_lsp.backends.hf.opening import fuse, reduction
from dg_lsp.canvas.spec import ModelSpec, UniformSampling

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 8192)
EXTENSION = 8


@dataclass(frozen=True)
class StepRow:
    """Milliseconds of a step, all of `predict`: host, device and the copy back."""

    dtype: str
    prompt: int
    canvas: int
    eager: float
    graphed: float | None
    """None where nothing can be captured."""
    floor: float | None
    """Bytes that must be read over the device's bandwidth; None for a device that is not listed."""


@dataclass(frozen=True)
class PrefillRow:
    """Milliseconds."""

    dtype: str
    prompt: int
    prefill: float
    extension: float
    """`EXTENSION` more tokens at the prompt's end."""


@dataclass
class Report:
    """Everything of one run."""

    device: str
    torch: str
    steps: list[StepRow] = field(default_factory=list)
    prefills: list[PrefillRow] = field(default_factory=list)
    parts: list[PartTimes] = field(default_factory=list)
    memory_gb: dict[str, float] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.device}, torch {self.torch}, random weights, milliseconds (medians)"
        yield from (
            "",
            "| type | prompt | canvas | eager | graphed | floor | graphed / floor |",
            "|---|--:|--:|--:|--:|--:|--:|",
        )
        for row in self.steps:
            best = row.graphed if row.graphed is not None else row.eager
            ratio = f"{best / row.floor:.2f}" if row.floor else "-"
            cells = (row.dtype, row.prompt, row.canvas, _ms(row.eager), _ms(row.graphed), _ms(row.floor), ratio)
            yield f"| {' | '.join(map(str, cells))} |"
        yield from ("", f"| type | prompt | prefill | {EXTENSION} more tokens |", "|---|--:|--:|--:|")
        for prefill in self.prefills:
            yield f"| {prefill.dtype} | {prefill.prompt} | {_ms(prefill.prefill)} | {_ms(prefill.extension)} |"
        for part in self.parts:
            yield from ("", *part.lines())
        for dtype, size in self.memory_gb.items():
            yield from ("", f"{dtype}: {size:.1f} GB of GPU memory at most")


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def main(arguments: Sequence[str] | None = None) -> Report:
    """Measures, prints, and writes JSON where that is asked for."""
    asked = _parser().parse_args(arguments)
    shape = TOY if asked.toy else REAL
    if asked.toy:
        torch.set_num_threads(1)
    device = torch.device("cpu") if asked.toy or not torch.cuda.is_available() else torch.device("cuda", 0)
    canvases = asked.canvas or ((8, 16) if asked.toy else CANVASES)
    prompts = asked.prompt or ((24, 100) if asked.toy else PROMPTS)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report = Report(name, torch.__version__)
    for dtype in asked.dtype or ("bfloat16",):
        _measure(report, shape, device, dtype, canvases, prompts, asked)
    print("\n".join(report.lines()))
    if asked.output:
        asked.output.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--dtype", action="append", choices=("bfloat16", FLOAT8))
    parser.add_argument("--canvas", action="append", type=int)
    parser.add_argument("--prompt", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--compile", action="store_true", help="let torch compile the captured step: minutes per shape")
    parser.add_argument("--output", type=Path)
    return parser


def _measure(
    report: Report,
    shape: Shape,
    device: torch.device,
    dtype: str,
    canvases: Sequence[int],
    prompts: Sequence[int],
    asked: argparse.Namespace,
) -> None:
    model = random_model(shape, device, torch.bfloat16)
    if dtype == FLOAT8:
        float8.squeeze(model, device)
    placement = Placement(device, torch.bfloat16, is_float8=dtype == FLOAT8)
    if not asked.compile:
        fuse(model, placement)
    network = Network(model)
    sampling = UniformSampling()
    spec = ModelSpec("random", shape.vocab_size, sampling, (1,), canvas_lengths=tuple(canvases), has_causal_head=False)
    limits = Limits(1, max(prompts) + EXTENSION, max(canvases))
    options: dict[str, Any] = {"reduce": reduction(placement)}
    eager = HfDenoiser(network, spec, _NoText(), limits, **options)
    is_cuda = device.type == "cuda"
    graphed = HfDenoiser(network, spec, _NoText(), limits, captures=is_cuda, compiles=asked.compile, **options)
    bandwidth = bandwidth_of(report.device)
    bits = 8 if dtype == FLOAT8 else 16
    rng = np.random.default_rng(0)
    for prompt in prompts:
        ids = rng.integers(0, shape.vocab_size, prompt).astype(np.int32)
        report.prefills.append(_prefill(eager, dtype, ids, device, asked.rounds))
        for canvas in canvases:
            times = []
            for denoiser in (eager, graphed) if is_cuda or asked.compile else (eager,):
                denoiser.prefill(0, ids)
                times.append(_step(denoiser, canvas, rng, asked.rounds))
            floor = 1e3 * shape.step_bytes(canvas, prompt, bits=bits) / bandwidth if bandwidth else None
            report.steps.append(StepRow(dtype, prompt, canvas, times[0], times[1] if len(times) > 1 else None, floor))
    middle = prompts[len(prompts) // 2]
    eager.prefill(0, rng.integers(0, shape.vocab_size, middle).astype(np.int32))
    report.parts.append(measure_parts(eager, network, dtype, canvases[min(1, len(canvases) - 1)], asked.rounds))
    if is_cuda:
        report.memory_gb[dtype] = torch.cuda.max_memory_allocated(device) / 1e9
    for denoiser in (eager, graphed):
        denoiser.close()


class _NoText:
    """Nothing here is text."""


def _step(denoiser: HfDenoiser, canvas: int, rng: np.random.Generator, rounds: int) -> float:
    ids = rng.integers(0, denoiser.spec.vocab_size, canvas).astype(np.int32)
    # the first ones compile and capture
    times = [_milliseconds(lambda: denoiser.predict(0, [ids], 0.6, rng)) for _ in range(rounds + 4)]
    return statistics.median(times[4:])


def _prefill(denoiser: HfDenoiser, dtype: str, ids: np.ndarray, device: torch.device, rounds: int) -> PrefillRow:
    whole, more = [], []
    for _ in range(max(3, rounds // 3)):
        denoiser.prefill(0, ids[:0])
        whole.append(_milliseconds(lambda: _finished(device, lambda: denoiser.prefill(0, ids))))
        denoiser.prefill(0, ids[:-EXTENSION])
        more.append(_milliseconds(lambda: _finished(device, lambda: denoiser.prefill(0, ids))))
    return PrefillRow(dtype, len(ids), statistics.median(whole[1:]), statistics.median(more[1:]))


def _finished(device: torch.device, run: Callable[[], object]) -> None:
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
