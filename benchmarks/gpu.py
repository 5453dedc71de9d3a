"""DiffusionGemma at full size with random weights on a GPU, through transformers and llama.cpp: one Markdown table.

    python benchmarks/gpu.py                                       # all parts; 60 GB of GPU memory, 28 GB of disk
    python benchmarks/gpu.py --backend transformers --canvas 32 --prompt 2048
    python benchmarks/gpu.py --backend llamacpp --type Q4_K --folder /var/tmp
    python benchmarks/gpu.py --toy                                 # a tiny model on the CPU, in seconds

A part is one way to run one set of weights: transformers eager, with CUDA graphs and compiled; llama.cpp by number
format, with CUDA graphs and without. Prints the tables of a part when it ends, or with `--json` one object per line.
Times are medians in milliseconds. A part measures for at most 7 minutes, and then leaves out the longest prompts; with
the load it takes an estimated 1 to 8 minutes, which no GPU has confirmed.

- The time of a step depends on the number of different experts, not on the tokens: random weights choose experts almost
  uniformly, which is the worst case.
- The host's share of a step is what remains without the calls that run the graph and wait for its results.
- Autoregression runs on the same weights: a causal pass of one token, and one of 8, which checks a draft. Random
  weights accept no draft, so the table has the number of tokens that a canvas or a draft must gain to be as fast.

llama.cpp needs the changed build (`dg-lsp models build-runtime`), transformers needs `pip install
'dg-lsp[transformers]'`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from random_gguf import TYPES, write_random
from shape import REAL, TOY, Shape, bandwidth_of
from step_parts import Timer, functions_of

from dg_lsp.bench.metrics import Table
from dg_lsp.bench.steps import medians
from dg_lsp.diffusion.denoiser import Denoiser

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 8192)
TOY_CANVASES, TOY_PROMPTS = (8, 16), (24, 100)
EXTENSION = 8
"""Tokens that a keystroke appends to the prompt."""
TEMPERATURE = 0.6
PART_SECONDS = 420.0
"""After this time a part starts no further prompt."""
NO_GRAPHS = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
"""llama.cpp reads it once in a process."""
CAUSAL_SIZES = (1, EXTENSION)
BITS = {"bfloat16": (16, 16), "Q4_K": (4.5, 6.56), "Q8_0": (8.5, 8.5), "F16": (16, 16)}
"""Bits of a weight and of a weight of the embedding."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of `predict` for one canvas, including the host, the device and copies."""

    backend: str
    type: str
    """Number format of the weights."""
    mode: str
    """`eager`, `graphs` or `compiled graphs` of transformers; `graphs` or `no graphs` of llama.cpp."""
    sampling: str
    """Where logits become predictions: `host` or `device`."""
    prompt: int
    canvas: int
    step_ms: float
    host_share: float
    """Part of the step outside the calls to the runtime."""
    floor_ms: float | None
    """The bytes that a step must read over the memory bandwidth; None for an unlisted device."""


@dataclass(frozen=True, slots=True)
class PrefillTime:
    """Prompt tokens decoded from the start, and `EXTENSION` more at the end of a cached prompt."""

    backend: str
    type: str
    mode: str
    prompt: int
    prefill_ms: float
    extension_ms: float


@dataclass(frozen=True, slots=True)
class CausalTime:
    """A causal pass of some tokens after a cached prompt, with their predictions."""

    backend: str
    type: str
    mode: str
    prompt: int
    tokens: int
    pass_ms: float
    break_even: dict[int, float]
    """By canvas length, causal passes of this size in the time of a step."""
    draft_break_even: float
    """Passes of one token in the time of this one: what a draft must gain."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """At the end of a part; contexts do not shrink. 0 without a GPU."""

    backend: str
    type: str
    mode: str
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


@dataclass(frozen=True, slots=True)
class Subject:
    """An open model."""

    denoiser: Denoiser
    backend: str
    type: str
    mode: str
    device: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the results."""
    options = _parser().parse_args(arguments)
    shape = TOY if options.toy else REAL
    options.canvas = options.canvas or (TOY_CANVASES if options.toy else CANVASES)
    options.prompt = options.prompt or (TOY_PROMPTS if options.toy else PROMPTS)
    for subject in _subjects(shape, options):
        rows = []
        for row in measure(subject, shape, options):
            rows.append(row)
            if options.json:
                print(json.dumps({"device": subject.device, **_rounded(asdict(row))}), flush=True)
        if not options.json:
            heading = " ".join(part for part in (subject.backend, subject.type, subject.mode) if part)
            print(f"## {heading}, {subject.device}\n")
            print("\n".join(line for table in tables(rows) for line in table.markdown()), flush=True)


def tables(rows: Sequence[Row]) -> Iterator[Table]:
    """One Markdown table per kind of row."""
    for kind, caption in CAPTIONS.items():
        names = [field.name for field in fields(kind) if field.name not in ("backend", "type", "mode")]
        own = [[_cell(getattr(row, name)) for name in names] for row in rows if isinstance(row, kind)]
        if own:
            yield Table(caption, [name.replace("_", " ") for name in names], {"": own})


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number:.1f} at {key}" for key, number in value.items())
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)


def _rounded(tree: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in tree.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--backend", action="append", choices=("transformers", "llamacpp"))
    parser.add_argument("--type", action="append", choices=TYPES, help="number format of llama.cpp's weights")
    parser.add_argument("--canvas", action="append", type=int, help="tokens of a canvas")
    parser.add_argument("--prompt", action="append", type=int, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of Markdown")
    parser.add_argument("--gguf", type=Path, help=argparse.SUPPRESS)  # of the process without graphs
    parser.add_argument("--folder", type=Path, help="directory for the GGUF, which is removed afterwards")
    return parser


def _subjects(shape: Shape, options: argparse.Namespace) -> Iterator[Subject]:
    """Opens the models one after the other; each is closed before the next one is opened."""
    backends = options.backend or ("transformers", "llamacpp")
    if "transformers" in backends:
        yield from _transformers_subjects(shape, options)
    for kind in (options.type or ("Q4_K", "Q8_0")) if "llamacpp" in backends else ():
        if options.gguf is not None:
            yield from _llamacpp_subjects(kind, options.gguf, options)
            continue
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            path = Path(folder) / "random.gguf"
            write_random(shape, kind, path)
            yield from _llamacpp_subjects(kind, path, options)
            _run_without_graphs(kind, path, options)


def _run_without_graphs(kind: str, path: Path, options: argparse.Namespace) -> None:
    """The same part in another process, which prints its own rows."""
    command = [sys.executable, __file__, "--backend", "llamacpp", "--type", kind, "--gguf", str(path)]
    command += ["--rounds", str(options.rounds)]
    command += [
        part for name in ("canvas", "prompt") for size in getattr(options, name) for part in (f"--{name}", str(size))
    ]
    command += ["--toy"] * options.toy + ["--json"] * options.json
    done = subprocess.run(command, env={**os.environ, **NO_GRAPHS}, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, end="", flush=True)


def _llamacpp_subjects(kind: str, path: Path, options: argparse.Namespace) -> Iterator[Subject]:
    from dg_lsp.backends.llamacpp import devices
    from dg_lsp.cli.loading import load_model, open_denoiser
    from dg_lsp.settings import ModelSettings, Settings

    gpus = [device.name for device in devices() if device.kind in ("gpu", "igpu")]  # loads the changed llama.cpp
    runtime = {"threads": 1, "gpu_layers": 0} if options.toy else {}
    settings = Settings(model=ModelSettings(name=str(path), **runtime))
    denoiser = open_denoiser(load_model(settings), settings)
    try:
        mode = "no graphs" if NO_GRAPHS.keys() <= os.environ.keys() else "graphs"
        yield Subject(denoiser, "llamacpp", kind, mode, gpus[0] if gpus and not options.toy else "CPU")
    finally:
        denoiser.close()


def _transformers_subjects(shape: Shape, options: argparse.Namespace) -> Iterator[Subject]:
    import torch

    from dg_lsp.backends.scripted import ByteTokenizer  # no text is encoded
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
    from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork, StepOptions
    from dg_lsp.canvas.spec import ModelSpec, UniformSampling

    if options.toy:
        torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available() and not options.toy
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
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
    modes = {"eager": (False, False), "graphs": (True, False), "compiled graphs": (True, True)}
    for mode, (captures, compiles) in modes.items() if on_gpu else [("eager", (False, False))]:
        steps = StepOptions(captures=captures, compiles=compiles)
        denoiser = TransformersDenoiser(network, spec, ByteTokenizer(), 1, steps)
        name = torch.cuda.get_device_name(device) if on_gpu else "CPU"
        try:
            yield Subject(denoiser, "transformers", "bfloat16", mode, name)
        finally:
            denoiser.close()


def measure(subject: Subject, shape: Shape, options: argparse.Namespace) -> Iterator[Row]:
    """Yields for each prompt the time of a step for each canvas, of the prefill and of causal passes; then memory."""
    denoiser, rng = subject.denoiser, np.random.default_rng(0)
    names = (subject.backend, subject.type, subject.mode)
    bandwidth, bits = bandwidth_of(subject.device), BITS[subject.type]
    end = time.monotonic() + PART_SECONDS
    for prompt in sorted({min(length, denoiser.spec.max_prompt_tokens - EXTENSION) for length in options.prompt}):
        if time.monotonic() > end:
            print(f"{' '.join(names)}: out of time, no prompt of {prompt} tokens", file=sys.stderr)
            continue
        ids = rng.integers(0, shape.vocab_size, prompt + EXTENSION).astype(np.int32)
        steps, times = {}, dict[int, float]()
        for canvas in options.canvas:
            canvas_ids = rng.integers(0, shape.vocab_size, canvas).astype(np.int32)

            def step(canvas_ids: npt.NDArray[np.int32] = canvas_ids) -> None:
                denoiser.predict(0, [canvas_ids], TEMPERATURE, rng)

            denoiser.prefill(0, ids[:prompt])
            for _ in range(4):  # compiles and captures
                step()
            steps[canvas], times[canvas] = step, statistics.median(_milliseconds(step) for _ in range(options.rounds))
            size = shape.step_bytes(canvas, prompt, bits=bits[0], embedding_bits=bits[1])
            floor = 1e3 * size / bandwidth if bandwidth else None
            share, sampling = _host_share(denoiser, step, options.rounds), denoiser.footprint.sampling
            yield StepTime(*names, sampling, prompt, canvas, times[canvas], share, floor)
        # prefill does not wait for the device, a step does: measure both and subtract the step
        step, step_ms = steps[min(steps)], times[min(steps)]
        pairs = [_prefill(denoiser, ids, prompt, step) for _ in range(max(3, options.rounds // 3))]
        whole, extension = (statistics.median(column) - step_ms for column in zip(*pairs, strict=True))
        yield PrefillTime(*names, prompt, whole, extension)
        if subject.backend == "llamacpp":
            yield from _causal_times(denoiser, names, ids, times, options.rounds)
    used = denoiser.footprint
    gpu = sum(device.total - device.free for device in used.devices) / 1e9
    scale = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9
    yield MemoryUse(*names, gpu, used.gpu_estimate / 1e9, peak)


def _host_share(denoiser: Any, step: Callable[[], None], rounds: int) -> float:
    """Share of the time of steps outside the functions that run the graph and wait for its results."""
    timer = Timer()
    with ExitStack() as stack:
        for owner, function in functions_of(denoiser)["decode"]:
            stack.enter_context(timer.replacing(owner, function, "decode"))
        total = sum(_milliseconds(step) for _ in range(rounds))
    return 1 - timer.ms["decode"] / total


def _causal_times(
    denoiser: Any, names: tuple[str, str, str], ids: npt.NDArray[np.int32], steps: dict[int, float], rounds: int
) -> Iterator[CausalTime]:
    """The model is not trained for it, so that its spec excludes causal passes; they take the same time."""
    spec, prompt = denoiser.spec, len(ids) - EXTENSION
    denoiser.spec = replace(spec, has_causal_head=True)
    try:
        jobs = [
            (partial(denoiser.prefill, 0, ids[:prompt]), partial(denoiser.extend, 0, ids[prompt : prompt + size]))
            for size in CAUSAL_SIZES
        ]
        found = dict(zip(CAUSAL_SIZES, medians(jobs, rounds), strict=True))
    finally:
        denoiser.spec = spec
    for size, ms in found.items():
        yield CausalTime(*names, prompt, size, ms, {n: step / ms for n, step in steps.items()}, ms / found[1])


def _prefill(
    denoiser: Denoiser, ids: npt.NDArray[np.int32], prompt: int, step: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a step and the whole prompt, and of a step and the extension."""

    def prefill(length: int) -> None:
        denoiser.prefill(0, ids[:length])
        step()

    denoiser.prefill(0, ids[:0])
    step()
    return _milliseconds(lambda: prefill(prompt)), _milliseconds(lambda: prefill(prompt + EXTENSION))


def _milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def random_model(shape: Shape, device: Any, dtype: Any) -> Any:
    """A random `DiffusionGemmaForBlockDiffusion` on a device; encoder and decoder share their weights."""
    import torch
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    config = DiffusionGemmaConfig(**shape.config())
    config._experts_implementation = "grouped_mm"
    with _parameters_on_meta():
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


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters of new modules have no memory; buffers are real, because modules compute them."""
    from torch import nn

    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, weight: nn.Parameter | None) -> None:
        register(module, name, weight)
        if weight is not None:
            module._parameters[name] = nn.Parameter(weight.to("meta"), requires_grad=False)

    nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


if __name__ == "__main__":
    main()
