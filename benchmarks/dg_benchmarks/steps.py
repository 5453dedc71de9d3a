"""Cost of prefill and denoising steps, and the overhead of the engine around them.

    python -m dg_benchmarks.steps [--model MODEL] [--threads N] [--gpu-layers N] [--rounds 15] [--json]

Each round measures every kind of work once, and medians are reported, so that a change in the speed of the machine
affects all of them alike.
"""

import argparse
import heapq
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

from dg_lsp.bench.metrics import Table
from dg_lsp.canvas.layout import Layout, TokenIds, token_ids
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.cli.loading import open_local
from dg_lsp.cli.options import ModelOptions, configure
from dg_lsp.context.document import Snapshot
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.engine import Engine, LocalEngine
from dg_lsp.engine.request import FillRequest
from dg_lsp.settings import CompletionSettings

if TYPE_CHECKING:
    from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

NUM_EXTENDED = 8
"""Prompt tokens of a typical burst of keystrokes."""
PROMPT_LENGTHS = (64, 256, 512)
OVERHEAD_ROUNDS = 3
CAUSAL_SIZES = (1, 8, 16)
"""Tokens of a causal pass: one for a step of autoregressive decoding, more to check a draft."""

Job = Callable[[], object]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds on one prompt."""

    prefill: float  # the whole prompt into a slot that shares nothing with it
    extend: float  # `NUM_EXTENDED` more prompt tokens
    steps: dict[int, float]
    """One forward pass over an open canvas, by canvas length; empty for a model without canvases."""
    causal: dict[int, float]  # one causal pass, by number of tokens; empty for a model without a causal head
    one_token_steps: dict[int, float]  # cost of a denoising step in causal passes of one token, by canvas length


@dataclass(frozen=True, slots=True)
class StepReport:
    """All measurements of one run, in milliseconds."""

    model: str
    threads: int
    times: dict[int, StepTimes]  # by prompt length
    overhead: dict[str, float]
    """Means per step in the backend's `decode` and in the `engine` around it, and their ratio as `share`.

    Empty for a model without canvases.
    """

    def tables(self) -> Iterator[Table]:
        """The measurements as text."""
        first = next(iter(self.times.values()))
        columns = ["prompt", "prefill", f"{NUM_EXTENDED} more tokens"]
        columns += [f"step at {length}" for length in first.steps] + [f"causal pass of {size}" for size in first.causal]
        rows = []
        for num, times in self.times.items():
            listed = (times.prefill, times.extend, *times.steps.values(), *times.causal.values())
            rows.append((str(num), *(f"{ms:.2f}" for ms in listed)))
        yield Table("by prompt length", columns, rows)
        if steps := first.one_token_steps:
            rows = [(str(n), *(f"{x:.1f}" for x in times.one_token_steps.values())) for n, times in self.times.items()]
            columns = ["prompt", *(f"canvas {length}" for length in steps)]
            yield Table("a step over a canvas, in causal passes of one token", columns, rows)
        if self.overhead:
            row = (f"{self.overhead['engine']:.3f}", f"{self.overhead['decode']:.3f}", f"{self.overhead['share']:.1%}")
            yield Table("engine overhead per step", ("engine, ms", "backend, ms", "share"), [row])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures a model and prints the tables or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="name or path; default: the model of the settings")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--gpu-layers", type=int)
    parser.add_argument("--rounds", type=int, default=15, help="repetitions; medians are printed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    settings = configure(ModelOptions(model=given.model, threads=given.threads, gpu_layers=given.gpu_layers).tree)
    _, denoiser = open_local(settings)
    measured = measure_model(denoiser, settings.completion, rounds=given.rounds)
    if given.json:
        print(json.dumps(asdict(measured)))
        return
    print(f"{measured.model}, {measured.threads} threads, medians in milliseconds; no deadline or early stop")
    for table in measured.tables():
        print("\n".join(table.markdown()))


def measure_model(
    denoiser: "LlamaDenoiser | TransformersDenoiser", settings: CompletionSettings, *, rounds: int
) -> StepReport:
    """Measures everything and closes the denoiser."""
    spec = denoiser.spec
    engine = LocalEngine(denoiser, denoiser.tokenizer, settings)
    lengths = spec.canvas_lengths if spec.sampling else ()
    prompts = sorted({min(length, spec.max_prompt_tokens) for length in PROMPT_LENGTHS})
    try:
        times = {length: measure_steps(denoiser, length, lengths, rounds=rounds) for length in prompts}
        overhead = measure_overhead(engine, denoiser, list(sample_requests())) if spec.has_final_canvas else {}
    finally:
        engine.close()
    return StepReport(spec.name, denoiser.threads, times, overhead)


def measure_steps(
    denoiser: Denoiser, num_prompt_tokens: int, canvas_lengths: Sequence[int], *, rounds: int
) -> StepTimes:
    """Times on a prompt of random tokens."""
    spec = denoiser.spec
    rng = np.random.default_rng(0)
    prompt = random_prompt(denoiser, num_prompt_tokens)
    sizes = CAUSAL_SIZES if spec.has_causal_head else ()

    def prefill(ids: TokenIds) -> Job:
        return partial(denoiser.prefill, 0, ids)

    other_prompt = token_ids([(int(prompt[0]) + 1) % spec.vocab_size])
    jobs = [(prefill(other_prompt), prefill(prompt)), (prefill(prompt[:-NUM_EXTENDED]), prefill(prompt))]
    for length in canvas_lengths:
        canvas = Layout(prompt).canvas(length, spec, rng).canvas_ids
        jobs.append((nothing, partial(denoiser.predict, 0, [canvas], 0.0, rng)))
    jobs += [(prefill(prompt[:-size]), partial(denoiser.extend, 0, prompt[-size:])) for size in sizes]
    whole, extended, *joined_ms = medians(jobs, rounds)
    steps = dict(zip(canvas_lengths, joined_ms, strict=False))
    causal = dict(zip(sizes, joined_ms[len(canvas_lengths) :], strict=True))
    one_token_steps = {length: ms / causal[1] for length, ms in steps.items()} if causal else {}
    return StepTimes(whole, extended, steps, causal, one_token_steps)


def measure_overhead(engine: Engine, denoiser: Denoiser, requests: Sequence[FillRequest]) -> dict[str, float]:
    """See `StepReport.overhead`; prefill and postprocessing count on neither side, nor does a first, cold round."""
    decode_ms: list[float] = []
    with timed_calls(denoiser, "predict", decode_ms):
        rounds = [[engine.fill(request, deadline=math.inf) for request in requests] for _ in range(1 + OVERHEAD_ROUNDS)]
    results = [result for results in rounds[1:] for result in results]
    num_steps = sum(result.steps for result in results)
    decode = sum(decode_ms[-num_steps:]) / max(1, num_steps)
    engine_ms = sum(result.timings.denoise for result in results) / max(1, num_steps) - decode
    return {"decode": decode, "engine": engine_ms, "share": engine_ms / decode if decode else 0.0}


def sample_requests() -> Iterator[FillRequest]:
    """Requests at line ends of a module of the standard library, the same for all versions of dg-lsp."""
    text = Path(heapq.__file__).read_text(encoding="utf-8")
    for word in ("import ", "return ", "yield ", " = ", "(", "if "):
        offset = text.index(word, len(text) // 2 if word == " = " else 0) + len(word)
        snapshot = Snapshot(f"file:///{word}", text[:offset] + text[text.index("\n", offset) :])
        yield FillRequest(snapshot, offset, decoder=DecoderName.DIFFUSION)


def random_prompt(denoiser: Denoiser, num_tokens: int) -> TokenIds:
    """The same tokens for every denoiser with the same vocabulary; the token values do not change the cost."""
    return token_ids(np.random.default_rng(0).integers(0, denoiser.spec.vocab_size, num_tokens))


def nothing() -> None:
    """Prepares nothing."""


def medians(jobs: Sequence[tuple[Job, Job]], rounds: int) -> list[float]:
    """Milliseconds of the second job of each pair, after the first; the first round warms caches and threads up."""
    times: list[list[float]] = [[] for _ in range(rounds + 1)]
    for row in times:
        for prepare, job in jobs:
            prepare()
            start = time.perf_counter()
            job()
            row.append(1e3 * (time.perf_counter() - start))
    return [float(median) for median in np.median(times[1:], axis=0)]


def timed_calls(owner: object, function: str, times: list[float]) -> Any:
    """A context that appends the milliseconds of each call of a function."""
    original = getattr(owner, function)

    def timed(*arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*arguments, **options)
        finally:
            times.append(1e3 * (time.perf_counter() - start))

    return patch.object(owner, function, timed)


if __name__ == "__main__":
    main()
