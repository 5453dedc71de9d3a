"""A decoder at work for one request: the slot of the KV cache, the clock, and the model as this request sees it."""

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Literal, TypeVar

import numpy as np

from dg_lsp.canvas.layout import NOTHING, CachingTokenizer, Flags, Layout, TokenIds, TokenIndex, Tokenizer, token_ids
from dg_lsp.canvas.spec import DecoderName, MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, CausalPass, Denoiser, Lanes, Prediction, is_whole
from dg_lsp.engine.decoder_selection import missing_part
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, PromptLookupDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import (
    Decoder,
    DecodeTask,
    Draft,
    PendingPass,
    PrefillSpeed,
    Progress,
    mapped,
    prefill,
)
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder, InfillDecoder
from dg_lsp.engine.kv_slots import KVSlots
from dg_lsp.engine.repetition import BufferTokens, Repetition
from dg_lsp.engine.result import Ending, FillResult, Timings
from dg_lsp.engine.stop_criteria import Limits, StopCriteria
from dg_lsp.errors import DgLspError, RequestError
from dg_lsp.postprocess.validate import Candidate, Rejection

Value = TypeVar("Value")
Result = TypeVar("Result")


MAX_CLIENTS = 16
"""Clients whose texts are cached."""


class Stopwatch:
    """The seconds of one request by stage."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.prompt = self.prefill = self.predict = self.postprocess = self.paused = 0.0

    @contextmanager
    def stage(self, name: Literal["prompt", "postprocess"]) -> Iterator[None]:
        """Adds the time of the `with` block to this stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - began)

    def relay(self, steps: Generator[Value, None, Result]) -> Generator[Value, None, Result]:
        """The same steps; the time in which the caller holds one is not counted."""
        try:
            while True:
                step = next(steps)
                began = time.perf_counter()
                yield step
                self.paused += time.perf_counter() - began
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            steps.close()

    def timings(self) -> Timings:
        """Milliseconds so far; `denoise` is what neither prefill nor postprocess took."""
        total = time.perf_counter() - self._start - self.paused
        return Timings(
            prefill=1e3 * (self.prompt + self.prefill),
            denoise=1e3 * (total - self.prompt - self.prefill - self.postprocess),
            postprocess=1e3 * self.postprocess,
            total=1e3 * total,
            predict=1e3 * self.predict,
        )


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An open model as its requests share it. Belongs to the engine's thread."""

    denoiser: Denoiser
    tokenizer: Tokenizer
    spec: ModelSpec  # with the prompt format in use
    slots: KVSlots
    buffers: BufferTokens
    token_bytes: Callable[[int], bytes]  # text of one token
    token_index: Callable[[], TokenIndex]  # made at the first call, since a large vocabulary takes half a second
    text_caches: Callable[[Hashable], tuple[Tokenizer, BufferTokens]]  # by client
    client: Hashable = 0
    speed: PrefillSpeed = field(default_factory=PrefillSpeed)

    @classmethod
    def of(cls, denoiser: Denoiser, tokenizer: Tokenizer) -> "EngineModel":
        """The model with its own prompt format and sampling, and with empty slots and caches."""
        spec = denoiser.spec

        @lru_cache(MAX_CLIENTS)
        def text_caches(_client: Hashable) -> tuple[Tokenizer, BufferTokens]:
            return CachingTokenizer(tokenizer), BufferTokens(tokenizer, spec.repetition_match)

        caching_tokenizer, buffers = text_caches(0)
        token_bytes = lru_cache(None)(lambda token: tokenizer.decode(token_ids([token])))
        token_index = cache(lambda: TokenIndex(tokenizer.pieces()))
        slots = KVSlots(denoiser.num_slots)
        return cls(denoiser, caching_tokenizer, spec, slots, buffers, token_bytes, token_index, text_caches)

    def for_client(self, client: Hashable) -> "EngineModel":
        """The model as one client's requests see it: they find no text and no prompt of another client in a cache."""
        tokenizer, buffers = self.text_caches(client)
        return replace(self, tokenizer=tokenizer, buffers=buffers, client=client)

    def decode(self, ids: TokenIds) -> bytes:
        """See `Tokenizer.decode`; a step decodes a few tokens that are cached."""
        return b"".join(map(self.token_bytes, ids.tolist()))


@dataclass(frozen=True, slots=True)
class RemovedText:
    """See `Layout.removed`: which tokens may follow the beginning of a fill that does not have all of it."""

    text: bytes
    decode: Callable[[TokenIds], bytes]
    token_index: Callable[[], TokenIndex]

    def allowed(self, fill_ids: TokenIds) -> TokenIds | None:
        """The tokens after a partial fill of shape (N,); None where all are allowed."""
        if len(fill_ids) >= len(self.text):  # a token has at least one byte
            return None
        spelled = self.decode(fill_ids)
        if len(spelled) >= len(self.text) or not self.text.startswith(spelled):
            return None
        ids = self.token_index().spelling(self.text[len(spelled) :])
        return ids if len(ids) else None


NOTHING_REMOVED = RemovedText(b"", lambda _: b"", lambda: TokenIndex(()))


@dataclass(slots=True, eq=False)
class RequestDenoiser:
    """See `Passes`. Restores the request's slot, measures time, and overrides predictions by repetitions of the buffer.

    In causal passes, the first tokens of the fill spell the text that the prompt lacks before the cursor. Their
    confidence is that among the tokens that can. Nothing is overridden until the text is complete.

    Another request may use the slot between two passes; then the slot is prefilled again with what it held. Nothing is
    decoded twice where the slot was left alone. A model that is conditioned on its last prediction starts afresh.

    Every decoder sees the same repetitions, so that decoders which give the same text still do. Of a canvas only the
    leftmost masks are overridden, since the text between a mask and its left neighbour is unknown. Uniform noise has no
    masks: only causal passes are overridden there.
    """

    inner: Denoiser
    slots: KVSlots
    watch: Stopwatch
    spec: ModelSpec  # with the request's prompt format
    repetition: Repetition | None = None
    num_known: int = 0  # tokens before the fill, prompt and head together
    client: Hashable = 0
    removed: RemovedText = NOTHING_REMOVED
    num_decodes: int = 0  # passes of the runtime for this request
    num_there: int = 0  # first tokens of the prompt that the slot holds
    held: TokenIds = field(init=False, default_factory=lambda: NOTHING)  # that the request has put into its slot
    joined: tuple[CausalPass, Prediction] | None = field(init=False, default=None)  # a pass that `join` computed

    def prefill(self, slot: int, prompt_ids: TokenIds, most: int = WHOLE_PROMPT) -> int:
        """See `Passes.prefill`."""
        self.slots.user, self.held = self, prompt_ids
        with self._counted("prefill"):
            num_decoded = self.slots.prefill(self.inner, slot, prompt_ids, self.client, most)
        is_done = is_whole(num_decoded, prompt_ids, most)
        self.num_there = WHOLE_PROMPT if is_done else self.num_there + num_decoded
        return num_decoded

    @contextmanager
    def holding(self, slot: int, prompt_ids: TokenIds) -> Iterator[None]:
        """Records after the `with` block how much of its prompt the slot holds, unless another request took it."""
        try:
            yield
        finally:
            if self.slots.num_shared(slot, prompt_ids, self.client) == len(prompt_ids):
                self.slots.hold(slot, prompt_ids[: self.num_there], self.client)

    def predict(
        self, slot: int, canvases: Sequence[TokenIds], temperature: float, rng: np.random.Generator, lanes: Lanes = ()
    ) -> list[Prediction]:
        """See `Passes.predict`."""
        self.restore(slot)
        with self._counted("predict"):
            predictions = self.inner.predict(slot, canvases, temperature, rng, lanes)
        sampling, repetition = self.spec.sampling, self.repetition
        if repetition is None or not isinstance(sampling, MaskSampling):
            return predictions
        num_head = max(0, self.num_known - len(self.held))  # frozen before the gap
        before = self.held[self.num_known :]
        overridden = list[Prediction]()
        for canvas, prediction in zip(canvases, predictions, strict=True):
            run = _leftmost_masks(canvas == sampling.mask_id)
            fill_ids = np.concatenate([before, canvas[num_head : run.start]])
            overridden.append(repetition.overridden(prediction, fill_ids, run))
        return overridden

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Passes.extend`."""
        joined, self.joined = self.joined, None
        if joined is not None and joined[0].slot == slot and np.array_equal(joined[0].ids, ids):
            causal_pass, prediction = joined
            self.slots.user = self
        else:
            self.restore(slot)
            causal_pass = self.causal_pass(slot, ids)
            with self._counted("predict"):
                prediction = self.inner.extend(slot, ids, causal_pass.allowed)
        fills = self._fills(ids)
        self.held = np.concatenate([self.held, ids])
        for at, fill in fills.items():
            if self.repetition is not None and at not in (causal_pass.allowed or {}):
                prediction = self.repetition.overridden(prediction, fill, (at,))
        return prediction

    def causal_pass(self, slot: int, ids: TokenIds) -> CausalPass:
        """What `extend` has to compute."""
        restrictions = {at: self.removed.allowed(fill) for at, fill in self._fills(ids).items()}
        allowed = {at: tokens for at, tokens in restrictions.items() if tokens is not None}
        return CausalPass(slot, len(self.held), ids, allowed)

    def _fills(self, ids: TokenIds) -> dict[int, TokenIds]:
        """By position in a causal pass: the fill up to there. The positions before it are followed by known text."""
        if self.repetition is None and not self.removed.text:
            return {}
        held, num_before = np.concatenate([self.held, ids]), len(self.held)
        first = max(0, self.num_known - num_before - 1)
        return {at: held[self.num_known : num_before + at + 1] for at in range(first, len(ids))}

    @property
    def is_displaced(self) -> bool:
        """Another request has used the model since the prompt was decoded."""
        return self.slots.user is not self and self.num_there == WHOLE_PROMPT and self.joined is None

    def take_joined(self, causal_pass: CausalPass, prediction: Prediction, seconds: float) -> None:
        """Keeps the result of a pass of several requests, which took its time while the caller held a step."""
        self.joined = causal_pass, prediction
        self.watch.predict += seconds
        self.watch.paused -= seconds
        self.num_decodes += 1

    @contextmanager
    def _counted(self, stage: Literal["prefill", "predict"]) -> Iterator[None]:
        """Adds the time and the passes of the `with` block."""
        began, before = time.perf_counter(), self.inner.num_decodes
        yield
        setattr(self.watch, stage, getattr(self.watch, stage) + time.perf_counter() - began)
        self.num_decodes += self.inner.num_decodes - before

    def restore(self, slot: int) -> None:
        """Makes the slot hold what it held before another request used the model."""
        if self.slots.user is not self and len(self.held):
            held = self.held
            self.prefill(slot, held)
            self.slots.hold(slot, held, self.client)


def join(passes: Sequence[PendingPass]) -> bool:
    """Computes the next causal passes of several requests to one model in one pass; their decoders take the results.

    False where that is not possible; then each request decodes by itself.
    """
    requests = [pending.denoiser for pending in passes if isinstance(pending.denoiser, RequestDenoiser)]
    began = time.perf_counter()
    causal_passes = list[CausalPass]()
    try:
        for request, pending in zip(requests, passes, strict=True):
            request.restore(pending.slot)
            causal_passes.append(request.causal_pass(pending.slot, pending.ids))
        predictions = requests[0].inner.extend_together(causal_passes)
    except DgLspError:
        return False
    finally:
        requests[0].slots.user = None  # a request that does not take its result restores its slot
    seconds = time.perf_counter() - began
    for request, causal_pass, prediction in zip(requests, causal_passes, predictions, strict=True):
        request.take_joined(causal_pass, prediction, seconds)
    return True


def _leftmost_masks(is_mask: Flags) -> range:
    """The consecutive masks from the first one on; empty, at 0, without a mask."""
    first = int(is_mask.argmax())
    after = is_mask[first:]
    return range(first, len(is_mask) if after.all() else first + int(after.argmin()))


class DecodeRun:
    """One decoder, one layout and one slot of the KV cache."""

    def __init__(
        self,
        model: EngineModel,
        decoder: DecoderName,
        layout: Layout,
        limits: Limits,
        watch: Stopwatch,
        *,
        seed: int,
        repetition: Repetition | None = None,
        slot: int = -1,
    ) -> None:
        """Chooses the slot if there is none with this number.

        Raises:
            RequestError: the model lacks what the decoder needs.
        """
        self._model = model
        self._watch = watch
        prompt_ids, slots, rng = layout.prompt_ids, model.slots, np.random.default_rng(seed)
        stop = StopCriteria(model.decode, limits, layout.stop, layout.removed)
        slot = slots.choose(prompt_ids, model.client, slot=slot)
        removed = RemovedText(layout.removed, model.decode, model.token_index)
        denoiser = RequestDenoiser(
            model.denoiser,
            slots,
            watch,
            model.spec,
            repetition=repetition,
            num_known=layout.num_known,
            client=model.client,
            removed=removed,
        )
        self._denoiser = denoiser
        num_kept = denoiser.num_there = slots.num_shared(slot, prompt_ids, model.client)
        self.task = DecodeTask(denoiser, slot, layout, limits, stop, rng, repetition, num_kept, model.speed)
        self.name = decoder
        self.decoder = new_decoder(decoder, self.task)
        slots.hold(slot, prompt_ids, model.client)

    def drafts(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """One value per forward pass, then the drafts of all candidates."""
        slot = self.task.slot
        with self._model.slots.in_use(slot), self._denoiser.holding(slot, self.task.layout.prompt_ids):
            steps, num_removed = self._watch.relay(self._restored(self.decoder.run())), len(self.task.layout.removed)
            return (yield from mapped(steps, lambda progress: replace(progress, num_removed=num_removed)))

    def _restored(self, steps: Generator[Progress, None, Result]) -> Generator[Progress, None, Result]:
        """The same steps; where another request used the model between two, the slot is decoded again in pieces."""
        with closing(steps):
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    result: Result = end.value
                    return result
                yield step
                if self._denoiser.is_displaced:
                    self._model.slots.hold(self.task.slot, self._denoiser.held, self._model.client)
                    yield from self.task.prefill(self._denoiser.held)

    @property
    def num_decodes(self) -> int:
        """Passes of the runtime so far."""
        return self._denoiser.num_decodes

    def confidence(self, draft: Draft) -> float:
        """Estimated probability from 0 to 1 that the draft's first line with text is right."""
        text, length, num_removed = b"", len(draft.confidence), len(self.task.layout.removed)
        for number, token in enumerate(draft.ids.tolist(), start=1):
            text += self._model.token_bytes(token)
            if b"\n" in text[num_removed:].lstrip():
                length = number
                break
        return float(np.prod(np.clip(draft.confidence[:length], 1e-9, 1.0), dtype=np.float64))

    def ending(self, draft: Draft) -> Ending:
        """Why the draft stopped."""
        if draft.is_cut:
            return Ending.TOKENS
        return self.task.stop.ending(draft.ids, is_ended=draft.is_ended, num_passes=self.decoder.num_passes)

    def result(self, best: Draft, candidates: tuple[Candidate, ...], rejections: tuple[Rejection, ...]) -> FillResult:
        """The result of a fill or an answer, and its costs so far."""
        num_prompt, decoder = len(self.task.layout.prompt_ids), self.decoder
        return FillResult(
            model=self._model.spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=self.task.limits.canvas_length,
            steps=decoder.num_passes,
            output_tokens=len(best.confidence),
            prompt_tokens=num_prompt,
            cached_tokens=num_prompt - self.decoder.num_decoded,
            timings=self._watch.timings(),
            decoder=self.name,
            slot=self.task.slot,
            drift=self._model.denoiser.drift(self.task.slot),
            ending=self.ending(best),
            num_blocks=decoder.num_blocks,
            canvas_tokens=decoder.canvas_tokens,
            num_decodes=self.num_decodes,
            slot_tokens=len(self._denoiser.held),
        )


MAX_LAG = 8  # tokens that a prompt may lack that is kept ready beside the current one


def warm_up(
    model: EngineModel, prompt_ids: TokenIds, taken: Sequence[int] = (), max_lag: int = 0
) -> Generator[Progress, None, int]:
    """Decodes a prompt into the slot that is best for it, with a value between two pieces; returns the slot.

    Nothing is decoded if the slot lacks no more than `max_lag` tokens. The slots `taken` stay as they are.
    """
    slots, client = model.slots, model.client
    slot = slots.choose(prompt_ids, client, taken)
    num_missing = len(prompt_ids) - slots.num_alike(slot, prompt_ids, client)
    if num_missing <= max_lag:
        return slot
    denoiser = RequestDenoiser(model.denoiser, slots, Stopwatch(), model.spec, client=client)
    denoiser.num_there = slots.num_shared(slot, prompt_ids, client)
    slots.hold(slot, prompt_ids, client)
    with denoiser.holding(slot, prompt_ids):
        yield from prefill(denoiser, slot, prompt_ids, model.speed)
    return slot


_DECODERS: dict[DecoderName, type[Decoder]] = {
    DecoderName.DIFFUSION: DiffusionDecoder,
    DecoderName.AUTOREGRESSIVE: AutoregressiveDecoder,
    DecoderName.SPECULATIVE: SpeculativeDecoder,
    DecoderName.PROMPT_LOOKUP: PromptLookupDecoder,
    DecoderName.INFILL: InfillDecoder,
}


def new_decoder(name: DecoderName, task: DecodeTask) -> Decoder:
    """A decoder other than `auto`.

    Raises:
        RequestError: the model lacks what the decoder needs.
    """
    if missing := missing_part(task.spec, name):
        raise RequestError(missing)
    return _DECODERS[name](task)
