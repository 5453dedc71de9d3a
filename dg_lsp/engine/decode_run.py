"""A decoder at work for one request: the slot of the KV cache, the clock, and the model as this request sees it."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np

from dg_lsp.canvas.layout import NOTHING, Layout, TokenIds, common_prefix_length, token_ids
from dg_lsp.canvas.repetition import BufferTokens, Repetition, RepetitionMatch
from dg_lsp.canvas.spec import DecoderName, MaskSampling, ModelSpec, PromptFormat, Sampling
from dg_lsp.canvas.tokenizer import CachingTokenizer, Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser, Footprint, Prediction
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, PromptLookupDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import Decoder, DecodeTask, Draft, Progress
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.decoders.infill import InfillDecoder
from dg_lsp.engine.result import FillResult, Timings
from dg_lsp.engine.stop_criteria import Limits, StopCriteria
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Candidate, Rejection

Value = TypeVar("Value")
Result = TypeVar("Result")


class KVSlots:
    """Which prompt each slot holds, least recently used first. Not thread-safe: owned by the engine."""

    def __init__(self, num_slots: int) -> None:
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, NOTHING) for slot in range(num_slots))
        self.user: object = None
        """The request that used the model last."""

    def choose(self, prompt_ids: TokenIds) -> int:
        """The slot that shares at least half of the prompt, start and end; without one, the least recently used."""
        shared = {slot: self._num_alike(slot, prompt_ids) for slot in self._held}
        best = max(shared, key=lambda slot: shared[slot])
        if 2 * shared[best] < len(prompt_ids):
            best = next(iter(self._held))
        self._held.move_to_end(best)
        return best

    def num_shared(self, slot: int, prompt_ids: TokenIds) -> int:
        """How many of the prompt's first tokens the slot holds."""
        return common_prefix_length(self._held[slot], prompt_ids)

    def _num_alike(self, slot: int, prompt_ids: TokenIds) -> int:
        """First and last tokens that the slot's prompt has in common with this one."""
        num_shared, held = self.num_shared(slot, prompt_ids), self._held[slot]
        return num_shared + common_prefix_length(held[num_shared:][::-1], prompt_ids[num_shared:][::-1])

    def hold(self, slot: int, prompt_ids: TokenIds) -> None:
        """Records that the slot holds this prompt now."""
        self._held[slot] = prompt_ids


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
    spec: ModelSpec
    """With the prompt format in use."""
    sampling: Sampling | None
    slots: KVSlots
    buffers: BufferTokens
    token_bytes: Callable[[int], bytes]
    """Text of one token."""

    @classmethod
    def of(cls, denoiser: Denoiser, tokenizer: Tokenizer) -> "EngineModel":
        """The model with its own prompt format and sampling, and with empty slots and caches."""
        spec = denoiser.spec
        return cls(
            denoiser,
            CachingTokenizer(tokenizer),
            spec,
            spec.sampling,
            KVSlots(denoiser.num_slots),
            BufferTokens(tokenizer, spec.repetition_match),
            lru_cache(None)(lambda token: tokenizer.decode(token_ids([token]))),
        )

    def decode(self, ids: TokenIds) -> bytes:
        """See `Tokenizer.decode`; a step decodes a few tokens that are cached."""
        return b"".join(map(self.token_bytes, ids.tolist()))


class RequestDenoiser:
    """See `Denoiser`. Restores the request's slot, measures time, and overrides predictions with repetitions.

    Another request may use the slot between two passes; then the slot is prefilled again with what it held. Nothing is
    decoded twice where the slot was left alone. A model that is conditioned on its last prediction starts afresh.

    Every decoder sees the same repetitions, so that decoders which give the same text still do. Of a canvas only the
    leftmost masks are overridden, since the text between a mask and its left neighbour is unknown. A model of uniform
    noise, which has no masks, is overridden in causal passes only.
    """

    def __init__(
        self,
        inner: Denoiser,
        slots: KVSlots,
        watch: Stopwatch,
        spec: ModelSpec,
        repetition: Repetition | None = None,
        num_known: int = 0,
    ) -> None:
        """`spec` has the request's prompt format; `num_known` tokens precede the fill, prompt and head together."""
        self.spec = spec
        self._inner = inner
        self._slots = slots
        self._watch = watch
        self._repetition = repetition
        self._num_known = num_known
        self._mask_id = spec.sampling.mask_id if isinstance(spec.sampling, MaskSampling) else None
        self._held = NOTHING
        """Tokens that the request has put into its slot."""

    @property
    def num_slots(self) -> int:
        """The model's."""
        return self._inner.num_slots

    @property
    def footprint(self) -> Footprint:
        """The model's."""
        return self._inner.footprint

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        self._slots.user, self._held = self, prompt_ids
        began = time.perf_counter()
        num_decoded = self._inner.prefill(slot, prompt_ids)
        self._watch.prefill += time.perf_counter() - began
        return num_decoded

    def drift(self, slot: int) -> int:
        """See `Denoiser.drift`."""
        return self._inner.drift(slot)

    def refresh(self, slot: int) -> int:
        """See `Denoiser.refresh`."""
        return self._inner.refresh(slot)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """See `Denoiser.predict`."""
        self._restore(slot)
        began = time.perf_counter()
        predictions = self._inner.predict(slot, canvases, temperature, rng, lanes)
        self._watch.predict += time.perf_counter() - began
        repetition, mask_id = self._repetition, self._mask_id
        if repetition is None or mask_id is None:
            return predictions
        return [
            _overridden(prediction, self._canvas_matches(repetition, canvas, mask_id))
            for prediction, canvas in zip(predictions, canvases, strict=True)
        ]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`."""
        self._restore(slot)
        began = time.perf_counter()
        prediction = self._inner.extend(slot, ids)
        self._watch.predict += time.perf_counter() - began
        num_before = len(self._held)
        self._held = np.concatenate([self._held, ids])
        if self._repetition is None:
            return prediction
        find, num_known = self._repetition.following, self._num_known
        places = range(max(0, num_known - num_before - 1), len(ids))
        matches = [(at, find(self._held[num_known : num_before + at + 1])) for at in places]
        return _overridden(prediction, [(at, match) for at, match in matches if match])

    def close(self) -> None:
        """Does nothing: the model outlives the request."""

    def _restore(self, slot: int) -> None:
        if self._slots.user is not self and len(self._held):
            held = self._held
            self.prefill(slot, held)
            self._slots.hold(slot, held)

    def _canvas_matches(
        self, repetition: Repetition, canvas: TokenIds, mask_id: int
    ) -> list[tuple[int, RepetitionMatch]]:
        """Positions from the leftmost mask on, and the repetition at each."""
        masks = np.flatnonzero(canvas == mask_id)
        if not len(masks):
            return []
        at = int(masks[0])
        num_head = max(0, self._num_known - len(self._held))  # frozen before the gap
        fill = np.concatenate([self._held[self._num_known :], canvas[num_head:at]])
        matches = []
        while at < len(canvas) and canvas[at] == mask_id and (match := repetition.following(fill)):
            matches.append((at, match))
            fill, at = np.concatenate([fill, np.array([match.token], np.int32)]), at + 1
        return matches


def _overridden(prediction: Prediction, matches: Sequence[tuple[int, RepetitionMatch]]) -> Prediction:
    """The prediction with a repeated token at each of these positions."""
    if not matches:
        return prediction
    argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
    confidence = prediction.confidence.copy()
    for at, match in matches:
        agrees = argmax_ids[at] == match.token
        confidence[at] = max(confidence[at], match.confidence) if agrees else match.confidence
        if sampled_ids[at] == argmax_ids[at]:
            sampled_ids[at] = match.token
        argmax_ids[at] = match.token
    return replace(prediction, argmax_ids=argmax_ids, sampled_ids=sampled_ids, confidence=confidence)


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
    ) -> None:
        """Chooses the slot.

        Raises:
            RequestError: the model lacks what the decoder needs.
        """
        self._model = model
        self._layout = layout
        self._watch = watch
        self.stop = StopCriteria(model.decode, limits, layout.stop)
        self.slot = model.slots.choose(layout.prompt_ids)
        denoiser = RequestDenoiser(model.denoiser, model.slots, watch, model.spec, repetition, layout.num_known)
        rng = np.random.default_rng(seed)
        self.task = DecodeTask(denoiser, self.slot, limits, self.stop, rng, repetition)
        self.name = decoder
        self.decoder = new_decoder(decoder, self.task, model.sampling)

    def drafts(self) -> Generator[Progress, None, tuple[Draft, ...]]:
        """One value per forward pass, then the drafts of all candidates."""
        prompt_ids, slots = self._layout.prompt_ids, self._model.slots
        num_kept = slots.num_shared(self.slot, prompt_ids)
        slots.hold(self.slot, prompt_ids)
        return (yield from self._watch.relay(self.decoder.run(self._layout, num_kept)))

    def confidence(self, draft: Draft) -> float:
        """Estimated probability from 0 to 1 that the draft's first line with text is right."""
        text, length = b"", len(draft.confidence)
        for number, token in enumerate(draft.ids.tolist(), start=1):
            text += self._model.token_bytes(token)
            if b"\n" in text.lstrip():
                length = number
                break
        return float(np.prod(np.clip(draft.confidence[:length], 1e-9, 1.0), dtype=np.float64))

    def result(self, best: Draft, candidates: tuple[Candidate, ...], rejections: tuple[Rejection, ...]) -> FillResult:
        """The result of a fill or an answer, and its costs so far."""
        num_prompt = len(self._layout.prompt_ids)
        return FillResult(
            model=self._model.spec.name,
            candidates=candidates,
            rejections=rejections,
            canvas_length=self.task.limits.canvas_length,
            steps=self.decoder.num_passes,
            output_tokens=len(best.confidence),
            prompt_tokens=num_prompt,
            cached_tokens=num_prompt - self.decoder.num_decoded,
            timings=self._watch.timings(),
            decoder=self.name,
            slot=self.slot,
            drift=self._model.denoiser.drift(self.slot),
        )


def new_decoder(name: DecoderName, task: DecodeTask, sampling: Sampling | None) -> Decoder:
    """A decoder other than `auto`.

    Raises:
        RequestError: the model lacks what the decoder needs.
    """
    spec = task.spec
    if name.needs_causal_head and not spec.has_causal_head:
        where = " in the prompt format infill" if spec.prompt_format is PromptFormat.INFILL else ""
        raise RequestError(f"{spec.name} has no causal head{where}, which {name} needs; choose the decoder diffusion")
    if name is DecoderName.AUTOREGRESSIVE:
        return AutoregressiveDecoder(task)
    if name is DecoderName.PROMPT_LOOKUP:
        return PromptLookupDecoder(task)
    if sampling is None:
        raise RequestError(f"{spec.name} has no canvas, which {name} needs; choose autoregressive or prompt-lookup")
    if name is DecoderName.SPECULATIVE:
        return SpeculativeDecoder(task, sampling)
    return InfillDecoder(task, sampling) if name is DecoderName.INFILL else DiffusionDecoder(task, sampling)
