"""The model as one request sees it, and the slots of its KV cache that requests share."""

import time
from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, TypeVar

import numpy as np

from dg_lsp.canvas.layout import TokenIds, common_prefix_length, token_ids
from dg_lsp.canvas.repetition import Repetition, RepetitionMatch
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import Denoiser, Footprint, Prediction
from dg_lsp.engine.result import Timings

Value = TypeVar("Value")
Result = TypeVar("Result")


class KVSlots:
    """Which prompt each slot holds, least recently used first. Not thread-safe: owned by the engine."""

    def __init__(self, num_slots: int) -> None:
        self._held: OrderedDict[int, TokenIds] = OrderedDict((slot, token_ids([])) for slot in range(num_slots))
        self.user: object = None
        """The request that used the model last."""

    def choose(self, prompt_ids: TokenIds) -> int:
        """The slot that shares at least half of the prompt; without one, the least recently used."""
        best = max(self._held, key=lambda slot: self.num_shared(slot, prompt_ids))
        if 2 * self.num_shared(best, prompt_ids) < len(prompt_ids):
            best = next(iter(self._held))
        self._held.move_to_end(best)
        return best

    def num_shared(self, slot: int, prompt_ids: TokenIds) -> int:
        """How many of the prompt's first tokens the slot holds."""
        return common_prefix_length(self._held[slot], prompt_ids)

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
        self._held = token_ids([])
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
        if self._repetition is None or self._mask_id is None:
            return predictions
        return [
            _overridden(prediction, self._canvas_matches(self._repetition, canvas, self._mask_id))
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
        matches = []
        for at in range(max(0, self._num_known - num_before - 1), len(ids)):
            match = self._repetition.following(self._held[self._num_known : num_before + at + 1])
            if match is not None:
                matches.append((at, match))
        return _overridden(prediction, matches)

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
            fill, at = np.append(fill, np.int32(match.token)), at + 1
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
