"""A model without weights that predicts the bytes of a script. For tests, samples and editor work.

It has what a caller notices of a real backend: slots with prefix reuse, masks, special tokens, argument checks, steps
that take time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from dg_lsp.canvas.layout import TokenIds, common_prefix_length, token_ids
from dg_lsp.canvas.spec import FimTokens, MaskSampling, ModelSpec, UniformSampling
from dg_lsp.diffusion.denoiser import (
    Floats,
    Footprint,
    Prediction,
    check_prompt_length,
    check_slot,
    check_temperature,
    checked_canvases,
    checked_extension,
    checked_ids,
)

MASK_ID, END_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID = range(5)
NUM_SPECIALS = 5
VOCAB_SIZE = NUM_SPECIALS + 256
_FIM = FimTokens(prefix_id=PREFIX_ID, suffix_id=SUFFIX_ID, middle_id=MIDDLE_ID)
_SPECIALS = {"<mask>": MASK_ID, "<end>": END_ID, "<prefix>": PREFIX_ID, "<suffix>": SUFFIX_ID, "<middle>": MIDDLE_ID}
_BANNED = (MASK_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID)

MASK_SPEC = ModelSpec(
    name="scripted",
    vocab_size=VOCAB_SIZE,
    sampling=MaskSampling(mask_id=MASK_ID),
    end_ids=(END_ID,),
    fim=_FIM,
    banned_ids=_BANNED,
    canvas_lengths=(8, 16, 32, 64),
)
UNIFORM_SPEC = ModelSpec(
    name="scripted-uniform",
    vocab_size=VOCAB_SIZE,
    sampling=UniformSampling(),
    end_ids=(END_ID,),
    fim=_FIM,
    banned_ids=_BANNED,
    canvas_lengths=(8, 16, 32, 64),
)

Fill = str | Callable[[str, str], str] | Sequence[str]
"""A text; a function of the prompt's prefix and suffix; or one text for each canvas of a step."""


class ByteTokenizer:
    """Token id = byte value + `NUM_SPECIALS`."""

    def encode(self, text: str) -> TokenIds:
        """Shape (number of UTF-8 bytes,); a lone surrogate becomes `?`."""
        return token_ids(np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.int32) + NUM_SPECIALS)

    def decode(self, ids: TokenIds) -> bytes:
        """Specials decode to nothing."""
        array = np.asarray(ids, dtype=np.int32)
        return (array[array >= NUM_SPECIALS] - NUM_SPECIALS).astype(np.uint8).tobytes()

    def special(self, spelling: str) -> int | None:
        """See `Tokenizer.special`."""
        return _SPECIALS.get(spelling)


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """The prompt of a slot, and the rest of each text after it."""

    ids: TokenIds = field(default_factory=lambda: token_ids([]))
    targets: tuple[bytes, ...] = ()


class ScriptedDenoiser:
    """Predicts the bytes of `fill` and then end tokens.

    The argmax is always the byte of the script. In each step the leftmost `tokens_per_step` open positions have
    confidence 0.99, the others less than 0.5. Where the prompt goes on after its middle sentinel with the start of the
    fill, the prediction is the rest of the fill.
    """

    def __init__(
        self,
        fill: Fill,
        *,
        spec: ModelSpec | None = None,
        step_seconds: float = 0.0,
        tokens_per_step: int = 4,
        num_slots: int = 4,
        context_length: int = 4096,
    ) -> None:
        self.spec = spec or MASK_SPEC
        self.tokenizer = ByteTokenizer()
        self.num_slots = num_slots
        self.num_steps = 0
        """Forward passes that have begun."""
        self.num_prefilled = 0
        """Prompt tokens that were decoded."""
        self.is_closed = False
        self._fill = fill
        self._step_seconds = step_seconds
        self._tokens_per_step = tokens_per_step
        self._context_length = context_length
        self._slots: dict[int, _Slot] = {}

    @property
    def footprint(self) -> Footprint:
        """See `Footprint`: a prompt token takes one byte."""
        used = sum(len(slot.ids) for slot in list(self._slots.values()))
        return Footprint(cache_bytes=used, cache_cells=used, cache_limit=self._context_length, cache_used=used)

    def prefill(self, slot: int, prompt_ids: TokenIds) -> int:
        """See `Denoiser.prefill`."""
        check_slot(slot, self.num_slots)
        prompt = checked_ids("prompt", prompt_ids, self.spec.vocab_size)
        check_prompt_length(len(prompt), self._context_length - self.spec.longest_block)
        num_decoded = len(prompt) - common_prefix_length(self._slot(slot).ids, prompt)
        self._slots[slot] = _Slot(token_ids(prompt), self._targets(prompt))
        self.num_prefilled += num_decoded
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
        del lanes  # no self-conditioning
        check_slot(slot, self.num_slots)
        check_temperature(temperature)
        checked = checked_canvases(
            canvases, self.spec.vocab_size, max_canvases=64, max_canvas_tokens=self._context_length
        )
        self._begin_pass()
        targets = self._slot(slot).targets or self._targets(token_ids([]))
        return [
            self._prediction(canvas, targets[min(number, len(targets) - 1)], temperature, rng)
            for number, canvas in enumerate(checked)
        ]

    def extend(self, slot: int, ids: TokenIds) -> Prediction:
        """See `Denoiser.extend`: the next byte of the script, or an end token after ids that are not in the script."""
        check_slot(slot, self.num_slots)
        new = checked_extension(ids, self.spec.vocab_size, self._context_length)
        before = self._slot(slot).ids
        check_prompt_length(len(before) + len(new), self._context_length)
        self._begin_pass()
        prompt = token_ids(np.concatenate([before, new]))
        targets = [self._targets(prompt[: len(before) + number])[0] for number in range(1, len(new) + 1)]
        self._slots[slot] = _Slot(prompt, self._targets(prompt))
        next_ids = token_ids([text[0] + NUM_SPECIALS if text else END_ID for text in targets])
        confidence = np.full(len(new), 0.99, np.float32)
        return Prediction(next_ids, next_ids, confidence, _entropy(confidence))

    def close(self) -> None:
        """Idempotent."""
        self.is_closed = True

    def _slot(self, number: int) -> _Slot:
        return self._slots.get(number, _Slot())

    def _begin_pass(self) -> None:
        self.num_steps += 1
        if self._step_seconds:
            time.sleep(self._step_seconds)

    def _targets(self, prompt: TokenIds) -> tuple[bytes, ...]:
        """The bytes after this prompt, for each text of the script."""
        prefix, suffix, middle = self._parts(prompt)
        if callable(self._fill):
            fills: tuple[str, ...] = (self._fill(prefix, suffix),)
        else:
            fills = (self._fill,) if isinstance(self._fill, str) else tuple(self._fill)
        texts = [fill.encode() for fill in fills]
        return tuple(text[len(middle) :] if text.startswith(middle) else b"" for text in texts)

    def _parts(self, prompt: TokenIds) -> tuple[str, str, bytes]:
        """Prefix, suffix, and the bytes after the middle sentinel; without sentinels all of it is prefix."""
        parts = {PREFIX_ID: b"", SUFFIX_ID: b"", MIDDLE_ID: b""}
        marks = [int(at) for at in np.flatnonzero(np.isin(prompt, tuple(parts)))]
        parts[PREFIX_ID] = self.tokenizer.decode(prompt[: marks[0] if marks else None])
        for start, stop in pairwise([*marks, len(prompt)]):
            parts[int(prompt[start])] += self.tokenizer.decode(prompt[start + 1 : stop])
        return parts[PREFIX_ID].decode(errors="replace"), parts[SUFFIX_ID].decode(errors="replace"), parts[MIDDLE_ID]

    def _prediction(self, canvas: TokenIds, target: bytes, temperature: float, rng: np.random.Generator) -> Prediction:
        length = len(canvas)
        argmax = np.full(length, END_ID, dtype=np.int32)
        script = np.frombuffer(target[:length], dtype=np.uint8)
        argmax[: len(script)] = script.astype(np.int32) + NUM_SPECIALS
        if isinstance(self.spec.sampling, MaskSampling):
            settled = canvas != self.spec.sampling.mask_id
            argmax[settled] = canvas[settled]
        else:
            settled = canvas == argmax
        shown = np.flatnonzero(~settled)[: self._tokens_per_step]
        # falls from left to right, so that no two positions are equally confident
        confidence = np.linspace(0.49, 0.3, length, dtype=np.float32)
        confidence[shown] = 0.99
        confidence[settled] = 1.0
        unsure = rng.random(length) >= confidence if temperature > 0 else np.zeros(length, dtype=np.bool_)
        noise = rng.integers(NUM_SPECIALS, VOCAB_SIZE, length) if temperature > 0 else argmax
        return Prediction(
            argmax_ids=argmax,
            sampled_ids=np.where(unsure, noise, argmax).astype(np.int32),
            confidence=confidence,
            entropy=_entropy(confidence),
        )


def _entropy(confidence: Floats) -> Floats:
    """Nats of a distribution with this probability on one token and the rest on all other bytes."""
    rest = 1.0 - confidence.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = -confidence * np.log(confidence) - np.where(rest > 0, rest * np.log(rest / 255), 0.0)
    return nats.astype(np.float32)
