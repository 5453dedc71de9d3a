"""What a denoising step of DiffusionGemma costs through llama.cpp: full size, random weights, Q4_K and Q8_0.

    dg-lsp models build-runtime                                  # the changed llama.cpp, once
    python benchmarks/llamacpp_gpu.py --folder /var/tmp          # 16 and 28 GB of disk, one after the other
    python benchmarks/llamacpp_gpu.py --toy                      # seconds, on a CPU

Beside the steps: which share of them is self-conditioning, reduction of the logits and sampling, on the host or not.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from random_gguf import TYPES, total_bytes, write_random
from shape import REAL, TOY, Shape, bandwidth_of

from dg_lsp.backends.llamacpp import devices
from dg_lsp.bench.machine import Machine
from dg_lsp.bench.steps import NUM_EXTENDED, StepTimes, measure_steps
from dg_lsp.bench.steps_shares import Shares
from dg_lsp.bench.tables import share_table, step_table
from dg_lsp.cli.loading import load_model, open_denoiser
from dg_lsp.cli.steps import _shares
from dg_lsp.engine.engine import Engine
from dg_lsp.settings import FillSettings, RuntimeSettings, Settings

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 4096)


@dataclass(frozen=True)
class TypeReport:
    """One number format."""

    kind: str
    file_gb: float
    times: dict[int, StepTimes]
    """By prompt length."""
    floors: dict[int, float] | None
    """Milliseconds by canvas at the middle prompt length: bytes that must be read over the device's bandwidth."""
    shares: Shares

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.kind}, {self.file_gb:.1f} GB, random weights, medians in milliseconds, {NUM_EXTENDED} tokens more"
        yield from ("", *step_table(self.times))
        if self.floors:
            yield "floor: " + ", ".join(f"{ms:.1f} ms at canvas {canvas}" for canvas, ms in self.floors.items())
        yield from ("", f"means over {self.shares.num_steps} steps of fills:", "", *share_table(self.shares))


@dataclass
class Report:
    """Everything of one run."""

    machine: str
    device: str
    types: list[TypeReport] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> Report:
    """Measures, prints, and writes JSON where that is asked for."""
    asked = _parser().parse_args(arguments)
    shape = TOY if asked.toy else REAL
    found = devices()
    device = next((one for one in found if one.kind in ("gpu", "igpu")), found[0]).name
    report = Report(Machine.here(asked.threads or 0).line(), "CPU" if asked.toy else device)
    print(f"{report.device}; {report.machine}")
    for kind in asked.type or ("Q4_K", "Q8_0"):
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            measured = _measure(shape, kind, Path(folder) / "random.gguf", report.device, asked)
        report.types.append(measured)
        print("\n".join(("", *measured.lines())), flush=True)
    if asked.output:
        asked.output.write_text(json.dumps(asdict(report), indent=1) + "\n", encoding="utf-8")
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--type", action="append", choices=TYPES)
    parser.add_argument("--canvas", action="append", type=int)
    parser.add_argument("--prompt", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the weights are written, and removed again")
    parser.add_argument("--output", type=Path)
    return parser


def _measure(shape: Shape, kind: str, path: Path, device: str, asked: argparse.Namespace) -> TypeReport:
    write_random(shape, kind, path, max_steps=3 if asked.toy else 48)
    runtime = RuntimeSettings(threads=1 if asked.toy else asked.threads, gpu_layers=0 if asked.toy else -1)
    fill = FillSettings(deadline_ms=60_000, check_syntax=False, max_tokens=16, canvas_length=min(32, shape.canvas))
    settings = Settings(model=str(path), runtime=runtime, fill=fill)
    denoiser = open_denoiser(load_model(settings), settings)
    engine = Engine(denoiser, denoiser.tokenizer, settings.fill)
    canvases = asked.canvas or ((8, 16) if asked.toy else CANVASES)
    prompts = [
        min(length, denoiser.spec.max_prompt_tokens) for length in asked.prompt or ((24,) if asked.toy else PROMPTS)
    ]
    try:
        times = {length: measure_steps(denoiser, length, canvases, rounds=asked.rounds) for length in prompts}
        shares = _shares(engine, denoiser)
    finally:
        engine.close()
    bandwidth, middle = bandwidth_of(device), prompts[len(prompts) // 2]
    floors = None
    if bandwidth:
        bits = {"Q4_K": (4.5, 6.56), "Q8_0": (8.5, 8.5)}.get(kind, (16, 16))
        needed = {c: shape.step_bytes(c, middle, bits=bits[0], embedding_bits=bits[1]) for c in canvases}
        floors = {canvas: 1e3 * size / bandwidth for canvas, size in needed.items()}
    return TypeReport(kind, total_bytes(shape, kind) / 1e9, times, floors, shares)


if __name__ == "__main__":
    main()
