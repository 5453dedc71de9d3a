"""Time of a denoising step of DiffusionGemma at full size, with random weights, through transformers and llama.cpp.

    python benchmarks/gpu.py                                       # both; 60 GB of GPU memory, 28 GB of disk
    python benchmarks/gpu.py --backend transformers --canvas 32 --prompt 2048
    python benchmarks/gpu.py --backend llamacpp --type Q4_K --folder /var/tmp
    python benchmarks/gpu.py --toy                                 # a tiny model on the CPU, in seconds

Prints one JSON object per line; times are medians in milliseconds. The time of a step depends on the number of
different experts, not on the tokens: random weights choose experts almost uniformly, which is the worst case.

llama.cpp needs the changed build (`dg-lsp models build-runtime`), transformers needs `pip install
'dg-lsp[transformers]'`.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from random_gguf import TYPES, write_random
from shape import REAL, TOY, Shape, bandwidth_of

from dg_lsp.diffusion.denoiser import Denoiser

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 8192)
TOY_CANVASES, TOY_PROMPTS = (8, 16), (24, 100)
EXTENSION = 8
"""Tokens that a keystroke appends to the prompt."""
TEMPERATURE = 0.6
BITS = {"bfloat16": (16, 16), "Q4_K": (4.5, 6.56), "Q8_0": (8.5, 8.5), "F16": (16, 16)}
"""Bits of a weight and of a weight of the embedding."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of `predict` for one canvas, including the host, the device and copies."""

    backend: str
    type: str
    """Number format of the weights."""
    mode: str
    """`eager`, `graphs` or `compiled graphs` of transformers."""
    prompt: int
    canvas: int
    step_ms: float
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
        for row in measure(subject, shape, options):
            values = {key: round(value, 3) if isinstance(value, float) else value for key, value in asdict(row).items()}
            print(json.dumps({"device": subject.device, **values}), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--backend", action="append", choices=("transformers", "llamacpp"))
    parser.add_argument("--type", action="append", choices=TYPES, help="number format of llama.cpp's weights")
    parser.add_argument("--canvas", action="append", type=int, help="tokens of a canvas")
    parser.add_argument("--prompt", action="append", type=int, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="directory for the GGUF, which is removed afterwards")
    return parser


def _subjects(shape: Shape, options: argparse.Namespace) -> Iterator[Subject]:
    """Opens the models one after the other; each is closed before the next one is opened."""
    backends = options.backend or ("transformers", "llamacpp")
    if "transformers" in backends:
        yield from _transformers_subjects(shape, options)
    for kind in (options.type or ("Q4_K", "Q8_0")) if "llamacpp" in backends else ():
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            yield from _llamacpp_subjects(shape, kind, Path(folder) / "random.gguf", options)


def _llamacpp_subjects(shape: Shape, kind: str, path: Path, options: argparse.Namespace) -> Iterator[Subject]:
    from dg_lsp.backends.llamacpp import devices
    from dg_lsp.cli.loading import load_model, open_denoiser
    from dg_lsp.settings import ModelSettings, Settings

    gpus = [device.name for device in devices() if device.kind in ("gpu", "igpu")]  # loads the changed llama.cpp
    write_random(shape, kind, path)
    runtime = {"threads": 1, "gpu_layers": 0} if options.toy else {}
    settings = Settings(model=ModelSettings(name=str(path), **runtime))
    denoiser = open_denoiser(load_model(settings), settings)
    try:
        yield Subject(denoiser, "llamacpp", kind, "", gpus[0] if gpus and not options.toy else "CPU")
    finally:
        denoiser.close()


def _transformers_subjects(shape: Shape, options: argparse.Namespace) -> Iterator[Subject]:
    import torch

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
        denoiser = TransformersDenoiser(network, spec, _NoText(), 1, steps)
        name = torch.cuda.get_device_name(device) if on_gpu else "CPU"
        try:
            yield Subject(denoiser, "transformers", "bfloat16", mode, name)
        finally:
            denoiser.close()


class _NoText:
    """A tokenizer that is never used."""

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Not supported."""
        raise NotImplementedError

    def decode(self, ids: npt.NDArray[np.int32]) -> bytes:
        """Not supported."""
        raise NotImplementedError

    def special(self, spelling: str) -> int | None:
        """Not supported."""
        raise NotImplementedError


def measure(subject: Subject, shape: Shape, options: argparse.Namespace) -> Iterator[StepTime | PrefillTime]:
    """Yields for each prompt the time of a step for each canvas, and of the prefill."""
    denoiser, rng = subject.denoiser, np.random.default_rng(0)
    names = (subject.backend, subject.type, subject.mode)
    bandwidth, bits = bandwidth_of(subject.device), BITS[subject.type]
    for prompt in sorted({min(length, denoiser.spec.max_prompt_tokens - EXTENSION) for length in options.prompt}):
        ids = rng.integers(0, shape.vocab_size, prompt + EXTENSION).astype(np.int32)
        steps = {}
        for canvas in options.canvas:
            canvas_ids = rng.integers(0, shape.vocab_size, canvas).astype(np.int32)

            def step(canvas_ids: npt.NDArray[np.int32] = canvas_ids) -> None:
                denoiser.predict(0, [canvas_ids], TEMPERATURE, rng)

            denoiser.prefill(0, ids[:prompt])
            for _ in range(4):  # compiles and captures
                step()
            steps[canvas] = step, statistics.median(_milliseconds(step) for _ in range(options.rounds))
            size = shape.step_bytes(canvas, prompt, bits=bits[0], embedding_bits=bits[1])
            floor = 1e3 * size / bandwidth if bandwidth else None
            yield StepTime(*names, prompt, canvas, steps[canvas][1], floor)
        # prefill does not wait for the device, a step does: measure both and subtract the step
        step, step_ms = steps[min(steps)]
        times = [_prefill(denoiser, ids, prompt, step) for _ in range(max(3, options.rounds // 3))]
        whole, extension = (statistics.median(column) - step_ms for column in zip(*times, strict=True))
        yield PrefillTime(*names, prompt, whole, extension)


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
