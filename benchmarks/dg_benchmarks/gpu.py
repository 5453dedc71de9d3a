"""DiffusionGemma at full size with random weights on a GPU, through transformers and llama.cpp: Markdown tables.

    python -m dg_benchmarks.gpu                          # all parts; 60 GB of GPU memory, 30 GB of disk
    python -m dg_benchmarks.gpu --minutes 9              # stops in time; the same command again continues
    python -m dg_benchmarks.gpu --backend transformers --canvas 32 --prompt 2048
    python -m dg_benchmarks.gpu --backend llamacpp --type Q4_K --folder /var/tmp
    python -m dg_benchmarks.gpu --toy                    # a tiny model on the CPU, in seconds

A part is one way to run one set of weights: transformers; llama.cpp by number
format, with CUDA graphs and without. Each part is a process of its own, which is stopped after 8 minutes. Its rows are
added to the file `--output` as they are measured, and its tables are printed when it ends. Parts that are complete in
this file, with the same options, are not run again. A part that fails leaves the others alone. At the end stands one
table of all parts.

Times are medians in milliseconds. No GPU has run this script.

- The time of a step depends on the number of different experts, not on the tokens: random weights choose experts almost
  uniformly, which is the worst case.
- The host's share of a step is what remains without the calls that run the graph and wait for its results.
- Autoregression runs on the same weights: a causal pass of one token, and one of 8, which checks a draft. Random
  weights accept no draft, so the table has the number of tokens that a canvas or a draft must gain to be as fast. Numpy
  reduces the logits of these passes.

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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import numpy.typing as npt

from dg_benchmarks.random_gguf import TYPES, write_random
from dg_benchmarks.shape import REAL, TOY, Shape, bandwidth_of
from dg_benchmarks.steps import medians
from dg_lsp.backends.llamacpp.denoiser import ContextDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma.device_reduction import GraphReduction
from dg_lsp.bench.metrics import Table
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.ttfue import rounded
from dg_lsp.errors import DgLspError

CANVASES, PROMPTS = (16, 32, 64, 128, 256), (512, 2048, 8192)
TOY_CANVASES, TOY_PROMPTS = (8, 16), (24, 100)
EXTENSION = 8
"""Tokens that a keystroke appends to the prompt."""
TEMPERATURE = 0.6
PART_SECONDS = 480.0
"""After this time a part is stopped."""
LEAST_SECONDS = 120.0
"""With less time left no weights are written and no part begins: it would be stopped while it loads."""
SHARE_OF_PROMPTS = 0.8
"""Share of its time after which a part begins with no further prompt."""
EAGER, GRAPHS, WITHOUT_GRAPHS = "eager", "graphs", "no graphs"
"""Of transformers: whether steps are captured as CUDA graphs, and whether they are compiled."""
NO_GRAPHS = {"GGML_CUDA_DISABLE_GRAPHS": "1"}
"""llama.cpp reads it once in a process."""
CAUSAL_SIZES = (1, EXTENSION)
BITS = {"bfloat16": (16, 16), "Q4_K": (4.5, 6.56), "Q8_0": (8.5, 8.5), "F16": (16, 16)}
"""Bits of a weight and of a weight of the embedding."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of `predict` for one canvas, including the host, the device and copies."""

    sampling: str
    """Where logits become predictions: `host` or `device`."""
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
KINDS = {kind.__name__: kind for kind in (StepTime, PrefillTime, CausalTime, MemoryUse)}
CAPTIONS = {
    StepTime: "Denoising steps",
    PrefillTime: f"Prefill, and {EXTENSION} more tokens",
    CausalTime: "Autoregression and drafts on the same weights",
    MemoryUse: "Memory",
}


@dataclass(frozen=True, slots=True)
class Part:
    """One way to run one set of weights."""

    backend: str
    type: str  # number format of the weights
    mode: str  # `EAGER` for transformers, `GRAPHS` or `WITHOUT_GRAPHS` for llama.cpp

    def __str__(self) -> str:
        return f"{self.backend} {self.type} {self.mode}"


@dataclass(slots=True)
class Result:
    """What is known of a part; empty `ending` while it runs, `done` when it is complete, else the problem."""

    measured: dict[str, Any] = field(default_factory=dict)
    """What was to be measured."""
    device: str = ""
    rows: list[Row] = field(default_factory=list)
    ending: str = ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints the results."""
    options = _parser().parse_args(arguments)
    options.canvas = options.canvas or (TOY_CANVASES if options.toy else CANVASES)
    options.prompt = options.prompt or (TOY_PROMPTS if options.toy else PROMPTS)
    if options.part:
        for line in _measured_lines(Part(*options.part), options):
            print(line, flush=True)
        return
    end = time.monotonic() + 60 * options.minutes
    for type_ in options.type or ("Q4_K", "bfloat16", "Q8_0"):
        listed = [part for part in _parts(options) if part.type == type_]
        _run_parts([part for part in listed if not _is_done(part, options)], options, end)
    results = _results(options.output)
    print("\n".join(_overview(results).markdown()))
    print("\n".join(f"{part}: {result.ending or 'not complete'}" for part, result in results.items()))


def _is_done(part: Part, options: argparse.Namespace) -> bool:
    result = _results(options.output)[part]
    return result.ending == "done" and result.measured == _begun(part, options)["measured"]


def _begun(part: Part, options: argparse.Namespace) -> dict[str, Any]:
    """The first line of a part in the file of results."""
    names = ("canvas", "prompt", "rounds", "toy")
    return {"part": astuple(part), "measured": json.loads(json.dumps({name: getattr(options, name) for name in names}))}


def _parts(options: argparse.Namespace) -> Iterator[Part]:
    backends = options.backend or ("llamacpp", "transformers")
    if "transformers" in backends:
        yield Part("transformers", "bfloat16", EAGER)
    for kind in TYPES if "llamacpp" in backends else ():
        yield from (Part("llamacpp", kind, mode) for mode in (GRAPHS, WITHOUT_GRAPHS))


def _run_parts(parts: Sequence[Part], options: argparse.Namespace, end: float) -> None:
    """Runs the parts of one number format, which share a file of weights, until the time `end`."""
    last_start = end - (0 if options.toy else LEAST_SECONDS)
    if not parts or time.monotonic() >= last_start:
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "random.gguf"
        try:
            if parts[0].backend == "llamacpp":
                write_random(TOY if options.toy else REAL, parts[0].type, path)
        except (DgLspError, OSError, ImportError, RuntimeError) as error:  # no space, or no llama.cpp
            for part in parts:
                _write(options.output, _begun(part, options), {"ending": f"failed: {error}"})
            return
        for part in parts:
            if (moment := time.monotonic()) < last_start:
                _run_part(part, path, options, min(PART_SECONDS, end - moment))
                result = _results(options.output)[part]
                print(f"## {part}, {result.device}: {result.ending}\n")
                print("\n".join(line for table in tables(result.rows) for line in table.markdown()), flush=True)


def _run_part(part: Part, path: Path, options: argparse.Namespace, seconds: float) -> None:
    """Runs a part in another process; its lines and its end are added to the output."""
    command = [sys.executable, __file__, "--part", part.backend, part.type, part.mode, "--gguf", str(path)]
    command += ["--rounds", str(options.rounds), "--seconds", str(seconds)] + ["--toy"] * options.toy
    command += [
        word for name in ("canvas", "prompt") for size in getattr(options, name) for word in (f"--{name}", str(size))
    ]
    graphs = NO_GRAPHS if part.mode == WITHOUT_GRAPHS else {}
    search_path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": search_path, **graphs}
    _write(options.output, _begun(part, options))
    with options.output.open("a", encoding="utf-8") as output, tempfile.TemporaryFile("w+") as problems:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=problems)
        try:
            ending = {0: "done"}.get(process.wait(seconds), "")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            ending = f"stopped after {seconds:.0f} s"
        problems.seek(0)
        text = problems.read()
        print(text, end="", file=sys.stderr)
    _write(options.output, {"ending": ending or f"failed: {(text.strip() or '?').splitlines()[-1]}"})


def _write(path: Path, *trees: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(tree) + "\n" for tree in trees)


def _results(path: Path) -> defaultdict[Part, Result]:
    """The last run of each part in a file of results."""
    results: defaultdict[Part, Result] = defaultdict(Result)
    result = Result()
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        match json.loads(line):
            case {"part": names, "measured": measured}:
                results[Part(*names)] = result = Result(measured)
            case {"device": device, "kind": kind, "row": row}:
                result.device = device
                result.rows.append(KINDS[kind](**row))
            case {"ending": ending}:
                result.ending = ending
    return results


def _overview(results: Mapping[Part, Result]) -> Table:
    """A row for each step of all parts, with the causal passes that take as long."""
    rows = []
    for part, result in results.items():
        passes = {row.prompt: row.break_even for row in result.rows if isinstance(row, CausalTime) and row.tokens == 1}
        for row in result.rows:
            if isinstance(row, StepTime):
                equal = passes.get(row.prompt, {}).get(str(row.canvas))
                cells = (row.canvas, row.step_ms, row.floor_ms, row.over_floor, row.host_share, equal)
                rows.append((str(part), str(row.prompt), *map(_cell, cells)))
    columns = ("part", "prompt", "canvas", "step ms", "floor ms", "over floor", "host share", "one-token passes")
    return Table("All parts", columns, rows)


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
    parser.add_argument("--toy", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--backend", action="append", choices=("transformers", "llamacpp"))
    parser.add_argument("--type", action="append", choices=BITS, help="number format of the weights")
    parser.add_argument("--canvas", action="append", type=int, help="tokens of a canvas")
    parser.add_argument("--prompt", action="append", type=int, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="ends after this time")
    parser.add_argument("--output", type=Path, default=Path("gpu.jsonl"), help="results, to which parts are added")
    parser.add_argument("--folder", type=Path, help="directory for the GGUF, which is removed afterwards")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)  # this and the next two: of the process of a part
    parser.add_argument("--gguf", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser


def _measured_lines(part: Part, options: argparse.Namespace) -> Iterator[str]:
    """The rows of a part as JSON."""
    end = time.monotonic() + SHARE_OF_PROMPTS * (options.seconds or PART_SECONDS)
    shape = TOY if options.toy else REAL
    opening = _open_transformers(shape, options) if part.backend == "transformers" else _open_llamacpp(options)
    with opening as (denoiser, device):
        for row in measure(denoiser, part, device, shape, options, end):
            yield json.dumps({"device": device, "kind": type(row).__name__, "row": rounded(asdict(row))})


@contextmanager
def _open_llamacpp(options: argparse.Namespace) -> Iterator[tuple[Denoiser, str]]:
    from dg_lsp.backends.llamacpp.library import gpus
    from dg_lsp.cli.loading import open_local
    from dg_lsp.settings import ModelSettings, Settings

    names = [] if options.toy else [device.name for device in gpus()]  # loads the changed llama.cpp
    if not names and not options.toy:
        sys.exit("llama.cpp lists no GPU: run dg-lsp doctor, or use --toy")
    runtime = ModelSettings(name=str(options.gguf))
    if options.toy:
        runtime = attrs.evolve(runtime, threads=1, gpu_layers=0)
    settings = Settings(model=runtime)
    with closing(open_local(settings)[1]) as denoiser:
        yield denoiser, names[0] if names else "CPU"


@contextmanager
def _open_transformers(shape: Shape, options: argparse.Namespace) -> Iterator[tuple[Denoiser, str]]:
    import torch

    from dg_lsp.backends.scripted import ByteTokenizer  # no text is encoded
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser
    from dg_lsp.backends.transformers.network import DiffusionGemmaNetwork
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
    with closing(TransformersDenoiser(network, spec, ByteTokenizer(), 1)) as denoiser:
        yield denoiser, "CPU" if options.toy else torch.cuda.get_device_name(device)


def measure(
    denoiser: Denoiser, part: Part, device: str, shape: Shape, options: argparse.Namespace, end: float
) -> Iterator[Row]:
    """Yields for each prompt the time of a step for each canvas, of the prefill and of causal passes; then memory.

    Begins with no prompt after the time `end`.
    """
    rng = np.random.default_rng(0)
    bandwidth = bandwidth_of(device)
    bits, embedding_bits = BITS[part.type]
    for prompt in sorted({min(length, denoiser.spec.max_prompt_tokens - EXTENSION) for length in options.prompt}):
        if time.monotonic() > end:
            print(f"{part}: out of time, no prompt of {prompt} tokens", file=sys.stderr)
            continue
        ids = rng.integers(0, shape.vocab_size, prompt + EXTENSION).astype(np.int32)
        steps = {}
        times = dict[int, float]()
        for canvas in options.canvas:
            canvas_ids = rng.integers(0, shape.vocab_size, canvas).astype(np.int32)

            def step(canvas_ids: npt.NDArray[np.int32] = canvas_ids) -> None:
                denoiser.predict(0, [canvas_ids], TEMPERATURE, rng)

            denoiser.prefill(0, ids[:prompt])
            for _ in range(4):  # llama.cpp captures CUDA graphs
                step()
            steps[canvas] = step
            times[canvas] = statistics.median(_milliseconds(step) for _ in range(options.rounds))
            size = shape.step_bytes(canvas, prompt, bits=bits, embedding_bits=embedding_bits)
            floor = 1e3 * size / bandwidth if bandwidth else None
            over = times[canvas] / floor if floor else None
            share = _host_share(denoiser, step, options.rounds)
            yield StepTime(denoiser.footprint.sampling, prompt, canvas, times[canvas], share, floor, over)
        # prefill does not wait for the device, a step does: measure both and subtract the step
        shortest = min(steps)
        pairs = [_prefill(denoiser, ids, prompt, steps[shortest]) for _ in range(max(3, options.rounds // 3))]
        whole, extension = (statistics.median(column) - times[shortest] for column in zip(*pairs, strict=True))
        yield PrefillTime(prompt, whole, extension)
        if part.backend == "llamacpp":
            yield from _causal_times(denoiser, ids, times, options.rounds)
    used = denoiser.footprint
    gpu = sum(device.total - device.free for device in used.devices) / 1e9
    scale = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss in bytes
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e9
    yield MemoryUse(gpu, used.gpu_estimate / 1e9, peak)


def _host_share(denoiser: Any, step: Callable[[], None], rounds: int) -> float:
    """Share of the time of steps outside the functions that run the graph and wait for its results."""
    times: list[float] = []
    with ExitStack() as stack:
        for owner, function in _device_calls(denoiser):
            stack.enter_context(_timed(owner, function, times))
        total = sum(_milliseconds(step) for _ in range(rounds))
    return 1 - sum(times) / total


def _timed(owner: object, function: str, times: list[float]) -> Any:
    """A context that appends the milliseconds of each call of a function."""
    original = getattr(owner, function)

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            times.append(1e3 * (time.perf_counter() - start))

    return mock.patch.object(owner, function, timed)


def _device_calls(denoiser: Any) -> Iterator[tuple[object, str]]:
    """The functions that run on the device, or that wait for it: results are awaited where they are read."""
    if isinstance(denoiser, ContextDenoiser):
        yield from ((denoiser._context, "decode"), (denoiser._context, "logits"))
    else:
        yield from ((denoiser._network, "step"), (denoiser, "_fetched"))
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


def _prefill(
    denoiser: Denoiser, ids: npt.NDArray[np.int32], prompt: int, step: Callable[[], None]
) -> tuple[float, float]:
    """Milliseconds of a step and the whole prompt, and of a step and the extension."""

    def prefill(length: int) -> None:
        denoiser.prefill(0, ids[:length])
        step()

    prefill(0)
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

    with mock.patch.object(nn.Module, "register_parameter", on_meta):
        yield


if __name__ == "__main__":
    main()
