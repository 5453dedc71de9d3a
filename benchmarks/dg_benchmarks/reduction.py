"""Time of a DiffusionGemma's step by the place where its logits are reduced: real vocabulary, random weights.

    python -m dg_benchmarks.reduction [--width 256] [--threads 1] [--canvas 8 16 32 64 256] [--rounds 3]
    python -m dg_benchmarks.reduction --host-work [--width 2816] [--canvas 256]

Prints a Markdown table: milliseconds of processor time of a whole `predict`, self-conditioning included, the best of
the rounds, by canvas and temperature. At the low temperature every position is sure of a token, at the high one none
is. The model has two small layers and the real vocabulary, so that the table shows mostly the projection and the
reduction. The modes take turns.

With `--host-work`, the time that Python and numpy take between two decodes where a device sums the feedback: the
sampler's step and all of `predict` but what the device computes. That is ggml's CPU device here; after two steps its
results stay as they are.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from dg_benchmarks.random_gguf import write_random
from dg_benchmarks.shape import REAL, Shape
from dg_lsp import gguf
from dg_lsp.backends.llamacpp import LlamaModel, device_feedback
from dg_lsp.backends.llamacpp.device_reduction import Mode, functions
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.library import library
from dg_lsp.canvas.layout import Canvas, token_ids
from dg_lsp.canvas.spec import UniformSampling
from dg_lsp.diffusion.samplers import Step, renoise
from dg_lsp.models.metadata import describe
from dg_lsp.settings import ModelSettings

SURE, FLAT = 0.02, 0.8
"""Temperatures."""
_BLOCK_BYTES, _SCALE = 34, 0.0003


def shape_of(width: int, vocab_size: int) -> Shape:
    """Two small layers."""
    sizes = {"heads": 2, "sliding_kv_heads": 1, "sliding_head": 64, "full_kv_heads": 1, "full_head": 64}
    experts = {"feed_forward": 256, "experts": 4, "top_k": 2, "expert_width": 64}
    return replace(REAL, hidden=width, layers=2, pattern=2, vocab_size=vocab_size, context=1024, **sizes, **experts)


def write_model(folder: Path, shape: Shape) -> Path:
    """A random model in Q8_0, each row of its embedding another one."""
    if functions() is None:  # loads the changed llama.cpp, which must happen before the quantization loads another one
        sys.exit("needs the changed llama.cpp; run: dg-lsp models build-runtime")
    path = write_random(shape, "Q8_0", folder / "random.gguf")
    embedding = gguf.read_header(path).rows("token_embd.weight")
    writable = np.memmap(path, np.uint8, "r+", embedding.offset, embedding.shape)
    rng = np.random.default_rng(0)
    for rows in np.array_split(writable.reshape(-1, _BLOCK_BYTES), 64):
        rows[:, 2:] = rng.integers(0, 256, (len(rows), _BLOCK_BYTES - 2), np.uint8)
        rows[:, :2] = np.frombuffer(np.float16(_SCALE * (256 / shape.hidden) ** 0.5).tobytes(), np.uint8)
    writable.flush()
    return path


@contextmanager
def opened(path: Path, threads: int, mode: Mode, **options: Any) -> Iterator[SelfConditionedDenoiser]:
    """The model with this reduction and a short prompt."""
    settings = ModelSettings(threads=threads, gpu_layers=0)
    model = LlamaModel.load(path, settings)
    model.on_gpu = "kinds" in options
    spec = describe(model.metadata, model.vocab_size, "random")
    with closing(SelfConditionedDenoiser(model, spec, settings, reduction=mode, **options)) as denoiser:
        denoiser.prefill(0, token_ids(range(24)))
        yield denoiser


def step_times(path: Path, options: argparse.Namespace) -> Iterator[str]:
    """Rows of the table."""
    with (
        opened(path, options.threads, Mode.HOST) as host,
        opened(path, options.threads, Mode.ROWS) as rows,
        opened(path, options.threads, Mode.OPS) as ops,
    ):
        rng = np.random.default_rng(0)
        for length in options.canvas:
            canvas = rng.integers(0, host.spec.vocab_size, length).astype(np.int32)
            for name, temperature in (("sure", SURE), ("flat", FLAT)):
                best = [float("inf")] * 3
                for number in range(options.rounds + 1):
                    for i, denoiser in enumerate((host, rows, ops)):
                        start = time.process_time()
                        denoiser.predict(0, [canvas], temperature, rng)
                        if number:  # the first one is not conditioned, and allocates
                            best[i] = min(best[i], 1e3 * (time.process_time() - start))
                yield f"| {length} | {name} | " + " | ".join(f"{each:.1f}" for each in best) + " |"


class _Device:
    """Functions that wait for the device run twice, and return at once afterwards; their time is not counted."""

    def __init__(self) -> None:
        self.seconds = self.transfers = 0.0

    def transfer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; its time counts as a copy to or from the device."""

        def call(*arguments: Any) -> Any:
            start = time.process_time()
            result = function(*arguments)
            self.transfers += time.process_time() - start
            return result

        return call

    def replaced(self, function: Callable[..., int]) -> Callable[..., int]:
        calls = iter(range(2))

        def call(*arguments: Any) -> int:
            start = time.process_time()
            status = function(*arguments) if next(calls, None) is not None else 0
            self.seconds += time.process_time() - start
            return status

        return call


def host_work(path: Path, options: argparse.Namespace) -> Iterator[str]:
    """Rows of the table."""
    rng, sampling, api, ggml = np.random.default_rng(0), UniformSampling(), library().api, device_feedback.functions()
    with opened(path, options.threads, Mode.OPS, kinds=("cpu",)) as denoiser:
        for length in options.canvas:
            canvas, device = rng.integers(0, denoiser.spec.vocab_size, length).astype(np.int32), _Device()
            step, times, copies = Step.before(Canvas(canvas, canvas, np.zeros(length, np.bool_))), [], []
            with (
                mock.patch.object(api, "llama_decode", device.replaced(api.llama_decode)),
                mock.patch.object(ggml, "backend_graph_compute", device.replaced(ggml.backend_graph_compute)),
                mock.patch.object(ggml, "backend_tensor_set", device.transfer(ggml.backend_tensor_set)),
                mock.patch.object(ggml, "backend_tensor_get", device.transfer(ggml.backend_tensor_get)),
                mock.patch.object(denoiser._reduction, "_read", device.transfer(denoiser._reduction._read)),
            ):
                for _ in range(2 + options.rounds):
                    device.seconds, device.transfers, start = 0.0, 0.0, time.process_time()
                    (prediction,) = denoiser.predict(0, [step.canvas_ids], SURE, rng)
                    step = replace(renoise(step, prediction, sampling, denoiser.spec.vocab_size, rng), number=1)
                    times.append(1e3 * (time.process_time() - start - device.seconds - device.transfers))
                    copies.append(1e3 * device.transfers)
            columns = (f"{statistics.median(each[2:]):.2f} / {min(each[2:]):.2f}" for each in (times, copies))
            yield f"| {length} | " + " | ".join(columns) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host-work", action="store_true")
    parser.add_argument("--width", type=int)
    parser.add_argument("--vocabulary", type=int, default=REAL.vocab_size)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--canvas", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    options.canvas = options.canvas or ([256] if options.host_work else [8, 16, 32, 64, 256])
    width = options.width or (REAL.hidden if options.host_work else 256)
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(Path(folder), shape_of(width, options.vocabulary))
        if options.host_work:
            print("| canvas | host work, median / best ms | copies to and from the device |\n|---|---|---|")
            rows = host_work(path, options)
        else:
            print("| canvas | positions | host | graph, by rows | graph, by operations |\n|---|---|---|---|---|")
            rows = step_times(path, options)
        for row in rows:
            print(row, flush=True)


if __name__ == "__main__":
    main()
