"""A model without weights that predicts the bytes of a script.

As in a real backend, slots keep common prefixes, arguments are checked and steps take time.
"""

import time
from dataclasses import replace

import numpy as np

from dg_lsp.canvas.layout import (
    checked_canvases,
    checked_extension,
    checked_prompt,
    common_prefix_length,
    concat,
    token_ids,
)
from dg_lsp.canvas.spec import FimTokens, MaskSampling, ModelSpec, UniformSampling
from dg_lsp.diffusion.denoiser import WHOLE_PROMPT, Denoiser, Footprint, Prediction
from dg_lsp.engine.engine import LocalEngine
from dg_lsp.settings import CompletionSettings

MASK_ID, END_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID = range(5)
NUM_SPECIALS = 5
VOCAB_SIZE = NUM_SPECIALS + 256
NO_IDS = token_ids([])
_SPECIALS = {"<mask>": MASK_ID, "<end>": END_ID, "<prefix>": PREFIX_ID, "<suffix>": SUFFIX_ID, "<middle>": MIDDLE_ID}

MASK_SPEC = ModelSpec(
    name="scripted",
    vocab_size=VOCAB_SIZE,
    sampling=MaskSampling(mask_id=MASK_ID),
    end_ids=(END_ID,),
    fim=FimTokens(prefix_id=PREFIX_ID, suffix_id=SUFFIX_ID, middle_id=MIDDLE_ID),
    banned_ids=(MASK_ID, PREFIX_ID, SUFFIX_ID, MIDDLE_ID),
    canvas_lengths=(8, 16, 32, 64),
)
UNIFORM_SPEC = replace(MASK_SPEC, name="scripted-uniform", sampling=UniformSampling())


class ByteTokenizer:
    """Token id = byte value + `NUM_SPECIALS`."""

    def encode(self, text):
        """A lone surrogate becomes `?`."""
        return token_ids(np.frombuffer(text.encode("utf-8", "replace"), dtype=np.uint8).astype(np.int32) + NUM_SPECIALS)

    def decode(self, ids):
        """Specials decode to nothing."""
        array = np.asarray(ids, dtype=np.int32)
        return (array[array >= NUM_SPECIALS] - NUM_SPECIALS).astype(np.uint8).tobytes()

    def pieces(self):
        return [self.decode([token]) for token in range(VOCAB_SIZE)]

    def special(self, spelling):
        return _SPECIALS.get(spelling)


class ScriptedDenoiser(Denoiser):
    """Predicts the bytes of `fill` and then end tokens.

    `fill` is a text, a function of the prompt's prefix and suffix, or one text for each canvas of a step. The argmax is
    always the byte of the script. In each step the leftmost `tokens_per_step` open positions have confidence 0.99, the
    others less than 0.5. Where the prompt goes on after its middle sentinel with the start of the fill, the prediction
    is the rest of the fill.
    """

    def __init__(self, fill, *, spec=None, step_seconds=0.0, tokens_per_step=4, num_slots=4, context_length=4096):
        self.spec = spec or MASK_SPEC
        self.tokenizer = ByteTokenizer()
        self.num_steps = 0  # forward passes that have begun
        self.num_prefilled = 0  # prompt tokens that were decoded
        self.num_slots = num_slots
        self.is_closed = False
        self._fill = fill
        self._step_seconds = step_seconds
        self._tokens_per_step = tokens_per_step
        self._context_length = context_length
        self._slots = {}  # a prompt, and the rest of each text after it

    @property
    def footprint(self):
        """A prompt token takes one byte."""
        used = sum(len(ids) for ids, _ in list(self._slots.values()))
        limit = self._context_length
        return Footprint(cache_bytes=used, cache_cells=used, cache_limit=limit, cache_used=used, context_size=limit)

    def prefill(self, slot, prompt_ids, most=WHOLE_PROMPT):
        limit = self._context_length - self.spec.longest_block
        prompt = checked_prompt(prompt_ids, self.spec.vocab_size, limit)
        num_kept = common_prefix_length(self._slots.get(slot, (NO_IDS, ()))[0], prompt)
        prompt = prompt[: num_kept + most]
        num_decoded = len(prompt) - num_kept
        self._slots[slot] = prompt, self._targets(prompt)
        self.num_prefilled += num_decoded
        return num_decoded

    def predict(self, slot, canvases, temperature, rng, lanes=(), top_k=None):
        del lanes  # no self-conditioning
        limits = {"max_canvases": 64, "max_canvas_tokens": self._context_length}
        checked = checked_canvases(canvases, self.spec.vocab_size, **limits)
        self._begin_pass()
        targets = self._slots[slot][1] if slot in self._slots else self._targets(NO_IDS)
        texts = [*targets, *[targets[-1]] * len(checked)]
        if top_k is not None and top_k.size == 1:
            temperature = 0.0  # all tokens but the best one are equally probable
        return [self._prediction(canvas, text, temperature, rng) for canvas, text in zip(checked, texts, strict=False)]

    def extend(self, slot, ids, allowed=None):
        """The next byte of the script, or an end token after ids that are not in the script.

        Where that one is not allowed, the allowed ones are equally probable.
        """
        before = self._slots.get(slot, (NO_IDS, ()))[0]
        new = checked_extension(ids, self.spec.vocab_size, self._context_length - len(before))
        self._begin_pass()
        prompt = concat(before, new)
        targets = [self._targets(prompt[: len(before) + number])[0] for number in range(1, len(new) + 1)]
        self._slots[slot] = prompt, self._targets(prompt)
        next_ids = np.array([text[0] + NUM_SPECIALS if text else END_ID for text in targets], np.int32)
        confidence = np.full(len(new), 0.99, np.float32)
        for at, tokens in (allowed or {}).items():
            if next_ids[at] not in tokens:
                next_ids[at] = tokens[0]
                confidence[at] = 1 / len(tokens)
        return Prediction(next_ids, next_ids, confidence, _entropy(confidence), confidence)

    def close(self):
        self.is_closed = True

    def _begin_pass(self):
        self.num_steps += 1
        if self._step_seconds:
            time.sleep(self._step_seconds)

    def _targets(self, prompt):
        """The bytes after this prompt, for each text of the script."""
        prefix, suffix, middle = self._parts(prompt)
        fill = self._fill(prefix, suffix) if callable(self._fill) else self._fill
        texts = [text.encode() for text in ([fill] if isinstance(fill, str) else fill)]
        return tuple(text[len(middle) :] if text.startswith(middle) else b"" for text in texts)

    def _parts(self, prompt):
        """Prefix, suffix, and the bytes after the middle sentinel; without sentinels all of it is prefix."""
        parts = {PREFIX_ID: b"", SUFFIX_ID: b"", MIDDLE_ID: b""}
        section = PREFIX_ID
        for part in np.split(prompt, np.flatnonzero(np.isin(prompt, tuple(parts)))):
            section = int(part[0]) if len(part) and int(part[0]) in parts else section
            parts[section] += self.tokenizer.decode(part)  # the sentinel decodes to nothing
        return parts[PREFIX_ID].decode(errors="replace"), parts[SUFFIX_ID].decode(errors="replace"), parts[MIDDLE_ID]

    def _prediction(self, canvas, target, temperature, rng):
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
        sampled = np.where(unsure, noise, argmax).astype(np.int32)
        # the rest of the probability is spread evenly over the other bytes
        sampled_confidence = np.where(sampled == argmax, confidence, (1 - confidence) / 255).astype(np.float32)
        return Prediction(argmax, sampled, confidence, _entropy(confidence), sampled_confidence)


def engine_for(denoiser, **settings):
    """An engine over a model without weights, with these `CompletionSettings`."""
    return LocalEngine(denoiser, denoiser.tokenizer, CompletionSettings(**settings))


def _entropy(confidence):
    """Nats of a distribution with this probability on one token and the rest on all other bytes."""
    rest = 1.0 - confidence.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = -confidence * np.log(confidence) - np.where(rest > 0, rest * np.log(rest / 255), 0.0)
    return nats.astype(np.float32)
