"""DiffusionGemma at full size with random weights on a GPU, through transformers or llama.cpp: Markdown tables.

    python -m dg_benchmarks.gpu transformers bfloat16                     # 60 GB of GPU memory
    python -m dg_benchmarks.gpu llamacpp Q4_K --folder /var/tmp           # 18 GB of GPU memory and of disk
    python -m dg_benchmarks.gpu llamacpp Q8_0 --canvas 32 --prompt 2048
    GGML_CUDA_DISABLE_GRAPHS=1 python -m dg_benchmarks.gpu llamacpp Q8_0  # without CUDA graphs
    python -m dg_benchmarks.gpu llamacpp Q8_0 --toy                       # a tiny model on the CPU, in seconds

Times are medians in milliseconds. Each table is printed when its rows are measured for all prompts; what is measured
before Ctrl-C, or before the time of `--minutes`, is printed too.

- The time of a step depends on the number of different experts, not on the tokens: random weights choose experts almost
  uniformly, which is the worst case.
- The host's share of a step is what remains without the calls that run the graph and wait for its results.
- Autoregression runs on the same weights: a causal pass of one token, and one of 8, which checks a draft. Random
  weights accept no draft, so the table has the number of tokens that a canvas or a draft must gain to be as fast. Numpy
  reduces the logits of these passes.

llama.cpp needs the changed build (`dg-lsp models build-runtime`); transformers needs `pip install '.[transformers]'` in
the clone.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import numpy.typing as npt

from dg_benchmarks.random_gguf import write_random
from dg_benchmarks.shape import REAL, TOY, Shape, bandwidth_of
from dg_benchmarks.steps import medians, nothing, timed_calls
from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import GraphReduction
from dg_lsp.bench.metrics import Table
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.system import peak_bytes

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 8192)
TOY_CANVASES, TOY_PROMPTS = (8, 16), (24, 100)
EXTENSION = 8
"""Tokens that a keystroke appends to the prompt."""
TEMPERATURE = 0.6
CAUSAL_SIZES = (1, EXTENSION)
BITS = {"bfloat16": (16, 16), "Q4_K": (4.5, 6.56), "Q8_0": (8.5, 8.5), "F16": (16, 16)}
"""Bits of a weight and of a weight of the embedding."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of `predict` for one canvas, including the host, the device and copies."""

    prompt: int
    canvas: int
    step_ms: float
    host_share: float
    """Part of the step outside the calls to the runtime."""
    floor_ms: float | None
    """The bytes that a step must read over the memory bandwidth; None for an unlisted device."""
    over_floor: float | None


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Prompt tokens decoded from the start, and `EXTENSION` more at the end of a cached prompt."""

    prompt: int
    prefill_ms: float
    extension_ms: float


@dataclass(frozen=True, slots=True)
class CausalTime:
    """A causal pass of some tokens after a cached prompt, with their predictions."""

    prompt: int
    tokens: int
    pass_ms: float
    break_even: dict[str, float]
    """By canvas length, causal passes of this size in the time of a step."""
    draft_break_even: float
    """Passes of one token in the time of this one: what a draft must gain."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """At the end of a part; contexts do not shrink. 0 without a GPU."""

    gpu_gb: float
    """Used by everything on the model's GPUs."""
    gpu_estimate_gb: float
    """Estimated before loading."""
    host_peak_gb: float
    """Largest resident memory of the process so far."""


Row = StepTime | PrefillTime | CausalTime | MemoryUse
CAPTIONS = {
    StepTime: "Denoising steps",
    PrefillTime: f"Prefill, and {EXTENSION} more tokens",
    CausalTime: "Autoregression and drafts on the same weights",
    MemoryUse: "Memory",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the results."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.backend == "transformers") is not (options.type == "bfloat16"):
        parser.error("transformers has bfloat16, llama.cpp the others")
    options.canvas = options.canvas or (TOY_CANVASES if options.toy else CANVASES)
    options.prompt = options.prompt or (TOY_PROMPTS if options.toy else PROMPTS)
    shape = TOY if options.toy else REAL
    rows: list[Row] = []
    opening = _open_transformers if options.backend == "transformers" else _open_llamacpp
    with opening(shape, options) as (denoiser, device):
        print(f"## {options.backend} {options.type}, {device}\n")
        try:
            rows.extend(measure(denoiser, device, shape, options))
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
    print("\n".join(line for table in tables(rows) for line in table.markdown()))


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One Markdown table per kind of row."""
    for kind, caption in CAPTIONS.items():
        names = [field.name for field in fields(kind)]
        own = [[_cell(getattr(row, name)) for name in names] for row in rows if isinstance(row, kind)]
        if own:
            yield Table(caption, [name.replace("_", " ") for name in names], own)


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number:.1f} at {key}" for key, number in value.items())
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=("transformers", "llamacpp"))
    parser.add_argument("type", choices=BITS, help="number format of the weights; bfloat16: transformers")
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--canvas", action="append", type=int, help="tokens of a canvas")
    parser.add_argument("--prompt", action="append", type=int, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begins with no prompt after this time")
    parser.add_argument("--folder", type=Path, help="directory for the GGUF, which is removed afterwards")
    return parser


@contextmanager
def _open_llamacpp(shape: Shape, options: argparse.Namespace) -> Iterator[tuple[Denoiser, str]]:
    from dg_lsp.backends.llamacpp.library import gpus
    from dg_lsp.cli.loading import open_local
    from dg_lsp.settings import ModelSettings, Settings

    names = [] if options.toy else [device.name for device in gpus()]  # loads the changed llama.cpp
    if not names and not options.toy:
        sys.exit("llama.cpp lists no GPU: run dg-lsp doctor, or use --toy")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "random.gguf"
        write_random(shape, options.type, path)
        runtime = ModelSettings(name=str(path))
        if options.toy:
            runtime = attrs.evolve(runtime, threads=1, gpu_layers=0)
        with closing(open_local(Settings(model=runtime))[1]) as denoiser:
            yield denoiser, names[0] if names else "CPU"


@contextmanager
def _open_transformers(shape: Shape, options: argparse.Namespace) -> Iterator[tuple[Denoiser, str]]:
    import torch

    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
    from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork
    from dg_lsp.canvas.layout import Tokenizer
    from dg_lsp.canvas.spec import ModelSpec, UniformSampling

    if options.toy:
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        sys.exit("torch finds no GPU: use --toy")
    device = torch.device("cpu") if options.toy else torch.device("cuda", 0)
    network = DiffusionGemmaNetwork(random_model(shape, device, torch.bfloat16))
    spec = ModelSpec(
        "random",
        shape.vocab_size,
        UniformSampling(),
        (1,),
        canvas_lengths=tuple(sorted(options.canvas)),
        max_prompt_tokens=max(options.prompt) + EXTENSION,
        has_causal_head=False,
    )
    tokenizer = mock.create_autospec(Tokenizer, instance=True)  # no text is encoded
    with closing(TransformersDenoiser(network, spec, tokenizer, 1)) as denoiser:
        yield denoiser, "CPU" if options.toy else torch.cuda.get_device_name(device)


def measure(denoiser: Denoiser, device: str, shape: Shape, options: argparse.Namespace) -> Iterator[Row]:
    """Yields for each prompt the time of a step for each canvas, of the prefill and of causal passes; then memory."""
    end = time.monotonic() + 60 * options.minutes
    rng = np.random.default_rng(0)
    bandwidth = bandwidth_of(device)
    bits, embedding_bits = BITS[options.type]
    for prompt in sorted({min(length, denoiser.spec.max_prompt_tokens - EXTENSION) for length in options.prompt}):
        if time.monotonic() > end:
            print(f"out of time, no prompt of {prompt} tokens", file=sys.stderr)
            continue
        ids = rng.integers(0, shape.vocab_size, prompt + EXTENSION).astype(np.int32)
        steps = {}
        times = dict[int, float]()
        for canvas in options.canvas:
            canvas_ids = rng.integers(0, shape.vocab_size, canvas).astype(np.int32)
            step = partial(denoiser.predict, 0, [canvas_ids], TEMPERATURE, rng)
            denoiser.prefill(0, ids[:prompt])
            for _ in range(4):  # llama.cpp captures CUDA graphs
                step()
            steps[canvas] = step
            [times[canvas]] = medians([(nothing, step)], options.rounds)
            size = shape.step_bytes(canvas, prompt, bits=bits, embedding_bits=embedding_bits)
            floor = 1e3 * size / bandwidth if bandwidth else None
            over = times[canvas] / floor if floor else None
            share = _host_share(denoiser, step, options.rounds)
            yield StepTime(prompt, canvas, times[canvas], share, floor, over)
        # prefill does not wait for the device, a step does: measure both and subtract the step
        shortest = min(steps)
        empty, whole, extended = (
            partial(_prefill, denoiser, ids[:length], steps[shortest]) for length in (0, prompt, prompt + EXTENSION)
        )
        prefills = medians([(empty, whole), (nothing, extended)], max(3, options.rounds // 3))
        yield PrefillTime(prompt, *(ms - times[shortest] for ms in prefills))
        if options.backend == "llamacpp":
            yield from _causal_times(denoiser, ids, times, options.rounds)
    used = denoiser.footprint
    gpu = sum(device.total - device.free for device in used.devices) / 1e9
    yield MemoryUse(gpu, used.gpu_estimate / 1e9, (peak_bytes() or 0) / 1e9)


def _host_share(denoiser: Any, step: Callable[[], object], rounds: int) -> float:
    """Share of the time of steps outside the functions that run the graph and wait for its results."""
    times: list[float] = []
    with ExitStack() as stack:
        for owner, function in _device_calls(denoiser):
            stack.enter_context(timed_calls(owner, function, times))
        start = time.perf_counter()
        for _ in range(rounds):
            step()
        total = 1e3 * (time.perf_counter() - start)
    return 1 - sum(times) / total


def _device_calls(denoiser: Any) -> Iterator[tuple[object, str]]:
    """The functions that run on the device, or that wait for it: results are awaited where they are read."""
    if isinstance(denoiser, LlamaDenoiser):
        yield from ((denoiser._context, "decode"), (denoiser._context, "logits"))
    else:
        yield denoiser._network, "step"
    if isinstance(reduction := getattr(denoiser, "_reduction", None), GraphReduction):
        yield reduction, "_read"


def _causal_times(
    denoiser: Any, ids: npt.NDArray[np.int32], steps: dict[int, float], rounds: int
) -> Iterator[CausalTime]:
    """The model is not trained for it, so that its spec excludes causal passes; they take the same time."""
    spec = denoiser.spec
    prompt = len(ids) - EXTENSION
    denoiser.spec = replace(spec, has_causal_head=True)
    try:
        jobs = [
            (partial(denoiser.prefill, 0, ids[:prompt]), partial(denoiser.extend, 0, ids[prompt : prompt + size]))
            for size in CAUSAL_SIZES
        ]
        causal_ms = dict(zip(CAUSAL_SIZES, medians(jobs, rounds), strict=True))
    finally:
        denoiser.spec = spec
    for size, ms in causal_ms.items():
        yield CausalTime(prompt, size, ms, {str(n): step / ms for n, step in steps.items()}, ms / causal_ms[1])


def _prefill(denoiser: Denoiser, ids: npt.NDArray[np.int32], step: Callable[[], object]) -> None:
    denoiser.prefill(0, ids)
    step()


def random_model(shape: Shape, device: Any, dtype: Any) -> Any:
    """A random `DiffusionGemmaForBlockDiffusion` on a device; encoder and decoder share their weights."""
    import torch
    from accelerate import init_empty_weights
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    config = DiffusionGemmaConfig(**shape.config())
    config._experts_implementation = "grouped_mm"
    with init_empty_weights(include_buffers=False):  # modules compute their buffers
        model = DiffusionGemmaForBlockDiffusion(config)
    model.model.encoder.vision_tower = model.model.encoder.embed_vision = None
    model.tie_weights()
    generator = torch.Generator(device).manual_seed(0)
    made: dict[int, Any] = {}
    for name, module in list(model.named_modules()):
        for key, weight in list(module._parameters.items()):
            if weight is not None and id(weight) not in made:
                values = torch.empty(weight.shape, dtype=dtype, device=device)
                scale = 0.02 if "embed_tokens" in name else weight.shape[-1] ** -0.5
                values = values.fill_(1.0) if weight.dim() < 2 else values.normal_(0, scale, generator=generator)
                made[id(weight)] = torch.nn.Parameter(values, requires_grad=False)
            module._parameters[key] = None if weight is None else made[id(weight)]
        for key, buffer in list(module._buffers.items()):
            module._buffers[key] = None if buffer is None else buffer.to(device)
    return model.eval()


if __name__ == "__main__":
    main()
