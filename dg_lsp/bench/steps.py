"""Cost of prefill and denoising steps, and the overhead of the engine around them.

All kinds of work are measured in turn, once per round, and medians are reported, so that a change in the speed of the
machine affects all of them alike.
"""

import dataclasses
import heapq
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from dg_lsp.backends.llamacpp.denoiser import ContextDenoiser, LlamaDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.bench.gguf_models import write_random_model
from dg_lsp.bench.tables import Table
from dg_lsp.canvas.fim import open_canvas
from dg_lsp.canvas.layout import TokenIds, token_ids
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion import loop
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.errors import RequestError, UsageError
from dg_lsp.settings import ModelSettings, Settings

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

NUM_EXTENDED = 8
"""Prompt tokens of a typical burst of keystrokes."""
PROMPT_LENGTHS = (64, 256, 512)
BATCH_SIZES = (1, 2, 4, 8)
"""Canvases in one forward pass."""
CAUSAL_SIZES = (1, 8, 16)
"""Tokens of a causal pass: one for a step of autoregressive decoding, more to check a draft."""
COMPARED_PROMPT = 512
COMPARED_CANVASES = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds on one prompt."""

    prefill: float
    """The whole prompt into a slot that shares nothing with it."""
    extend: float
    """`NUM_EXTENDED` more prompt tokens."""
    steps: dict[int, float]
    """One forward pass over an open canvas, by canvas length; empty for a model without canvases."""
    causal: dict[int, float]
    """One causal pass, by number of tokens; empty for a model without a causal head."""

    @property
    def one_token_steps(self) -> dict[int, float]:
        """Cost of a denoising step in causal passes of one token, by canvas length."""
        return {length: ms / self.causal[1] for length, ms in self.steps.items()} if self.causal else {}


@dataclass(frozen=True, slots=True)
class StepReport:
    """All measurements of one run, in milliseconds."""

    model: str
    threads: int
    times: dict[int, StepTimes]
    """By prompt length."""
    batches: dict[int, dict[int, float]]
    """A pass on the longest prompt, by canvas length and number of canvases, as far as they fit."""
    parts: dict[str, float]
    """Means per step; empty for a model without canvases, like the overhead."""
    overhead: dict[str, float]
    """Means per step in the backend's `decode` and in the `engine` around it, and their ratio as `share`."""
    cache_gains: dict[int, dict[str, float]]
    """A step with the prompt `cached` and `recomputed`, by canvas length, on random weights of the model's size."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        tree = dataclasses.asdict(self)
        for row, times in zip(tree["times"].values(), self.times.values(), strict=True):
            row["one_token_steps"] = times.one_token_steps
        return tree

    def tables(self) -> Iterator[Table]:
        """The same for a reader."""
        yield step_table(self.times)
        longest = max(self.times)
        if steps := self.times[longest].one_token_steps:
            rows = [(str(n), *(f"{x:.1f}" for x in row.one_token_steps.values())) for n, row in self.times.items()]
            columns = ("prompt", *(f"canvas {length}" for length in steps))
            yield Table("a step over a canvas, in causal passes of one token", columns, {"": rows})
        if self.batches:
            rows = [(str(length), *_batch_cells(steps)) for length, steps in self.batches.items()]
            caption = f"several canvases in one pass, prompt of {longest} tokens"
            yield Table(caption, ("canvas", *map(str, BATCH_SIZES)), {"": rows})
        if self.parts:
            yield parts_table(self.parts)
            rows = [
                (f"{self.overhead['engine']:.3f}", f"{self.overhead['decode']:.3f}", f"{self.overhead['share']:.1%}")
            ]
            yield Table("engine overhead per step", ("engine, ms", "backend, ms", "share"), {"": rows})
        if self.cache_gains:
            rows = [
                (str(length), *(f"{ms:.2f}" for ms in row.values()), f"{row['recomputed'] / row['cached']:.1f}")
                for length, row in self.cache_gains.items()
            ]
            caption = f"random weights of the same size, prompt of {COMPARED_PROMPT} tokens"
            yield Table(caption, ("canvas", "prompt cached", "prompt recomputed", "times faster"), {"": rows})


def measure_model(
    denoiser: "ContextDenoiser | TransformersDenoiser",
    settings: Settings,
    metadata: Mapping[str, str] | None,
    *,
    rounds: int,
) -> StepReport:
    """Measures everything and closes the denoiser. `metadata` of a GGUF file gives the size of the random weights."""
    spec = denoiser.spec
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings.completion)
    lengths = spec.canvas_lengths if spec.sampling else ()
    prompts = sorted({min(length, spec.max_prompt_tokens) for length in PROMPT_LENGTHS})
    parts, overhead, gains = dict[str, float](), dict[str, float](), dict[int, dict[str, float]]()
    try:
        times = {length: measure_steps(denoiser, length, lengths, rounds=rounds) for length in prompts}
        batches = measure_batches(denoiser, prompts[-1], lengths, rounds=rounds)
        if spec.sampling:
            parts = measure_parts(engine, denoiser, sample_requests(), functions_of(denoiser))
            overhead = measure_overhead(engine, sample_requests())
    finally:
        engine.close()
    # the random models have an ordinary shape, unlike Gemma 4
    if metadata and spec.sampling and spec.self_conditioning is None:
        with suppress(UsageError):  # gguf is not installed
            gains = measure_random_models(metadata, spec, settings.model, rounds=rounds)
    return StepReport(spec.name, denoiser.threads, times, batches, parts, overhead, gains)


def measure_steps(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int, seed: int = 0
) -> StepTimes:
    """Times on a prompt of random tokens; the token values do not change the cost."""
    spec, rng = denoiser.spec, np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, spec.vocab_size, num_prompt_tokens))
    lengths = list(canvas_lengths) if spec.sampling else []
    canvases = [open_canvas(prompt, spec, length, rng).canvas_ids for length in lengths]
    sizes = CAUSAL_SIZES if spec.has_causal_head else ()
    other = token_ids([(int(prompt[0]) + 1) % spec.vocab_size])

    def measure_round() -> list[float]:
        denoiser.prefill(0, other)
        times = [_milliseconds(partial(denoiser.prefill, 0, prompt))]
        denoiser.prefill(0, prompt[:-NUM_EXTENDED])
        times.append(_milliseconds(partial(denoiser.prefill, 0, prompt)))
        times += [_milliseconds(partial(denoiser.predict, 0, [canvas], 0.0, rng)) for canvas in canvases]
        for size in sizes:
            denoiser.prefill(0, prompt[:-size])
            times.append(_milliseconds(partial(denoiser.extend, 0, prompt[-size:])))
        return times

    # the first round warms caches and threads up
    prefill, extend, *others = np.median([measure_round() for _ in range(rounds + 1)][1:], axis=0).tolist()
    steps, causal = others[: len(lengths)], others[len(lengths) :]
    return StepTimes(prefill, extend, dict(zip(lengths, steps, strict=True)), dict(zip(sizes, causal, strict=True)))


def measure_batches(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int, seed: int = 0
) -> dict[int, dict[int, float]]:
    """Milliseconds of a pass by canvas length and number of canvases."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, denoiser.spec.vocab_size, num_prompt_tokens))
    denoiser.prefill(0, prompt)
    return {length: _measure_batch(denoiser, prompt, length, rounds, rng) for length in canvas_lengths}


def measure_cache_gain(
    cached: Denoiser,
    recomputing: Denoiser,
    num_prompt_tokens: int,
    canvas_lengths: Sequence[int],
    *,
    rounds: int,
    seed: int = 0,
) -> dict[int, dict[str, float]]:
    """Milliseconds of two denoisers by canvas length, on the same prompt and the same open canvas."""
    rng = np.random.default_rng(seed)
    prompt = token_ids(rng.integers(0, cached.spec.vocab_size, num_prompt_tokens))
    for denoiser in (cached, recomputing):
        denoiser.prefill(0, prompt)
    found = {}
    for length in canvas_lengths:
        canvas = open_canvas(prompt, cached.spec, length, rng).canvas_ids
        steps = [partial(denoiser.predict, 0, [canvas], 0.0, rng) for denoiser in (cached, recomputing)]
        times = [[_milliseconds(step) for step in steps] for _ in range(rounds + 1)][1:]
        found[length] = dict(zip(("cached", "recomputed"), np.median(times, axis=0).tolist(), strict=True))
    return found


def measure_random_models(
    metadata: Mapping[str, str], spec: ModelSpec, settings: ModelSettings, *, rounds: int
) -> dict[int, dict[str, float]]:
    """`measure_cache_gain` on random weights of a model's size: ours against llama.cpp's own diffusion graph.

    Raises:
        UsageError: `gguf` is not installed.
    """
    spec = dataclasses.replace(spec, max_prompt_tokens=COMPARED_PROMPT, canvas_lengths=COMPARED_CANVASES)
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ("qwen2", "dream"):
            write_random_model(Path(folder, architecture), metadata, architecture, spec.vocab_size)
        cached = LlamaDenoiser(LlamaModel.load(Path(folder, "qwen2"), settings), spec, settings)
        settings = attrs.evolve(settings, threads=cached.threads, prompt_attention="exact")
        recomputing = ExactDenoiser(LlamaModel.load(Path(folder, "dream"), settings), spec, settings)
        try:
            return measure_cache_gain(cached, recomputing, COMPARED_PROMPT, COMPARED_CANVASES, rounds=rounds)
        finally:
            cached.close()
            recomputing.close()


def measure_overhead(engine: Engine, requests: Sequence[FillRequest]) -> dict[str, float]:
    """See `StepReport.overhead`; prefill and postprocessing count on neither side."""
    results = [engine.fill(request) for request in requests]
    num_steps = sum(result.steps for result in results)
    decode = sum(result.timings.predict for result in results) / max(1, num_steps)
    denoise = sum(result.timings.denoise for result in results) / max(1, num_steps)
    engine_ms = denoise - decode
    return {"decode": decode, "engine": engine_ms, "share": engine_ms / decode if decode else 0.0}


Functions = Sequence[tuple[object, str]]
"""Owners (modules or objects) and the names of their functions."""


def measure_parts(
    engine: Engine,
    denoiser: Denoiser,
    requests: Sequence[FillRequest],
    functions: Mapping[str, Functions],
) -> dict[str, float]:
    """Mean milliseconds of the parts of a step in real fills; the functions are replaced by timed ones meanwhile.

    `python` is everything outside the functions: batches, checks, the loop, stop criteria.

    Args:
        engine: the engine of the fills.
        denoiser: the denoiser of the engine.
        requests: the fills, all by diffusion.
        functions: what `Denoiser.predict` calls, by the name of the part.
    """
    timer = _Timer()
    with ExitStack() as stack:
        stack.enter_context(timer.replacing(denoiser, "predict", "predict"))
        for name, listed in functions.items():
            for owner, function in listed:
                stack.enter_context(timer.replacing(owner, function, name, within="predict"))
        for function in ("unmask", "renoise"):
            stack.enter_context(timer.replacing(loop, function, "sampling"))
        results = [engine.fill(request) for request in requests]
    num_steps = sum(result.steps for result in results)
    names = ("decode", "self_conditioning", "reduction", "sampling")
    parts = {name: timer.ms.get(name, 0.0) / max(1, num_steps) for name in names}
    denoise = sum(result.timings.denoise for result in results) / max(1, num_steps)
    return {**parts, "python": denoise - sum(parts.values())}


def functions_of(denoiser: "ContextDenoiser | TransformersDenoiser") -> Mapping[str, Functions]:
    """The functions behind `predict` for `measure_parts`."""
    if not isinstance(denoiser, ContextDenoiser):  # one call to the device does everything
        return {"decode": ((denoiser.stepper, "run"),)}
    context, reducer = denoiser._context, denoiser._reducer  # noqa: SLF001  (timed, not used)
    has_memory = isinstance(denoiser, SelfConditionedDenoiser)
    return {
        "decode": ((context, "decode"), (context, "logits")),
        "reduction": ((reducer, "reduce"),),
        "self_conditioning": ((denoiser, "_input_rows"), (denoiser, "_recorded")) if has_memory else (),
    }


def sample_requests() -> list[FillRequest]:
    """Requests at line ends of a module of the standard library, the same for all versions of dg-lsp."""
    text, requests = Path(heapq.__file__).read_text(encoding="utf-8"), []
    for word in ("import ", "return ", "yield ", " = ", "(", "if "):
        offset = text.index(word, len(text) // 2 if word == " = " else 0) + len(word)
        snapshot = Snapshot(f"file:///{word}", 0, text[:offset] + text[text.index("\n", offset) :])
        requests.append(FillRequest(snapshot, offset, deadline_ms=60_000, decoder=DecoderName.DIFFUSION))
    return requests


def step_table(times: Mapping[int, StepTimes]) -> Table:
    """One row per prompt length."""
    first = next(iter(times.values()))
    columns = ["prompt", "prefill", f"{NUM_EXTENDED} more tokens"]
    columns += [f"step at {length}" for length in first.steps] + [f"causal pass of {size}" for size in first.causal]
    cells = {n: (row.prefill, row.extend, *row.steps.values(), *row.causal.values()) for n, row in times.items()}
    return Table(
        "by prompt length", columns, {"": [(str(n), *(f"{ms:.2f}" for ms in row)) for n, row in cells.items()]}
    )


def parts_table(parts: Mapping[str, float]) -> Table:
    """One row per part of a step."""
    total = sum(parts.values()) or 1.0
    rows = [(name.replace("_", "-"), f"{ms:.3f}", f"{ms / total:.1%}") for name, ms in parts.items()]
    return Table("parts of a step, means over real fills", ("part", "ms", "share"), {"": rows})


def _batch_cells(steps: Mapping[int, float]) -> list[str]:
    """Cost of a pass, and for each canvas relative to a pass over one."""
    each = {count: f"{ms:.2f} ({ms / steps[1] / count:.2f} each)" for count, ms in steps.items()}
    return [each.get(count, "–") for count in BATCH_SIZES]


def _measure_batch(
    denoiser: Denoiser, prompt: TokenIds, length: int, rounds: int, rng: np.random.Generator
) -> dict[int, float]:
    canvas = open_canvas(prompt, denoiser.spec, length, rng).canvas_ids
    jobs: dict[int, Callable[[], object]] = {}
    for count in BATCH_SIZES:
        with suppress(RequestError):  # so many canvases do not fit
            job = partial(denoiser.predict, 0, [canvas] * count, 0.0, rng)
            job()
            jobs[count] = job
    times = [[_milliseconds(job) for job in jobs.values()] for _ in range(rounds)]
    return dict(zip(jobs, np.median(times, axis=0).tolist(), strict=True))


def _milliseconds(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return 1e3 * (time.perf_counter() - start)


class _Timer:
    """Milliseconds by name, of functions that are replaced for a while."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._running: set[str] = set()

    @contextmanager
    def replacing(self, owner: object, function: str, name: str, within: str | None = None) -> Iterator[None]:
        """Counts calls of the function under `name`; with `within`, only those during calls of that name."""
        is_own, original = function in vars(owner), getattr(owner, function)

        def timed(*arguments: Any, **options: Any) -> Any:
            start = time.perf_counter()
            self._running.add(name)
            try:
                return original(*arguments, **options)
            finally:
                self._running.discard(name)
                if within is None or within in self._running:
                    self.ms[name] = self.ms.get(name, 0.0) + 1e3 * (time.perf_counter() - start)

        setattr(owner, function, timed)
        try:
            yield
        finally:
            if is_own:
                setattr(owner, function, original)
            else:
                delattr(owner, function)
