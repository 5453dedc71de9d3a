"""One request in, ranked candidates out, over any denoiser and its tokenizer.

Not thread-safe: one thread owns an engine (see `scheduler`).
"""

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TypeVar

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.prompt_format import in_format, layout_of, prompt_of
from dg_lsp.canvas.repetition import BufferTokens, Repetition
from dg_lsp.canvas.spec import DecoderName, MaskSampling, ModelSpec, PromptFormat, Sampling, UnmaskOrder
from dg_lsp.canvas.tokenizer import CachingTokenizer, Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser, Footprint
from dg_lsp.engine import chat
from dg_lsp.engine.decoder_selection import DecoderSelection, PositionKind, StepCosts
from dg_lsp.engine.decoders.base import Draft, Framer, Progress
from dg_lsp.engine.decoders.run import DecodeRun, EngineModel
from dg_lsp.engine.request import ChatRequest, FillRequest, RewriteRequest
from dg_lsp.engine.request_denoiser import KVSlots, Stopwatch
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.rewrite import Rewrite, follows_instructions
from dg_lsp.engine.stop_criteria import limits_of
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, rank
from dg_lsp.settings import CompletionSettings

Value = TypeVar("Value")
Result = TypeVar("Result")


def drain(values: Generator[Value, None, Result], look: Callable[[Value], object] = lambda _: None) -> Result:
    """Runs a generator to its end and returns its result; `look` is called with every value."""
    while True:
        try:
            value = next(values)
        except StopIteration as end:
            result: Result = end.value
            return result
        look(value)


def with_overrides(sampling: Sampling | None, confidence_threshold: float, order: str) -> Sampling | None:
    """The sampling of a mask model with these values; 0 and the empty string leave its own."""
    if not isinstance(sampling, MaskSampling):
        return sampling
    return replace(
        sampling,
        confidence_threshold=confidence_threshold or sampling.confidence_threshold,
        order=UnmaskOrder(order) if order else sampling.order,
    )


class Engine:
    """A model, its KV cache and how requests use them."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer,
        settings: CompletionSettings,
        costs: StepCosts | None = None,
        slots: KVSlots | None = None,
    ) -> None:
        """Without costs, `auto` denoises a canvas where the model has one; without slots, they are empty.

        Raises:
            RequestError: the model lacks what the settings' prompt format needs.
        """
        self._denoiser = denoiser
        self._tokenizer = tokenizer
        self._caching_tokenizer = CachingTokenizer(tokenizer)
        self._settings = settings
        sampling = with_overrides(denoiser.spec.sampling, settings.confidence_threshold, settings.order)
        self._spec = spec = in_format(denoiser.spec, settings.prompt_format)
        self._loaded = EngineModel(denoiser, tokenizer, spec, sampling, slots or KVSlots(denoiser.num_slots))
        self.decoder_selection = DecoderSelection(spec, costs, wanted_length=settings.canvas_length)
        """Read only."""
        self._buffers = BufferTokens(tokenizer, spec.repetition_match)

    @property
    def spec(self) -> ModelSpec:
        """The model's, with the prompt format in use."""
        return self._spec

    @property
    def settings(self) -> CompletionSettings:
        """Defaults of requests."""
        return self._settings

    @property
    def follows_instructions(self) -> bool:
        """The model follows the instruction of a rewrite; otherwise it sees a comment."""
        return follows_instructions(self._loaded)

    @property
    def footprint(self) -> Footprint:
        """The model's memory; for any thread."""
        return self._denoiser.footprint

    def fill(self, request: FillRequest, *, deadline: float | None = None) -> FillResult:
        """Like `run`, but returns only the result."""
        return drain(self.run(request, deadline=deadline))

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """One value per forward pass, then the result. Closing the generator cancels the request.

        `deadline` is in `time.monotonic` seconds; None counts the request's own from now.

        Raises:
            RequestError: the model cannot run the decoder, the canvas length or the number of candidates.
            BackendError: the runtime failed.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            kind = PositionKind.of(request.cursor, request.line_limit)
            wanted = request.decoder or DecoderName(self._settings.decoder)
            decoder = self.decoder_selection.choose(kind, wanted, request.num_candidates)
            num_canvases = self.decoder_selection.num_canvases(decoder, kind, request.num_candidates)
            model = self._model_for(decoder)
            layout = self._layout(request, model.spec, decoder)
            limits = limits_of(request, self._settings, model.spec, decoder, deadline, layout, num_canvases)
            repetition = self._repetition(request)
            run = DecodeRun(model, decoder, layout, limits, watch, seed=request.seed, repetition=repetition)
        drafts = yield from run.drafts()
        with watch.stage("postprocess"):
            verdicts = [self._judge(draft, run, request) for draft in drafts]
            candidates, rejections = rank(verdicts)
        best = drafts[verdicts.index(candidates[0])] if candidates else drafts[0]
        return FillResult(
            model=self.spec.name,
            candidates=candidates[: request.num_candidates],
            rejections=rejections,
            canvas_length=limits.canvas_length,
            steps=run.decoder.num_passes,
            output_tokens=len(best.confidence),
            prompt_tokens=len(layout.prompt_ids),
            cached_tokens=len(layout.prompt_ids) - run.decoder.num_decoded,
            timings=watch.timings(),
            decoder=decoder,
            slot=run.slot,
        ).confident(request.min_confidence)

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """Like `run`, but yields each canvas as a frame."""
        framer, steps = self.framer(), self.run(request, deadline=deadline)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                result: FillResult = end.value
                return result
            yield framer.frame(progress)

    def framer(self) -> Framer:
        """Makes frames of progress; for any thread."""
        return Framer(self._tokenizer, self.spec)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then the new text of the range; otherwise as `run`.

        Raises:
            RequestError: the range is empty or outside of the buffer, or the model lacks what the strength needs.
            BackendError: the runtime failed.
        """
        end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
        return Rewrite(self._loaded, request, end, self.run, check_syntax=self._settings.check_syntax).run()

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """See `chat.answer`; otherwise as `run`."""
        return chat.answer(self._loaded, request, deadline)

    def configured(self, settings: CompletionSettings) -> "Engine":
        """An engine with other settings over the same model and slots; one of the two at a time may be used.

        Raises:
            RequestError: as the constructor does.
        """
        return type(self)(self._denoiser, self._tokenizer, settings, self.decoder_selection.costs, self._loaded.slots)

    def close(self) -> None:
        """Frees the model's memory."""
        self._denoiser.close()

    def _model_for(self, decoder: DecoderName) -> EngineModel:
        """The model, in the prompt format infill for the decoder that needs it."""
        if decoder is DecoderName.INFILL and self.spec.prompt_format is not PromptFormat.INFILL:
            return replace(self._loaded, spec=in_format(self.spec, PromptFormat.INFILL))
        return self._loaded

    def _layout(self, request: FillRequest, spec: ModelSpec, decoder: DecoderName) -> Layout:
        """Prompt and canvas; for a causal head all that precedes the gap is prompt."""
        prompt = prompt_of(request.snapshot, request.offset, spec.max_prompt_tokens, request.suffix_lines)
        layout = layout_of(replace(prompt, extra=request.extra), self._caching_tokenizer, spec, spec.max_prompt_tokens)
        return layout.in_prompt() if decoder.needs_causal_head else layout

    def _repetition(self, request: FillRequest) -> Repetition | None:
        if not (self._settings.repetition and self.spec.repetition_match):
            return None
        return self._buffers.repetition(request.snapshot.text, request.offset, request.suffix_lines)

    def _judge(self, draft: Draft, run: DecodeRun, request: FillRequest) -> Candidate | Rejection:
        if draft.is_empty and not draft.is_ended:
            return Rejection(Reason.UNFINISHED)
        verdict = judge(
            run.stop.shown_bytes(draft.ids, is_ended=draft.is_ended),
            snapshot=request.snapshot,
            offset=request.offset,
            cursor=request.cursor,
            max_lines=run.task.limits.max_lines,
            score=draft.score,
            check_syntax=self._settings.check_syntax,
        )
        if isinstance(verdict, Rejection):
            return verdict
        return replace(verdict, confidence=run.confidence(draft))


class LazyEngine:
    """An engine that is opened when it is needed. Belongs to the model's thread; any thread may read its state."""

    def __init__(self, open_engine: Callable[[], Engine], settings: CompletionSettings) -> None:
        self._open_engine = open_engine
        self._engine: Engine | None = None
        self.settings = settings
        """Defaults of requests that bring no settings; a change holds from the next request on."""

    @property
    def is_open(self) -> bool:
        """The model is in memory."""
        return self._engine is not None

    @property
    def footprint(self) -> Footprint:
        """The model's memory now."""
        engine = self._engine
        return engine.footprint if engine is not None else Footprint()

    def open(self) -> Engine:
        """The engine; opens it if it is closed, which may raise any `ModelError` or `BackendError`."""
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def configured(self, settings: CompletionSettings | None) -> Engine:
        """The engine with these settings, or with its own. Opens it as `open` does."""
        engine, wanted = self.open(), settings or self.settings
        if wanted == engine.settings:
            return engine
        try:
            self._engine = engine.configured(wanted)
        except DgLspError:  # a prompt format that the model lacks: it keeps the settings that it had
            return engine
        return self._engine

    def close(self) -> None:
        """Frees the model's memory. Idempotent."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
