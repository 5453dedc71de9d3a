"""One request in, ranked candidates out.

Not thread-safe: one thread owns an engine (see `scheduler`).
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

import numpy as np
from typing_extensions import override

from dg_lsp.canvas.chat import chat_layout, raw_layout
from dg_lsp.canvas.layout import Layout, TokenIds, Tokenizer
from dg_lsp.canvas.prompt_format import in_infill_format, layout_of, prompt_of
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptCut, with_sampler
from dg_lsp.context.window import NO_SNIPPETS
from dg_lsp.diffusion.denoiser import Denoiser, Footprint
from dg_lsp.engine.decode_task import MAX_LAG, DecodeTask, EngineModel
from dg_lsp.engine.decoder_selection import (
    NO_COSTS,
    DecoderSelection,
    PositionKind,
    StepCosts,
    canvas_length,
    decoder_with,
)
from dg_lsp.engine.decoders.base import PROMPT_PIECE, Limits, Progress, RequestCosts, Result, Steps
from dg_lsp.engine.gaps import GapsFill
from dg_lsp.engine.request import ChatRequest, EngineRequest, FillRequest, FillResult, RewriteRequest, RewriteResult
from dg_lsp.engine.rewrite import Rewrite
from dg_lsp.errors import OptionError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, rank
from dg_lsp.settings import NO_OPTIONS, CompletionSettings

LOOKAHEAD_SHARE = 16
"""A move of the prompt's start is expected when no more than a 16th of the prompt has to be typed before it."""
PROMPT_SHARE = 3 / 8
"""Share of the time until the deadline that a prompt may take, where idle time decodes the rest of a longer one."""
MIN_PROMPT = 64  # tokens that a prompt has where the time allows fewer


def drain(generator: Generator[Progress, None, Result], look: Callable[[Progress], object] = lambda _: None) -> Result:
    """Runs a generator to its end and returns its result; `look` is called with every value."""
    steps = Steps(generator)
    for value in steps:
        look(value)
    return steps.result


class Engine(ABC):
    """A model, on this machine or behind a server. Read only.

    Requests run as generators: one value per forward pass, then the result. Closing a generator cancels its request.
    Deadlines are in `time.monotonic` seconds.
    """

    spec: ModelSpec  # the model's, with the prompt format in use
    settings: CompletionSettings  # defaults of requests

    @property
    def footprint(self) -> Footprint:
        """The model's memory on this machine; for any thread."""
        return Footprint()

    def fill(self, request: FillRequest, *, deadline: float | None = None) -> FillResult:
        """Like `complete`, but returns only the result. Without a deadline, the request's own counts from now."""
        if deadline is None:
            deadline = request.deadline_from(time.monotonic(), self.settings)
        return drain(self.complete(request, deadline=deadline))

    @abstractmethod
    def complete(
        self, request: FillRequest, *, deadline: float, costs: RequestCosts | None = None
    ) -> Generator[Progress, None, FillResult]:
        """A fill; its costs are added to those of the request that it is a part of.

        Raises:
            RequestError: the model cannot run the decoder, the canvas length or the number of candidates.
            BackendError: the runtime or the server failed.
        """

    @abstractmethod
    def rewrite(self, request: RewriteRequest, *, deadline: float) -> Generator[Progress, None, RewriteResult]:
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

    def refresh(self) -> Generator[Progress, None, None]:
        """Decodes again what the cache holds approximately, one short pass for each value. Raises `BackendError`."""
        yield from ()

    def warm_up(self, request: FillRequest) -> Generator[Progress, None, None]:
        """Decodes into the cache the prompt of a fill, and the one that typing leads to; a short pass for each value.

        Raises as `complete` does.
        """
        del request  # no code is sent to a server before the user types
        yield from ()

    def configured(self, settings: CompletionSettings) -> Self:
        """An engine with other settings over the same model; one of the two at a time may be used."""
        engine = copy(self)
        engine.settings = settings
        return engine

    @abstractmethod
    def close(self) -> None:
        """Frees the model's memory, or closes the connections."""


class LocalEngine(Engine):
    """A denoiser, its KV cache and how requests use them."""

    def __init__(
        self, denoiser: Denoiser, tokenizer: Tokenizer, settings: CompletionSettings, costs: StepCosts = NO_COSTS
    ) -> None:
        """Without costs, `auto` denoises a canvas where the model has one."""
        self.spec = denoiser.spec
        self.settings = settings
        self.costs = costs
        self._model = EngineModel.of(denoiser, tokenizer)
        if costs.prompt_token:
            self._model.speed.token_ms = costs.prompt_token

    @property
    @override
    def footprint(self) -> Footprint:
        num_users = self._model.slots.num_users
        busy_slots = tuple(num_users[slot] > 0 for slot in range(self._model.denoiser.num_slots))
        return replace(self._model.denoiser.footprint, busy_slots=busy_slots)

    @override
    def complete(
        self, request: FillRequest, *, deadline: float, costs: RequestCosts | None = None
    ) -> Generator[Progress, None, FillResult]:
        costs = costs or RequestCosts()
        with costs.stage("prompt"):
            model, wanted = self._resolved(request, request.decoder or DecoderName(self.settings.decoder))
            layout = _fill_layout(request, model)
            selection = self._selection(request, model, layout)
            most = self._affordable(selection.num_missing, model, deadline)
            if most:
                layout = _fill_layout(request, model, most)
                selection = self._selection(request, model, layout)
            decoder = selection.choose(wanted)
            task_layout = layout.in_prompt() if decoder.needs_causal_head else layout
            task = DecodeTask(
                model,
                decoder,
                task_layout,
                selection.limits(request, self.settings, decoder, deadline, task_layout),
                costs,
                seed=request.seed,
                judge=request.judge,
            )
        drafts = yield from task.drafts()
        shown = tuple(map(task.stop.within_limit, drafts))
        # canvases: some hold only the beginning of a fill, and the score counts how well the code after a gap follows
        value = attrgetter("worth" if decoder.needs_causal_head else "score")
        candidates, rejections = rank(map(task.verdict, shown), value)
        best = next((draft for draft in shown if task.verdict(draft) in candidates[:1]), shown[0])
        result = task.result(best, candidates[: request.num_candidates], rejections)
        result = replace(result, is_prompt_cut=most > 0)
        return result.confident(request.min_confidence(self.settings))

    def _resolved(self, request: EngineRequest[Any], wanted: DecoderName) -> tuple[EngineModel, DecoderName]:
        """The model as the request sees it, with the request's sampler options, and the decoder for these options.

        Raises:
            OptionError: the model or the decoder does not take one of the options.
        """
        spec = self._model.spec
        if request.sampler != NO_OPTIONS:
            if request.sampler.thinking and not (isinstance(request, ChatRequest) and not request.is_raw):
                raise OptionError("thinking", "does not apply to code and plain texts: leave it out")
            wanted = decoder_with(request.sampler, wanted, spec)
            spec = with_sampler(spec, request.sampler)
        if wanted is DecoderName.INFILL and isinstance(request, FillRequest):
            spec = in_infill_format(spec)
        # a client finds no text and no prompt of another one in a cache
        tokenizer = self._model.caching_tokenizer(request.client)
        return replace(self._model, tokenizer=tokenizer, client=request.client, spec=spec), wanted

    def _affordable(self, num_missing: int, model: EngineModel, deadline: float) -> int:
        """Tokens to which the prompt is cut because the time does not allow to decode what is not cached; 0 for none.

        A power of two: a later request that has a little more or less time finds the same prompt in the cache.
        """
        num_tokens = PROMPT_SHARE * 1e3 * (deadline - time.monotonic()) / model.speed.token_ms
        if num_tokens >= num_missing or not self.settings.speculate:
            return 0
        most = min(1 << round(math.log2(max(num_tokens, MIN_PROMPT))), model.spec.max_prompt_tokens)
        return most if most < num_missing else 0

    def _selection(self, request: FillRequest, model: EngineModel, layout: Layout) -> DecoderSelection:
        """The selection for a request, by the prompt tokens that no slot of the client has."""
        num_missing = model.slots.num_missing(layout.prompt_ids, model.client)
        kind = PositionKind.LINE_END
        if request.cursor.is_blank_line:
            kind = PositionKind.WHOLE_LINE if request.line_limit == 1 else PositionKind.LINES
        return DecoderSelection(spec=model.spec, costs=self.costs, kind=kind, num_missing=num_missing)

    @override
    def rewrite(self, request: RewriteRequest, *, deadline: float) -> Generator[Progress, None, RewriteResult]:
        model, decoder = self._resolved(request, request.decoder or DecoderName.AUTO)
        request = replace(request, decoder=None if decoder is DecoderName.AUTO else decoder)
        if request.gaps:
            return GapsFill(self, request, deadline, model).run()
        return Rewrite(self, model, request, deadline).run()

    @override
    def chat(self, request: ChatRequest, *, deadline: float) -> Generator[Progress, None, FillResult]:
        model, wanted = self._resolved(request, request.decoder or DecoderName.AUTO)
        if request.ignores_end:
            model = replace(model, spec=replace(model.spec, end_ids=()))
        spec = model.spec
        decoder = DecoderSelection(spec=spec, costs=self.costs, kind=PositionKind.TEXT).choose(wanted)
        costs = RequestCosts()
        with costs.stage("prompt"):
            if request.text is None:
                layout = chat_layout(request.turns, model.tokenizer, spec, model.room)
            else:
                layout = raw_layout(request.text, model.tokenizer, spec, model.room)
        limits = Limits(
            canvas_length(spec, None, least=max(1, request.max_tokens)) if decoder.needs_canvas else 0,
            request.max_tokens,
            None,
            deadline=deadline,
            may_repeat=request.is_raw or request.ignores_end,
            stops=() if spec.is_thinking else request.stops,  # a thought may contain one; the answer is cut later
            is_stopped=request.is_stopped,
            max_length=model.room,
        )
        task = DecodeTask(model, decoder, layout, limits, costs, seed=request.seed, is_answer=not request.is_raw)
        (draft, *_) = yield from task.drafts()
        if draft.is_empty:
            return task.result(draft, (), (Rejection(Reason.UNFINISHED),))
        draft = task.stop.within_limit(draft)
        thought, text = task.texts(draft.ids)
        result = task.result(draft, (Candidate(text, draft.score),), ())
        return replace(result, thought=thought, output_tokens=min(result.output_tokens, request.max_tokens))

    @override
    def refresh(self) -> Generator[Progress, None, None]:
        model = self._model
        for slot in range(model.denoiser.num_slots):
            while model.denoiser.refresh(slot):
                model.slots.user = None  # an interrupted request restores its slot
                yield PROMPT_PIECE

    @override
    def warm_up(self, request: FillRequest) -> Generator[Progress, None, None]:
        if self.spec.cut is PromptCut.TOKEN:
            self._model.token_index()
        model, wanted = self._resolved(request, DecoderName(self.settings.decoder))
        decoder = self._selection(request, model, _fill_layout(request, model)).choose(wanted)
        slots = model.slots
        limit = model.denoiser.footprint.cache_limit - model.spec.longest_block
        taken: list[int] = []
        num_tokens = 0
        try:
            for prompt_ids in _prompts_ahead(request, model, decoder):
                num_tokens += len(prompt_ids)
                kept = {*taken, *slots.kept_for_others(model.client)} if taken else ()
                if taken and (slots.is_crowded or len(kept) == model.denoiser.num_slots or num_tokens > limit):
                    break
                slot = slots.choose(prompt_ids, model.client, kept)
                taken.append(slot)
                if slots.num_shared(slot, prompt_ids, model.client) < len(prompt_ids):
                    task = DecodeTask(model, decoder, Layout(prompt_ids), Limits(0, 0, None), RequestCosts(), slot=slot)
                    yield from task.running(task.prefill(prompt_ids))
                if len(taken) > 1:
                    num_lagging = len(taken) * max(MAX_LAG, model.spec.block_length)
                    slots.is_crowded = model.denoiser.footprint.cache_used < num_tokens - num_lagging
        finally:
            for slot in reversed(taken):  # where another request needs a slot, it gets that of the farthest prompt
                slots.mark_used(slot)

    @override
    def close(self) -> None:
        self._model.denoiser.close()


def _fill_layout(request: FillRequest, model: EngineModel, most: int = 0, lookahead: int = 0) -> Layout:
    """Prompt and canvas of a fill. See `Prompt.lookahead`.

    If `most` is not 0, the prompt has at most so many tokens, and no code of other places.
    """
    max_tokens = most or model.spec.max_prompt_tokens
    prompt = prompt_of(request.snapshot, request.offset, max_tokens, lookahead=lookahead)
    snippets = NO_SNIPPETS if most else request.snippets
    return layout_of(replace(prompt, snippets=snippets), model.tokenizer, model.spec, max_tokens)


def _prompts_ahead(request: FillRequest, model: EngineModel, decoder: DecoderName) -> list[TokenIds]:
    """The prompt of a fill, and those with another start that typing, or other snippets, will soon lead to.

    They are decoded into other slots, so that the key that moves the start decodes a few tokens only.
    """

    def prompt_ids(lookahead: int, request: FillRequest = request) -> TokenIds:
        layout = _fill_layout(request, model, lookahead=lookahead)  # with a canvas the prompt is the same
        return layout.in_prompt().prompt_ids if decoder.needs_causal_head else layout.prompt_ids

    farthest = model.spec.max_prompt_tokens // LOOKAHEAD_SHARE
    prompts = [prompt_ids(0)]
    if not np.array_equal(prompts[0], prompt_ids(farthest)):
        # each move by itself: after two moves at once the start can be another one
        prompts += [prompt_ids(farthest * part // 8) for part in range(1, 9)]
    if request.snippets.following is not None:
        prompts.append(prompt_ids(0, replace(request, snippets=request.snippets.following)))
    return list({ids.tobytes(): ids for ids in prompts}.values())
