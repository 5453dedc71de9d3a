"""`dg-lsp bench steps`: what a denoising step costs here, and what it would cost without a cached prompt."""

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from dg_lsp.backends.llamacpp.denoiser import LlamaDenoiser
from dg_lsp.backends.llamacpp.diffusiongemma import SelfConditionedDenoiser
from dg_lsp.backends.llamacpp.loader import OpenedDenoiser
from dg_lsp.backends.llamacpp.masked import ExactDenoiser
from dg_lsp.backends.llamacpp.model import LlamaModel
from dg_lsp.bench.recompute import Comparison, compare_recomputed
from dg_lsp.bench.steps import (
    BatchTimes,
    Overhead,
    StepTimes,
    measure_batches,
    measure_overhead,
    measure_steps,
)
from dg_lsp.bench.steps_shares import Shares, measure_shares
from dg_lsp.bench.tables import (
    batch_table,
    comparison_table,
    overhead_line,
    ratio_table,
    share_table,
    step_table,
)
from dg_lsp.bench.twin import write_twin
from dg_lsp.canvas.spec import Checkpoint, ModelSpec
from dg_lsp.cli.loading import load_model, open_denoiser
from dg_lsp.context.document import Snapshot
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import DecoderName, FillRequest
from dg_lsp.errors import UsageError
from dg_lsp.settings import Settings

if TYPE_CHECKING:
    from dg_lsp.backends.transformers.denoiser import TransformersDenoiser

COMPARED_PROMPT = 512
"""Tokens of the prompt that is cached on one side and recomputed on the other."""
COMPARED_CANVASES = (16, 32, 64)


@dataclass(frozen=True, slots=True)
class StepReport:
    """Everything that one run measured."""

    model: str
    threads: int
    times: dict[int, StepTimes]
    """By prompt length."""
    batches: tuple[BatchTimes, ...]
    """On the longest prompt."""
    shares: Shares | None
    """None for a model without canvases, as is the overhead."""
    overhead: Overhead | None
    comparisons: tuple[Comparison, ...]
    """Random weights of the model's size; empty where `gguf`, which writes them, is not installed."""

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.model}, {self.threads} threads, medians in milliseconds"
        yield ""
        yield from step_table(self.times)
        longest = max(self.times)
        if self.times[longest].one_token_steps:
            yield from ("", "a step over a canvas, in causal steps of one token:", "")
            yield from ratio_table(self.times)
        if self.batches:
            yield from ("", f"several canvases in one pass, prompt of {longest} tokens:", "")
            yield from batch_table(self.batches)
        if self.shares and self.overhead:
            yield from ("", f"where a step's time goes, means over {self.shares.num_steps} steps of real fills:", "")
            yield from share_table(self.shares)
            yield from ("", overhead_line(self.overhead))
        if self.comparisons:
            yield from ("", f"random weights of the same size, prompt of {COMPARED_PROMPT} tokens:", "")
            yield from comparison_table(self.comparisons)

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        tree = dataclasses.asdict(self)
        for row, times in zip(tree["times"].values(), self.times.values(), strict=True):
            row["one_token_steps"] = times.one_token_steps
        return tree


def measure(settings: Settings, rounds: int) -> StepReport:
    """Loads the model of the settings and measures it.

    Raises:
        ModelError: it cannot be loaded.
    """
    model = load_model(settings)
    spec = model.spec
    # what is compared with are twins of an ordinary shape, which Gemma 4's is not
    has_twin = spec.self_conditioning is None
    sizes = None if isinstance(model.weights, Checkpoint) or not has_twin else model.weights.metadata
    denoiser = open_denoiser(model, settings)
    engine = Engine(denoiser, denoiser.tokenizer, settings.fill)
    lengths = spec.canvas_lengths if spec.sampling else ()
    shares = overhead = None
    try:
        prompts = sorted({min(length, spec.max_prompt_tokens) for length in (64, 256, 512)})
        times = {length: measure_steps(denoiser, length, lengths, rounds=rounds) for length in prompts}
        batches = measure_batches(denoiser, prompts[-1], lengths, rounds=rounds)
        if spec.sampling:
            shares = _shares(engine, denoiser)
            overhead = measure_overhead(engine, list(_requests()))
    finally:
        engine.close()
    try:
        comparisons = _compare(sizes, spec, settings, rounds) if sizes and spec.sampling else ()
    except UsageError:
        comparisons = ()
    return StepReport(spec.name, denoiser.threads, times, batches, shares, overhead, comparisons)


def _shares(engine: Engine, denoiser: "OpenedDenoiser | TransformersDenoiser") -> Shares:
    if not isinstance(denoiser, OpenedDenoiser):  # one call to the device does everything
        return measure_shares(engine, denoiser, list(_requests()), decode=((denoiser.stepper, "run"),), reduction=())
    context, reducer = denoiser._context, denoiser._reducer  # noqa: SLF001  (looked at, not used)
    has_memory = isinstance(denoiser, SelfConditionedDenoiser)
    return measure_shares(
        engine,
        denoiser,
        list(_requests()),
        decode=((context, "decode"), (context, "logits")),
        reduction=((reducer, "reduce"),),
        self_conditioning=((denoiser, "_rows"), (denoiser, "_remembered")) if has_memory else (),
    )


def _requests() -> Iterator[FillRequest]:
    """Line ends of a real file, our own."""
    text = Path(__file__).read_text(encoding="utf-8")
    for word in ("import ", "return ", "yield ", " = ", "(", "if "):
        start = len(text) // 2 if word == " = " else 0
        offset = text.index(word, start) + len(word)
        end = text.index("\n", offset)
        snapshot = Snapshot(f"file:///{word}", 0, text[:offset] + text[end:])
        yield FillRequest(snapshot, offset, deadline_ms=60_000, plan=DecoderName.CANVAS)


def _compare(sizes: Mapping[str, str], spec: ModelSpec, settings: Settings, rounds: int) -> tuple[Comparison, ...]:
    spec = dataclasses.replace(spec, max_prompt_tokens=COMPARED_PROMPT, canvas_lengths=COMPARED_CANVASES)
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ("qwen2", "dream"):
            write_twin(Path(folder, architecture), sizes, architecture, spec.vocab_size)
        cached = LlamaDenoiser(LlamaModel.load(Path(folder, "qwen2"), settings.runtime), spec, settings.runtime)
        runtime = attrs.evolve(settings.runtime, threads=cached.threads, cache="recomputed")
        recomputing = ExactDenoiser(LlamaModel.load(Path(folder, "dream"), runtime), spec, runtime)
        try:
            return compare_recomputed(cached, recomputing, COMPARED_PROMPT, COMPARED_CANVASES, rounds=rounds)
        finally:
            cached.close()
            recomputing.close()
