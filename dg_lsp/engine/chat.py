"""A conversation to go on with: what is asked, and how it is answered. Nothing of the answer is judged."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from dg_lsp.canvas.chat import Turn, chat_layout
from dg_lsp.canvas.spec import ModelSpec, Sampling
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.decoder_selection import decoder_of
from dg_lsp.engine.decoders.base import DecodeTask, Progress
from dg_lsp.engine.kv_slots import KVSlots
from dg_lsp.engine.request import DecoderName
from dg_lsp.engine.request_denoiser import SlotDenoiser, Stopwatch, TimedDenoiser
from dg_lsp.engine.result import FillResult
from dg_lsp.engine.stop_criteria import Draft, Limits, StopCriteria
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection

LONGEST_ANSWER = 1024
"""Tokens, where nothing else is asked for."""
DEADLINE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What was said so far."""

    turns: tuple[Turn, ...]
    name: str
    """Of the conversation: a newer request of the same one takes this one's place."""
    max_tokens: int = LONGEST_ANSWER
    """Longest answer; it goes on canvas by canvas up to here, or as long as the model has room."""
    deadline_ms: float = DEADLINE_MS
    """Milliseconds from submission after which what is settled is the answer."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ChatDecoder:
    """One model's way to answer. Belongs to the engine's thread."""

    denoiser: Denoiser
    tokenizer: Tokenizer
    spec: ModelSpec
    sampling: Sampling | None
    slots: KVSlots

    def run(self, request: ChatRequest, deadline: float) -> Generator[Progress, None, FillResult]:
        """One value per forward pass, then the answer as the only candidate. `deadline` in `time.monotonic` seconds.

        Raises:
            RequestError: nobody said anything, or too much was said.
            ModelUnsupportedError: the model has no chat template that is known here.
            BackendError: the runtime failed.
        """
        watch = Stopwatch()
        with watch.stage("prompt"):
            layout = chat_layout(request.turns, self.tokenizer, self.spec)
            plan = DecoderName.CANVAS if self.sampling else DecoderName.CAUSAL
            limits = Limits(self._canvas_length(request), request.max_tokens, None, deadline=deadline)
            denoiser = TimedDenoiser(SlotDenoiser(self.denoiser, self.slots), watch, self.spec)
            rng = np.random.default_rng(request.seed)
            filling = decoder_of(
                plan, DecodeTask(denoiser, limits, StopCriteria(self.tokenizer, limits), rng), self.sampling
            )
        prompt_ids = layout.prompt_ids
        slot = self.slots.choose(prompt_ids)
        num_decoded = filling.prefill(slot, prompt_ids, self.slots.num_shared(slot, prompt_ids))
        self.slots.hold(slot, prompt_ids)
        (draft, *_) = yield from watch.passing_on(filling.run(slot, layout))
        is_said = bool(len(draft.confidence))
        return FillResult(
            model=self.spec.name,
            candidates=(self._candidate(draft, request),) if is_said else (),
            rejections=() if is_said else (Rejection(Reason.UNFINISHED),),
            canvas_length=limits.canvas_length,
            steps=draft.steps,
            tokens_per_forward=draft.tokens_per_forward,
            prompt_tokens=len(prompt_ids),
            cached_tokens=len(prompt_ids) - num_decoded,
            timings=watch.timings(),
            plan=plan,
            slot=slot,
        )

    def _canvas_length(self, request: ChatRequest) -> int:
        """The shortest that holds the longest answer, or the longest."""
        lengths = self.spec.canvas_lengths if self.sampling else ()
        return min((length for length in lengths if length >= request.max_tokens), default=max(lengths, default=0))

    def _candidate(self, draft: Draft, request: ChatRequest) -> Candidate:
        ids = draft.ids[: request.max_tokens]
        return Candidate(self.tokenizer.decode(ids).decode("utf-8", "replace"), draft.score)
