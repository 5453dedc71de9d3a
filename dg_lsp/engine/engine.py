"""One request in, ranked candidates out.

Is handed a denoiser and its tokenizer. Not thread-safe: one thread owns an engine (see `worker`).
"""

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dg_lsp.canvas.fim import SUFFIX_SHARE
from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.prompt_format import in_format, layout_of
from dg_lsp.canvas.repetition import BufferTokens, Repetition
from dg_lsp.canvas.spec import MaskSampling, ModelSpec, Sampling, UnmaskOrder
from dg_lsp.canvas.tokenizer import CachingTokenizer, Tokenizer
from dg_lsp.context.document import Cursor, allowed_lines
from dg_lsp.context.window import CHARS_PER_TOKEN, prompt_at, shown_path
from dg_lsp.diffusion.denoiser import Denoiser, Footprint
from dg_lsp.engine.chat import ChatDecoder, ChatRequest
from dg_lsp.engine.decoder_selection import DecoderSelection, PositionKind, StepCosts, decoder_of
from dg_lsp.engine.decoders.base import DecodeTask, Framer, Progress
from dg_lsp.engine.kv_slots import KVSlots
from dg_lsp.engine.request import DecoderName, FillRequest, RewriteRequest
from dg_lsp.engine.request_denoiser import EchoingDenoiser, SlotDenoiser, Stopwatch, TimedDenoiser
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.rewrite import Rewriter
from dg_lsp.engine.stop_criteria import Draft, Limits, StopCriteria, confidence_of, limits_of
from dg_lsp.errors import DgLspError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, rank
from dg_lsp.settings import FillSettings

Value = TypeVar("Value")
Result = TypeVar("Result")


def drain(values: Generator[Value, None, Result], look: Callable[[Value], object] = lambda _: None) -> Result:
    """Asks for every value, has each looked at, and gives back the generator's result."""
    while True:
        try:
            value = next(values)
        except StopIteration as end:
            result: Result = end.value
            return result
        look(value)


def with_overrides(sampling: Sampling | None, confidence_threshold: float, order: str) -> Sampling | None:
    """The model's own value where a setting is left at 0 or empty; only mask noise has these two."""
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
        settings: FillSettings,
        costs: StepCosts | None = None,
        slots: KVSlots | None = None,
    ) -> None:
        """Without costs, `auto` denoises a canvas wherever the model has one; without slots, they are empty.

        Raises:
            RequestError: the model cannot be asked in the settings' prompt format.
        """
        self._denoiser = denoiser
        self._spec = in_format(denoiser.spec, settings.prompt_format)
        self._tokenizer = tokenizer
        self._remembering = CachingTokenizer(tokenizer)
        self._settings = settings
        self._sampling = with_overrides(denoiser.spec.sampling, settings.confidence_threshold, settings.order)
        self.planner = DecoderSelection(self._spec, costs, wanted_length=settings.canvas_length)
        """What `auto` asks. Read it, don't change it."""
        self._slots = slots or KVSlots(denoiser.num_slots)
        self._buffers = BufferTokens(tokenizer, denoiser.spec.echo_match)
        self._chatting = ChatDecoder(denoiser, tokenizer, self._spec, self._sampling, self._slots)
        self._rewriting = Rewriter(denoiser, tokenizer, self._spec, self._sampling, self._slots, self.run)

    @property
    def spec(self) -> ModelSpec:
        """The model's, in the prompt format in which it is asked."""
        return self._spec

    @property
    def settings(self) -> FillSettings:
        """What a request that says nothing gets."""
        return self._settings

    def fill(self, request: FillRequest, *, deadline: float | None = None) -> FillResult:
        """The result, without looking at the steps.

        Raises:
            RequestError, BackendError: as `run` does.
        """
        return drain(self.run(request, deadline=deadline))

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """One value per forward pass, then the result. Not asking for the next one cancels the request.

        Args:
            request: what is asked.
            deadline: in `time.monotonic` seconds; None counts the request's own from now.

        Raises:
            RequestError: the plan, the canvas length or the number of candidates is nothing that the model can do.
            BackendError: the runtime failed.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            plan = self._plan(request)
            layout = self._layout(request, plan)
            limits = limits_of(request, self._settings, self.spec, plan, deadline, layout)
            enough = StopCriteria(self._tokenizer, limits, layout.stop)
            prompt_ids = layout.prompt_ids
            denoiser: Denoiser = TimedDenoiser(SlotDenoiser(self._denoiser, self._slots), watch, self.spec)
            if echo := self._echo(request):
                denoiser = EchoingDenoiser(denoiser, echo, layout)
            task = DecodeTask(denoiser, limits, enough, np.random.default_rng(request.seed), echo)
            filling = decoder_of(plan, task, self._sampling)
        slot = self._slots.choose(prompt_ids)
        num_decoded = filling.prefill(slot, prompt_ids, self._slots.num_shared(slot, prompt_ids))
        self._slots.hold(slot, prompt_ids)
        drafts = yield from watch.passing_on(filling.run(slot, layout))
        with watch.stage("postprocess"):
            verdicts = [self._judge(draft, enough, request, limits) for draft in drafts]
            candidates, rejections = rank(verdicts)
        best = drafts[verdicts.index(candidates[0])] if candidates else drafts[0]
        return FillResult(
            model=self.spec.name,
            candidates=candidates[: request.num_candidates],
            rejections=rejections,
            canvas_length=limits.canvas_length,
            steps=max(draft.steps for draft in drafts),
            tokens_per_forward=best.tokens_per_forward,
            prompt_tokens=len(prompt_ids),
            cached_tokens=len(prompt_ids) - num_decoded,
            timings=watch.timings(),
            plan=plan,
            slot=slot,
        )

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """`run` for who wants to look at the canvas."""
        framer, steps = self.framer(), self.run(request, deadline=deadline)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                result: FillResult = end.value
                return result
            yield framer.frame(progress)

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """One value per forward pass, then the answer as the only candidate. Not asking for the next one cancels.

        `deadline` is in `time.monotonic` seconds; at it, what is settled is the answer.

        Raises:
            RequestError: nobody said anything, or more than the model takes.
            ModelUnsupportedError: the model has no chat template that is known here.
            BackendError: the runtime failed.
        """
        return self._chatting.run(request, deadline)

    def framer(self) -> Framer:
        """What makes frames of progress; for any thread."""
        return Framer(self._tokenizer, self._spec)

    def configured(self, settings: FillSettings) -> "Engine":
        """An engine with other settings over the same model, whose slots they share; one of them at a time may be used.

        Raises:
            RequestError: the model cannot be asked in the settings' prompt format.
        """
        return type(self)(self._denoiser, self._tokenizer, settings, self.planner.costs, self._slots)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then what stands for the stretch. Not asking for the next one cancels.

        Raises:
            RequestError: the stretch is empty or outside of the buffer, or the model lacks what the strength needs.
            BackendError: the runtime failed.
        """
        end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
        return self._rewriting.run(request, deadline=end, check_syntax=self._settings.check_syntax)

    @property
    def follows_instructions(self) -> bool:
        """Whether a rewrite's instruction is understood, or only seen as a comment."""
        return self._rewriting.follows_instructions

    @property
    def footprint(self) -> Footprint:
        """What the model holds of the memory here; for any thread."""
        return self._denoiser.footprint

    def close(self) -> None:
        """Gives the model's memory back."""
        self._denoiser.close()

    def _plan(self, request: FillRequest) -> DecoderName:
        """What runs; several candidates are a race wherever there is a canvas."""
        plan = request.plan or DecoderName(self._settings.plan)
        several = request.num_candidates > 1
        if plan is DecoderName.AUTO and not (several and self.spec.sampling):
            place = Cursor.at(request.snapshot.text, request.offset)
            max_lines = allowed_lines(place) if request.max_lines is None else request.max_lines
            return self.planner.choose(PositionKind.of(place, max_lines))
        return DecoderName.RACE if several and plan in (DecoderName.AUTO, DecoderName.CANVAS) else plan

    def _layout(self, request: FillRequest, plan: DecoderName) -> Layout:
        """The place in the model's format; who goes on causally has all that precedes the hole in the prompt."""
        chars = self.spec.max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(
            request.snapshot,
            request.offset,
            prefix_chars=chars,
            suffix_chars=int(chars * SUFFIX_SHARE),
            suffix_lines=request.suffix_lines,
        )
        snapshot = request.snapshot
        prompt = replace(prompt, path=shown_path(snapshot.uri), language=snapshot.language, extra=request.extra)
        layout = layout_of(prompt, self._remembering, self.spec, self.spec.max_prompt_tokens)
        return layout.in_prompt() if plan.needs_causal_head else layout

    def _echo(self, request: FillRequest) -> Repetition | None:
        if not (self._settings.echo and self.spec.echo_match):
            return None
        return self._buffers.repetition(request.snapshot.text, request.offset, request.suffix_lines)

    def _judge(self, draft: Draft, enough: StopCriteria, request: FillRequest, limits: Limits) -> Candidate | Rejection:
        if not (len(draft.confidence) or draft.is_ended):
            return Rejection(Reason.UNFINISHED)
        verdict = judge(
            enough.fill(draft),
            snapshot=request.snapshot,
            offset=request.offset,
            max_lines=limits.max_lines,
            score=draft.score,
            check_syntax=self._settings.check_syntax,
        )
        if isinstance(verdict, Rejection):
            return verdict
        return replace(verdict, confidence=confidence_of(draft.ids, draft.confidence, self._tokenizer))


class LazyEngine:
    """Belongs to the model's thread; others may read whether it is there."""

    def __init__(self, open_engine: Callable[[], Engine], settings: FillSettings) -> None:
        self._open_engine = open_engine
        self._engine: Engine | None = None
        self.settings = settings
        """Of requests that bring none. Whoever sets them is heard at the next request."""

    @property
    def is_open(self) -> bool:
        """The model is in memory."""
        return self._engine is not None

    @property
    def footprint(self) -> Footprint:
        """Of the memory, as it is; nothing while no model is there."""
        engine = self._engine
        return engine.footprint if engine is not None else Footprint()

    def open(self) -> Engine:
        """The engine as it is; opened where it is not.

        Raises:
            ModelError, BackendError: it cannot be opened.
        """
        if self._engine is None:
            self._engine = self._open_engine()
        return self._engine

    def configured(self, settings: FillSettings | None) -> Engine:
        """The engine with these settings, or its own.

        Raises:
            ModelError, BackendError: as `open` does.
        """
        engine, wanted = self.open(), settings or self.settings
        if wanted == engine.settings:
            return engine
        try:
            self._engine = engine.configured(wanted)
        except DgLspError:  # a prompt format that the model does not know: it goes on as it was
            return engine
        return self._engine

    def close(self) -> None:
        """Gives the model's memory back. Harmless when repeated."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
