"""A denoiser around another; what a kind of it does not change passes through."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from dg_lsp.canvas.layout import Layout, TokenIds
from dg_lsp.canvas.repetition import Repetition
from dg_lsp.canvas.spec import MaskSampling, ModelSpec
from dg_lsp.diffusion.denoiser import Denoiser, Footprint, Prediction
from dg_lsp.engine.kv_slots import KVSlots
from dg_lsp.engine.result import Timings


class WrappedDenoiser:
    """See `Denoiser`."""

    def __init__(self, inner: Denoiser) -> None:
        self._inner = inner

    @property
    def spec(self) -> ModelSpec:
        """The inner denoiser's."""
        return self._inner.spec

    @property
    def num_slots(self) -> int:
        """The inner denoiser's."""
        return self._inner.num_slots

    @property
    def footprint(self) -> Footprint:
        """The inner denoiser's."""
        return self._inner.footprint

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        return self._inner.prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        return self._inner.predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's."""
        return self._inner.extend(slot, ids)

    def close(self) -> None:
        """Does nothing: whoever made the inner denoiser closes it."""


class SlotDenoiser(WrappedDenoiser):
    """Makes its slot hold again what it held, wherever another request has used the model since.

    That costs nothing while the slot was left alone. A model that is conditioned on its last prediction begins anew.
    """

    def __init__(self, inner: Denoiser, slots: KVSlots) -> None:
        super().__init__(inner)
        self._slots = slots
        self._held: list[TokenIds] = []

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        self._slots.user, self._held = self, [prompt_ids]
        return super().prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        self._regain(slot)
        return super().predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's."""
        self._regain(slot)
        prediction = super().extend(slot, ids)
        self._held.append(ids)
        return prediction

    def _regain(self, slot: int) -> None:
        if self._slots.user is not self and self._held:
            held = np.concatenate(self._held)
            self.prefill(slot, held)
            self._slots.hold(slot, held)


Value = TypeVar("Value")
Result = TypeVar("Result")


class Stopwatch:
    """Starts at once; each stage adds up over all its uses."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of the `with` block to this stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._stages[name] = self._stages.get(name, 0.0) + time.perf_counter() - start

    def passing_on(self, values: Generator[Value, None, Result]) -> Generator[Value, None, Result]:
        """The generator itself; the time until its next value is asked for belongs to whoever looks at the last one."""
        try:
            while True:
                value = next(values)
                with self.stage("looking"):
                    yield value
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            values.close()

    def timings(self) -> Timings:
        """Milliseconds so far; `denoise` is what neither prefill nor postprocess took."""
        names = ("prompt", "prefill", "predict", "postprocess", "looking")
        prompt, prefill, predict, postprocess, looking = (self._stages.get(name, 0.0) for name in names)
        total = time.perf_counter() - self._start - looking
        return Timings(
            prefill=1e3 * (prompt + prefill),
            denoise=1e3 * (total - prompt - prefill - postprocess),
            postprocess=1e3 * postprocess,
            total=1e3 * total,
            predict=1e3 * predict,
        )


class TimedDenoiser(WrappedDenoiser):
    """Counts to the stages `prefill` and `predict` of a request's stopwatch."""

    def __init__(self, inner: Denoiser, watch: Stopwatch, spec: ModelSpec | None = None) -> None:
        """`spec` is how this request asks the model, where that is not the model's own way."""
        super().__init__(inner)
        self._watch = watch
        self._spec = spec or inner.spec

    @property
    def spec(self) -> ModelSpec:
        """The inner denoiser's, unless this request asks otherwise."""
        return self._spec

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        with self._watch.stage("prefill"):
            return super().prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's."""
        with self._watch.stage("predict"):
            return super().predict(slot, canvases, temperature, rng, lanes)

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's; counts to `predict`."""
        with self._watch.stage("predict"):
            return super().extend(slot, ids)


class EchoingDenoiser(WrappedDenoiser):
    """For one request on one slot. Every plan hears the same echo, so that plans which agree go on agreeing.

    Of a canvas only the leftmost masks change: what is between a mask and the buffer's end is not known yet. Uniform
    noise, which has no masks, stays as the model says.
    """

    def __init__(self, inner: Denoiser, echo: Repetition, layout: Layout) -> None:
        super().__init__(inner)
        self._echo = echo
        self._num_known = layout.num_known
        self._held = layout.prompt_ids[:0]

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """As the inner denoiser's."""
        self._held = prompt_ids
        return super().prefill(slot, prompt_ids)

    def predict(
        self,
        slot: int,
        canvases: Sequence[TokenIds],
        temperature: float,
        rng: np.random.Generator,
        lanes: Sequence[int] = (),
    ) -> list[Prediction]:
        """As the inner denoiser's, with echoes from the leftmost mask on."""
        predictions = super().predict(slot, canvases, temperature, rng, lanes)
        sampling = self.spec.sampling
        if not isinstance(sampling, MaskSampling):
            return predictions
        return [
            self._with_canvas_echoes(prediction, canvas, sampling.mask_id)
            for prediction, canvas in zip(predictions, canvases, strict=True)
        ]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """As the inner denoiser's, with echoes after every token that the fill may end with."""
        prediction = super().extend(slot, ids)
        self._held = np.concatenate([self._held, ids])
        echoes = {}
        for i in range(len(ids)):
            if (end := len(self._held) - len(ids) + i + 1) >= self._num_known:
                echoes[i] = self._held[self._num_known : end]
        return self._changed(prediction, echoes)

    def _with_canvas_echoes(self, prediction: Prediction, canvas: TokenIds, mask_id: int) -> Prediction:
        masks = np.flatnonzero(canvas == mask_id)
        if not len(masks):
            return prediction
        first = int(masks[0])
        num_head = max(0, self._num_known - len(self._held))  # frozen before the hole
        known = np.concatenate([self._held[self._num_known :], canvas[num_head:first]])
        at = first
        while at < len(canvas) and canvas[at] == mask_id and (echoed := self._echo.following(known)):
            prediction = self._changed(prediction, {at: known})
            known, at = np.append(known, np.int32(echoed.token)), at + 1
        return prediction

    def _changed(self, prediction: Prediction, fills: dict[int, TokenIds]) -> Prediction:
        """The prediction with echoes at positions, given the fill before each."""
        heard = {i: echoed for i, fill in fills.items() if (echoed := self._echo.following(fill))}
        if not heard:
            return prediction
        argmax_ids, sampled_ids = prediction.argmax_ids.copy(), prediction.sampled_ids.copy()
        confidence = prediction.confidence.copy()
        for i, echoed in heard.items():
            agrees = argmax_ids[i] == echoed.token
            confidence[i] = max(confidence[i], echoed.confidence) if agrees else echoed.confidence
            if sampled_ids[i] == argmax_ids[i]:
                sampled_ids[i] = echoed.token
            argmax_ids[i] = echoed.token
        return replace(prediction, argmax_ids=argmax_ids, sampled_ids=sampled_ids, confidence=confidence)
