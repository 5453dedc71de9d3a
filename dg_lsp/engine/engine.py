"""One request in, ranked candidates out.

Not thread-safe: one thread owns an engine (see `scheduler`).
"""

import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Generator, Hashable, Iterator
from dataclasses import replace
from functools import cache
from typing import Self, TypeVar

import numpy as np

from dg_lsp.canvas.chat import split_thought
from dg_lsp.canvas.layout import Layout, TokenIds, Tokenizer, token_ids
from dg_lsp.canvas.prompt_format import in_format, layout_of, prompt_of
from dg_lsp.canvas.sampling import check_for_code, decoder_with, with_sampler
from dg_lsp.canvas.spec import DecoderName, MaskSampling, ModelSpec, PromptCut, PromptFormat, UnmaskOrder
from dg_lsp.diffusion.denoiser import Denoiser, Footprint
from dg_lsp.engine.chat import answer
from dg_lsp.engine.decode_run import MAX_LAG, DecodeRun, EngineModel, Stopwatch, warm_up
from dg_lsp.engine.decoder_selection import DecoderSelection, PositionKind, StepCosts
from dg_lsp.engine.decoders.base import EMPTY, Draft, Progress, mapped
from dg_lsp.engine.gaps import GapsFill
from dg_lsp.engine.kv_slots import SlotState
from dg_lsp.engine.repetition import Repetition
from dg_lsp.engine.request import ChatRequest, FillRequest, Priority, RewriteRequest
from dg_lsp.engine.result import FillResult, Frame, RewriteResult
from dg_lsp.engine.rewrite import Rewrite, follows_instructions
from dg_lsp.engine.stop_criteria import Limits, early_stop_ms, limits_of
from dg_lsp.errors import OptionError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, merge, rank
from dg_lsp.sampler_options import NO_OPTIONS, SamplerOptions
from dg_lsp.settings import CompletionSettings

AHEAD_SHARE = 16
"""A move of the prompt's start is expected when no more than a 16th of the prompt has to be typed before it."""
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


class Engine(ABC):
    """A model, on this machine or behind a server. Read only.

    Requests run as generators: one value per forward pass, then the result. Closing a generator cancels its request.
    Deadlines are in `time.monotonic` seconds; None counts the request's own from now.
    """

    spec: ModelSpec  # the model's, with the prompt format in use
    settings: CompletionSettings  # defaults of requests
    follows_instructions: bool  # the model follows the instruction of a rewrite; otherwise it sees a comment

    @property
    @abstractmethod
    def footprint(self) -> Footprint:
        """The model's memory on this machine; for any thread."""

    @property
    def max_joined(self) -> int:
        """Requests whose causal passes are worth computing together; 1 where none are."""
        return 1

    @property
    def slots(self) -> tuple[SlotState, ...]:
        """The slots of the KV cache, none where a server has them; for any thread."""
        return ()

    def fill(self, request: FillRequest, *, deadline: float | None = None) -> FillResult:
        """Like `run`, but returns only the result."""
        return drain(self.run(request, deadline=deadline))

    def frames(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Frame, None, FillResult]:
        """Like `run`, but yields each canvas as a frame."""
        return mapped(self.run(request, deadline=deadline), lambda one: self.frame(one) if len(one.ids) else None)

    @abstractmethod
    def frame(self, progress: Progress) -> Frame:
        """The progress for display; for any thread."""

    @abstractmethod
    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """A fill.

        Raises:
            RequestError: the model cannot run the decoder, the canvas length or the number of candidates.
            BackendError: the runtime or the server failed.
        """

    @abstractmethod
    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """The new text of a range.

        Raises:
            RequestError: the range is empty or outside of the buffer, or the model lacks what the strength needs.
            BackendError: the runtime or the server failed.
        """

    @abstractmethod
    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """The answer to the last turn of a conversation, or the text's continuation, as the only candidate.

        It is not judged.

        Raises:
            RequestError: there is no turn to answer, or the conversation is longer than the model's prompt.
            ModelUnsupportedError: the model has no usable chat template, or the server's protocol has no chats.
            BackendError: the runtime or the server failed.
        """

    @property
    def is_exact(self) -> bool:
        """No cached prompt is an approximation; otherwise `refresh` computes it again."""
        return True

    def refresh(self) -> Generator[Progress, None, None]:
        """Decodes again what the cache holds approximately, one short pass for each value. Raises `BackendError`."""
        yield from ()

    def warm_up(self, request: FillRequest) -> Generator[Progress, None, None]:
        """Decodes into the cache the prompt of a fill, and the one that typing leads to; a short pass for each value.

        Raises as `run` does.
        """
        del request  # no code is sent to a server before the user types
        yield from ()

    @abstractmethod
    def configured(self, settings: CompletionSettings) -> Self:
        """An engine with other settings over the same model; one of the two at a time may be used.

        Raises:
            RequestError: the model lacks what the prompt format of the settings needs.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the model's memory, or closes the connections."""

    def _judge_fill(self, text: bytes, request: FillRequest, limits: Limits, score: float) -> Candidate | Rejection:
        """See `judge`."""
        return judge(
            text,
            snapshot=request.snapshot,
            offset=request.offset,
            cursor=request.cursor,
            max_lines=limits.max_lines,
            score=score,
            check_syntax=self.settings.check_syntax,
            must_parse=request.priority is Priority.INVOKED,  # a rewrite is checked as a whole
        )


class LocalEngine(Engine):
    """A denoiser, its KV cache and how requests use them."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer,
        settings: CompletionSettings,
        costs: StepCosts | None = None,
        shared: EngineModel | None = None,
        sampler: SamplerOptions = NO_OPTIONS,
    ) -> None:
        """Without costs, `auto` denoises a canvas where the model has one; `shared` has slots and caches in use.

        Raises:
            RequestError: see `configured` and `with_sampler`.
        """
        model = shared or EngineModel.of(denoiser, tokenizer)
        spec = with_sampler(in_format(denoiser.spec, settings.prompt_format), sampler)
        if settings.order and isinstance(spec.sampling, MaskSampling):
            spec = replace(spec, sampling=replace(spec.sampling, order=UnmaskOrder(settings.order)))
        self.spec = spec
        self.settings = settings
        self._model = replace(model, spec=self.spec)
        self.follows_instructions = follows_instructions(self._model)
        self.decoder_selection = DecoderSelection(self.spec, costs)
        if costs and shared is None:
            model.speed.token_ms = costs.prompt_token or model.speed.token_ms

    @property
    def footprint(self) -> Footprint:
        """See `Engine.footprint`."""
        return self._model.denoiser.footprint

    @property
    def slots(self) -> tuple[SlotState, ...]:
        """See `Engine.slots`."""
        return self._model.slots.states

    @property
    def max_joined(self) -> int:
        """See `Engine.max_joined`."""
        costs = self.decoder_selection.costs
        return self._model.denoiser.num_slots if costs and costs.joins else 1

    def run(self, request: FillRequest, *, deadline: float | None = None) -> Generator[Progress, None, FillResult]:
        """See `Engine.run`."""
        watch, wanted = Stopwatch(), request.decoder or DecoderName(self.settings.decoder)
        if request.sampler != NO_OPTIONS:
            check_for_code(request.sampler)
            decoder = decoder_with(request.sampler, wanted, self.spec)
            own = replace(request, sampler=NO_OPTIONS, decoder=decoder)
            return (yield from self._sampled(request.sampler).run(own, deadline=deadline))
        kind = PositionKind.of(request.cursor, request.line_limit)
        attempts: list[tuple[DecodeRun, Draft, Candidate | Rejection]] = []
        rankings, rejections, num_passes, num_decoded = list[tuple[Candidate, ...]](), list[Rejection](), 0, 0
        missing, runs = self._num_missing(request), list[DecodeRun]()
        for decoder in self.decoder_selection.decoders(kind, wanted, request.num_candidates, missing):
            run = self._start(request, decoder, kind, deadline, watch)
            runs.append(run)
            deadline = run.task.limits.deadline  # one for all decoders, as the passes below
            run.decoder.num_passes = num_passes
            drafts = yield from run.drafts()
            num_passes, num_decoded = run.decoder.num_passes, num_decoded + run.decoder.num_decoded
            with watch.stage("postprocess"):
                judged = [(run, draft, self._judge(draft, run, request)) for draft in drafts]
                ranking, refused = rank(verdict for *_, verdict in judged)
            attempts += judged
            rankings.append(ranking)
            rejections += refused
        candidates = merge(rankings)
        best = next((one for one in attempts if candidates and one[2] is candidates[0]), attempts[0])
        result = best[0].result(best[1], candidates[: request.num_candidates], tuple(rejections))
        result = replace(
            result,
            steps=num_passes,
            cached_tokens=max(0, result.prompt_tokens - num_decoded),
            num_blocks=sum(run.decoder.num_blocks for run in runs),
            canvas_tokens=sum(run.decoder.canvas_tokens for run in runs),
            num_decodes=sum(run.num_decodes for run in runs),
        )
        return result.confident(request.min_confidence(self.settings))

    def _start(
        self, request: FillRequest, decoder: DecoderName, kind: PositionKind, deadline: float | None, watch: Stopwatch
    ) -> DecodeRun:
        """One decoder's run for a request."""
        with watch.stage("prompt"):
            num_canvases = self.decoder_selection.num_canvases(decoder, kind, request.num_candidates)
            model = self._model_for(decoder, request.client)
            layout = self._layout(request, model, decoder)
            limits = limits_of(request, self.settings, model.spec, decoder, deadline, layout, num_canvases)
            stop_ms = early_stop_ms(request, self.settings, limits.deadline)
            num_tokens = num_canvases * limits.canvas_length
            passes = self.decoder_selection.num_passes(stop_ms, decoder, num_tokens)
            limits = replace(limits, early_stop_passes=passes)
            repetition = self._repetition(request, model, layout)
            return DecodeRun(
                model, decoder, layout, limits, watch, seed=request.seed, repetition=repetition, slot=request.slot
            )

    def _repetition(self, request: FillRequest, model: EngineModel, layout: Layout) -> Repetition | None:
        """The n-grams of the buffer, for a model that is small enough to need them."""
        text, removed = request.snapshot.text, layout.removed.decode("utf-8", "replace")
        is_shown = text.endswith(removed, 0, request.offset)  # the prompt has other tabs and line ends
        if not (self.settings.repetition and self.spec.repetition_match and is_shown):
            return None
        return model.buffers.repetition(text, request.offset, request.suffix_lines, num_removed=len(removed))

    def frame(self, progress: Progress) -> Frame:
        """See `Engine.frame`."""
        tokenizer = self._model.tokenizer
        frame = progress.frame(tokenizer.decode, token_ids(self.spec.end_ids))
        if not progress.is_answer:
            return frame
        ids, is_thinking = progress.draft.ids, progress.is_thinking
        thought, answer = split_thought(ids, tokenizer, is_thinking=is_thinking)
        _, earlier = split_thought(ids[: progress.num_earlier], tokenizer, is_thinking=is_thinking)
        return replace(frame, thought=thought, settled_text=answer, earlier_text=earlier)

    def rewrite(
        self, request: RewriteRequest, *, deadline: float | None = None
    ) -> Generator[Progress, None, RewriteResult]:
        """See `Engine.rewrite`."""
        if request.sampler != NO_OPTIONS:
            check_for_code(request.sampler)
            decoder = decoder_with(request.sampler, request.decoder or DecoderName.AUTO, self.spec)
            own = replace(request, sampler=NO_OPTIONS, decoder=None if decoder is DecoderName.AUTO else decoder)
            return self._sampled(request.sampler).rewrite(own, deadline=deadline)
        end = time.monotonic() + request.deadline_ms / 1e3 if deadline is None else deadline
        model = self._model.for_client(request.client)
        if request.gaps:
            return GapsFill(request, self.spec.name, self.settings, end, self.run, model).run()
        return Rewrite(model, request, end, self.run, self.settings).run()

    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        """See `Engine.chat`."""
        if request.sampler != NO_OPTIONS:
            if request.sampler.thinking and request.text is not None:
                raise OptionError("thinking", "does not apply to a text without a chat template: leave it out")
            decoder = decoder_with(request.sampler, request.decoder or DecoderName.AUTO, self.spec)
            own = replace(request, sampler=NO_OPTIONS, decoder=decoder)
            return (yield from self._sampled(request.sampler).chat(own, deadline=deadline))
        decoder = self.decoder_selection.choose(PositionKind.TEXT, request.decoder or DecoderName.AUTO)
        return (yield from answer(self._model.for_client(request.client), request, deadline, decoder))

    @property
    def is_exact(self) -> bool:
        """See `Engine.is_exact`."""
        denoiser = self._model.denoiser
        return not any(map(denoiser.drift, range(denoiser.num_slots)))

    def refresh(self) -> Generator[Progress, None, None]:
        """See `Engine.refresh`."""
        model, number = self._model, 0
        model.slots.user = None  # an interrupted request restores its slot
        for slot in range(model.denoiser.num_slots):
            while model.denoiser.refresh(slot):
                number += 1
                yield Progress(0, number, EMPTY, EMPTY.ids, EMPTY.confidence)

    def warm_up(self, request: FillRequest) -> Generator[Progress, None, None]:
        """See `Engine.warm_up`. A layout with a canvas has the same prompt.

        Where typing will soon change the start of the prompt, the prompt after that is decoded into another slot, so
        that the key that changes it decodes a few tokens only.
        """
        kind = PositionKind.of(request.cursor, request.line_limit)
        if self.spec.cut is PromptCut.TOKEN:
            self._model.token_index()
        missing = self._num_missing(request)
        decoder = self.decoder_selection.choose(kind, DecoderName(self.settings.decoder), 1, missing)
        model = self._model_for(decoder, request.client)
        ids = self._layout(request, model, decoder).prompt_ids
        taken, num_tokens = [(yield from warm_up(model, ids))], len(ids)
        limit = model.denoiser.footprint.cache_limit - model.spec.longest_block
        for other in self._following(request, model, decoder, ids):
            num_tokens += len(other)
            if model.slots.is_crowded or len(taken) == model.denoiser.num_slots or num_tokens > limit:
                break
            taken.append((yield from warm_up(model, other, taken, MAX_LAG)))
            num_lagging = MAX_LAG * len(taken)
            model.slots.is_crowded = model.denoiser.footprint.cache_used < num_tokens - num_lagging

    def _following(
        self, request: FillRequest, model: EngineModel, decoder: DecoderName, ids: TokenIds
    ) -> Iterator[TokenIds]:
        """The prompts with another start that typing leads to soon; `ids` is the prompt now."""

        @cache
        def start_of(ahead: int) -> bytes:
            return at(ahead).tobytes()

        def at(ahead: int) -> TokenIds:
            return self._layout(request, model, decoder, ahead).prompt_ids if ahead else ids

        now, farthest = 0, model.spec.max_prompt_tokens // AHEAD_SHARE
        while start_of(farthest) != start_of(now):
            # each move by itself: after two moves at once the start can be another one
            known = start_of(now)
            now += 1 + bisect_left(range(now + 1, farthest), True, key=lambda ahead: start_of(ahead) != known)
            yield at(now)
        if request.snippets.following is not None:
            changed = self._layout(replace(request, snippets=request.snippets.following), model, decoder).prompt_ids
            if not np.array_equal(ids, changed):
                yield changed

    def configured(self, settings: CompletionSettings) -> Self:
        """See `Engine.configured`. Slots and token caches are shared."""
        model = self._model
        return type(self)(model.denoiser, model.tokenizer, settings, self.decoder_selection.costs, model)

    def close(self) -> None:
        """See `Engine.close`."""
        self._model.denoiser.close()

    def _sampled(self, options: SamplerOptions) -> Self:
        """The engine with sampler options of one request; raises as `with_sampler` does."""
        model, costs = self._model, self.decoder_selection.costs
        return type(self)(model.denoiser, model.tokenizer, self.settings, costs, model, options)

    def _model_for(self, decoder: DecoderName, client: Hashable) -> EngineModel:
        """The model as the client sees it, in the prompt format infill for the decoder that needs it."""
        model = self._model.for_client(client)
        if decoder is DecoderName.INFILL and self.spec.prompt_format is not PromptFormat.INFILL:
            return replace(model, spec=in_format(self.spec, PromptFormat.INFILL))
        return model

    def _num_missing(self, request: FillRequest) -> Callable[[DecoderName], int]:
        """How many prompt tokens no slot of the client has, for a decoder."""
        model = self._model.for_client(request.client)

        @cache
        def num_missing(is_causal: bool) -> int:
            layout = self._layout(request, model, DecoderName.AUTOREGRESSIVE if is_causal else DecoderName.AUTO)
            return model.slots.num_missing(layout.prompt_ids, model.client)

        return lambda decoder: num_missing(decoder.needs_causal_head)

    def _layout(self, request: FillRequest, model: EngineModel, decoder: DecoderName, ahead: int = 0) -> Layout:
        """Prompt and canvas; for a causal head all that precedes the gap is prompt. See `Prompt.ahead`."""
        max_tokens = model.spec.max_prompt_tokens
        prompt = prompt_of(request.snapshot, request.offset, max_tokens, request.suffix_lines, ahead=ahead)
        layout = layout_of(replace(prompt, snippets=request.snippets), model.tokenizer, model.spec, max_tokens)
        return layout.in_prompt() if decoder.needs_causal_head else layout

    def _judge(self, draft: Draft, run: DecodeRun, request: FillRequest) -> Candidate | Rejection:
        is_begun = not draft.is_empty and run.task.stop.is_spelled(draft.ids)
        if not (is_begun or draft.is_ended):
            return Rejection(Reason.UNFINISHED)
        text = run.task.stop.shown_bytes(draft.ids, is_ended=draft.is_ended)
        verdict = self._judge_fill(text, request, run.task.limits, draft.score)
        if isinstance(verdict, Rejection):
            return verdict
        return replace(verdict, confidence=run.confidence(draft), is_cut=run.ending(draft).is_cut)
