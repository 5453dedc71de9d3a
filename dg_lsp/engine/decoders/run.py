"""A decoder at work for one request."""

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from dg_lsp.canvas.layout import Layout
from dg_lsp.canvas.repetition import Repetition
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptFormat, Sampling
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.engine.decoders.autoregressive import AutoregressiveDecoder, PromptLookupDecoder, SpeculativeDecoder
from dg_lsp.engine.decoders.base import Decoder, DecodeTask, Draft, Progress
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.decoders.infill import InfillDecoder
from dg_lsp.engine.request_denoiser import KVSlots, RequestDenoiser, Stopwatch
from dg_lsp.engine.stop_criteria import Limits, StopCriteria
from dg_lsp.errors import RequestError


@dataclass(frozen=True, slots=True)
class EngineModel:
    """An open model as its requests share it. Belongs to the engine's thread."""

    denoiser: Denoiser
    tokenizer: Tokenizer
    spec: ModelSpec
    """With the prompt format in use."""
    sampling: Sampling | None
    slots: KVSlots


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
        self.stop = StopCriteria(model.tokenizer, limits, layout.stop)
        self.slot = model.slots.choose(layout.prompt_ids)
        denoiser = RequestDenoiser(model.denoiser, model.slots, watch, model.spec, repetition, layout.num_known)
        rng = np.random.default_rng(seed)
        self.task = DecodeTask(denoiser, self.slot, limits, self.stop, rng, repetition)
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
        for number in range(len(draft.ids)):
            text += self._model.tokenizer.decode(draft.ids[number : number + 1])
            if b"\n" in text.lstrip():
                length = number + 1
                break
        return float(np.prod(np.clip(draft.confidence[:length], 1e-9, 1.0), dtype=np.float64))


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
