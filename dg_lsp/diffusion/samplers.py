"""The state of a canvas, the two samplers, which make one step from a prediction, and the denoising loop.

`unmask` (mask noise): confidence-threshold unmasking after Fast-dLLM (arXiv 2505.22618). Every mask whose best token
is probable enough is replaced for good, and at least one per step. The leftmost order is ours: in confidence order a
weak model commits an end token first. Models with an expand and a delete token (DreamOn) also resize the canvas.

`renoise` (uniform noise): the entropy-bound sampler of DiffusionGemma. The surest tokens are kept for one step, all
others are replaced by random tokens.

`denoise_together` runs one forward pass per step. The caller prefills the slot, inspects each step, and cancels by not
asking for more: the loop handles no text, deadline or cache.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.layout import Canvas, Flags, Layout, TokenIds, among, noise, token_ids
from dg_lsp.canvas.spec import MaskSampling, ModelSpec, PromptFormat, Sampling, UniformSampling, UnmaskOrder
from dg_lsp.diffusion.denoiser import Denoiser, Floats, Prediction, TopK
from dg_lsp.errors import RequestError


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One canvas of current length L.

    A committed end token removes the positions after it; expand and delete tokens change the length too.
    """

    number: int  # steps done so far; 0 before the first
    canvas_ids: TokenIds  # shape (L,): input of the next forward pass
    draft_ids: TokenIds  # shape (L,): the best guess at every position
    frozen: Flags  # shape (L,): positions given from the start
    committed: Flags
    """Shape (L,): positions that may be shown, frozen ones included. With mask noise they do not change any more. With
    uniform noise they are settled, see `renoise`: a later step may still change one until the canvas stops."""
    confidence: Floats
    """Shape (L,): probability of the draft's token; with mask noise that when it was committed; 1 where frozen."""
    num_stable: npt.NDArray[np.int32]
    """Uniform noise, shape (L,): number of consecutive steps that did not change the draft's token."""
    is_over: bool = False
    """The canvas needs no further step: no mask is left, the draft is stable and sure, or no more steps are allowed."""

    @classmethod
    def before(cls, canvas: Canvas) -> "Step":
        """The state before the first step."""
        ids = canvas.canvas_ids
        frozen = canvas.frozen
        confidence = frozen.astype(np.float32)
        num_stable = np.zeros(len(ids), np.int32)
        return cls(0, ids, draft_ids=ids, frozen=frozen, committed=frozen, confidence=confidence, num_stable=num_stable)

    def take(self, positions: npt.NDArray[np.intp] | slice) -> "Step":
        """The canvas restricted to these positions, in this order; a repeated position is repeated."""
        return replace(
            self,
            canvas_ids=self.canvas_ids[positions],
            draft_ids=self.draft_ids[positions],
            frozen=self.frozen[positions],
            committed=self.committed[positions],
            confidence=self.confidence[positions],
            num_stable=self.num_stable[positions],
        )

    @property
    def num_settled(self) -> int:
        """Length of the leading run of committed positions: what may be shown already."""
        return int(np.append(self.committed, False).argmin())


class Resizing:
    """Expansion and deletion of masks in one step of one canvas, for models with these tokens."""

    def __init__(self, step: Step, sampling: MaskSampling, *, can_grow: bool) -> None:
        self._sampling = sampling
        self._expanding, self._deleting = (
            token_ids([] if token is None else [token]) for token in (sampling.expand_id, sampling.delete_id)
        )
        self._room = sampling.max_free - int((~step.frozen).sum()) if can_grow else 0

    def possible(self, prediction: Prediction) -> Prediction:
        """The prediction, with expansions replaced by the next best tokens if the canvas cannot grow."""
        ids = prediction.unexpanded_ids
        confidence = prediction.unexpanded_confidence
        if self._sampling.expand_id is None or self._room > 0 or ids is None or confidence is None:
            return prediction
        is_expansion = prediction.sampled_ids == self._sampling.expand_id
        return replace(
            prediction,
            argmax_ids=ids,
            sampled_ids=np.where(is_expansion, ids, prediction.sampled_ids),
            confidence=confidence,
            sampled_confidence=np.where(is_expansion, confidence, prediction.sampled_confidence),
        )

    def deleting(self, draft_ids: TokenIds) -> Flags:
        """Positions where the draft holds the delete token."""
        return among(draft_ids, self._deleting)

    def resized(self, step: Step, taken: Flags) -> Step:
        """The canvas after the taken tokens are applied: two masks for an expansion, none for a deletion."""
        deleted = _with_masks_after(taken & self.deleting(step.canvas_ids), ~step.committed)
        wanted = taken & among(step.canvas_ids, self._expanding)
        expanded = wanted & (np.cumsum(wanted) <= self._room + int(deleted.sum()))
        if not (wanted | deleted).any():
            return step
        # an expansion without room becomes a mask again
        canvas_ids, draft_ids = (
            np.where(wanted, np.int32(self._sampling.mask_id), ids) for ids in (step.canvas_ids, step.draft_ids)
        )
        opened = replace(step, canvas_ids=canvas_ids, draft_ids=draft_ids, committed=step.committed & ~wanted)
        return opened.take(np.repeat(np.arange(len(taken)), np.where(deleted, 0, 1 + expanded)))


def _with_masks_after(deleted: Flags, is_open: Flags) -> Flags:
    """The flags, extended by the run of open positions after each."""
    spread = deleted.copy()
    for i in range(1, len(spread)):
        spread[i] |= spread[i - 1] and is_open[i]
    return spread


def unmask(
    step: Step,
    prediction: Prediction,
    sampling: MaskSampling,
    end_ids: TokenIds,
    *,
    explore: bool,
    closes_gaps: bool = False,
) -> Step:
    """The canvas after one forward pass; with `explore`, a forced mask takes a sampled token, not the best one.

    With `closes_gaps`, a committed end token is removed with the rest of its gap, whatever is frozen after it.
    """
    is_last = step.number + 1 >= sampling.max_denoising_steps
    resizing = None
    if sampling.expand_id is not None or sampling.delete_id is not None:
        resizing = Resizing(step, sampling, can_grow=not is_last)
        prediction = resizing.possible(prediction)
    done = step.committed
    is_open = _in_window(~done, sampling.window_length)
    forced = _forced_positions(is_open, step.frozen, prediction, sampling.order)
    draft = np.where(done, step.canvas_ids, prediction.argmax_ids)
    confidence = np.where(done, step.confidence, prediction.confidence)
    if explore:
        draft[forced] = prediction.sampled_ids[forced]
        confidence[forced] = prediction.sampled_confidence[forced]
    taken = ~done if is_last else is_open & (prediction.confidence > sampling.confidence_threshold)
    taken |= forced & ~done
    ends = among(draft, end_ids)
    if sampling.order is UnmaskOrder.LEFTMOST:
        waiting = ends | resizing.deleting(draft) if resizing else ends
        if waiting.any():
            is_open = ~(done | (taken & ~ends))
            taken &= ~waiting | (_counted_in_gaps(is_open, step.frozen) == is_open)  # no open position comes before
    committed = done | taken
    canvas_ids = np.where(taken, draft, step.canvas_ids)
    after = Step(step.number + 1, canvas_ids, draft, step.frozen, committed, confidence, step.num_stable)
    if resizing:
        after = resizing.resized(after, taken)
        ends = among(after.canvas_ids, end_ids)
    if not sampling.block_length:
        ended = ends & after.committed & ~after.frozen
        after = _without_ends(after, ended) if closes_gaps else _cut_after(after, ended)
    return replace(after, is_over=is_last or bool(after.committed.all()))


def _in_window(is_open: Flags, length: int) -> Flags:
    """The open positions of the leftmost window with any; windows are counted from the end."""
    if not length or not is_open.any():
        return is_open
    numbers = np.arange(len(is_open) - 1, -1, -1) // length
    leftmost_block: Flags = is_open & (numbers == numbers[is_open.argmax()])
    return leftmost_block


def _forced_positions(is_open: Flags, frozen: Flags, prediction: Prediction, order: UnmaskOrder) -> Flags:
    """The masks that are replaced at any confidence, so that every step makes progress: one, or one of each gap."""
    if order is UnmaskOrder.LEFTMOST:
        first: Flags = is_open & (_counted_in_gaps(is_open, frozen) == 1)
        return first
    forced = np.zeros_like(is_open)
    forced[np.argmax(np.where(is_open, prediction.confidence, -1.0))] = True
    return forced


def _counted_in_gaps(flags: Flags, frozen: Flags) -> npt.NDArray[np.intp]:
    """How many flags are set up to each position since the last frozen one, the position's own included."""
    counts = np.cumsum(flags)
    return counts - np.maximum.accumulate(np.where(frozen, counts, 0))


def _without_ends(step: Step, ended: Flags) -> Step:
    """Removes these end tokens and the free positions after each, up to the next frozen one."""
    removed = ~step.frozen & (_counted_in_gaps(ended, step.frozen) > 0)
    return step.take(np.flatnonzero(~removed)) if removed.any() else step


def _cut_after(step: Step, ends: Flags) -> Step:
    """Removes the positions after a committed end token, which makes later passes cheaper; frozen ones stay."""
    if not ends.any():
        return step
    length = int(np.argmax(ends)) + 1
    return step if step.frozen[length:].any() else step.take(np.arange(length))


SETTLED_ENTROPY = np.float32(0.02)
"""Nats below which a position with a stable token is settled. From 0.05 on, first lines change later (docs/log.md)."""


def renoise(step: Step, prediction: Prediction, sampling: UniformSampling, noise_ids: TokenIds) -> Step:
    """The canvas after one forward pass: sampled tokens where accepted, elsewhere the noise, shape (L,).

    A position is settled when its token has been stable for `stability_threshold` steps and its entropy is below
    `SETTLED_ENTROPY`. Settled positions are renoised like all others, so the steps do not depend on this.
    """
    frozen = step.frozen
    draft = np.where(frozen, step.canvas_ids, prediction.argmax_ids)
    entropy = np.where(frozen, np.float32(0), prediction.entropy)
    accepted = frozen | accept(entropy, sampling.entropy_bound)
    kept = np.where(frozen, step.canvas_ids, prediction.sampled_ids)
    is_same = (draft == step.draft_ids) & (step.number > 0)
    num_stable = np.where(is_same, step.num_stable + 1, 0).astype(np.int32)
    is_stable = num_stable >= sampling.stability_threshold
    is_last = step.number + 1 >= sampling.max_denoising_steps
    mean_entropy = float(entropy.sum()) / max(1, int((~frozen).sum()))
    is_over = is_last or bool(mean_entropy < sampling.confidence_threshold and is_stable.all())
    settled = frozen | (is_stable & (entropy < SETTLED_ENTROPY))
    return replace(
        step,
        number=step.number + 1,
        canvas_ids=draft if is_over else np.where(accepted, kept, noise_ids),
        draft_ids=draft,
        committed=np.ones_like(frozen) if is_over else settled,
        confidence=np.where(frozen, np.float32(1), prediction.confidence),
        num_stable=num_stable,
        is_over=is_over,
    )


def accept(entropy: Floats, bound: float) -> Flags:
    """Positions to keep: in ascending entropy, while the entropies of the positions before sum to at most `bound` nats.

    At least one is kept: the sum excludes the position's own entropy.
    """
    order = np.argsort(entropy, kind="stable")
    ascending = entropy[order]
    accepted = np.empty(len(entropy), np.bool_)
    accepted[order] = np.cumsum(ascending) - ascending <= bound
    return accepted


def temperature(sampling: Sampling, number: int, *, explore: bool = False) -> float:
    """Temperature of step `number` (from 1).

    Uniform noise: linear from `t_max` at the first step to almost `t_min` at the last, as in transformers 5.23.
    Mask noise: 0 (greedy), or 1 to explore; a prediction's confidence is the same at both.
    """
    if isinstance(sampling, MaskSampling):
        return 1.0 if explore else 0.0
    num_left = sampling.max_denoising_steps - number + 1
    return sampling.t_min + (sampling.t_max - sampling.t_min) * num_left / sampling.max_denoising_steps


def top_k(sampling: Sampling, number: int, vocab_size: int) -> TopK | None:
    """The tokens from which step `number` (from 1) draws, as in llama.cpp's pull request 24427; None: from all.

    One token alone has no entropy, so that all positions would be accepted: with a size of 1 the tail always counts.
    """
    if isinstance(sampling, MaskSampling):
        return None
    size = sampling.top_k
    if sampling.top_k_start and sampling.top_k_end:
        share_left = (sampling.max_denoising_steps - number) / max(1, sampling.max_denoising_steps - 1)
        size = int(sampling.top_k_end + (sampling.top_k_start - sampling.top_k_end) * share_left + 0.5)
    return TopK(size, sampling.top_k_tail_correction or size == 1) if 0 < size < vocab_size else None


def renoised(layout: Layout, ids: TokenIds, spec: ModelSpec, strength: float, rng: np.random.Generator) -> Canvas:
    """A selection of shape (N,) with a fraction `strength` of its tokens (at least one) replaced by noise.

    The tail is the code that follows, or the token that ends a middle.

    Raises:
        RequestError: the selection is longer than a canvas.
    """
    room = spec.longest_block - len(layout.head_ids)
    if len(ids) >= room:
        raise RequestError(
            f"the selection has {len(ids)} tokens, {spec.name} can keep a part of at most {room - 1}: select less, or"
            " use strength 1"
        )
    where = rng.choice(len(ids), max(1, round(strength * len(ids))), replace=False)
    noisy_ids = np.array(ids)
    noisy_ids[where] = noise(spec, len(where), rng)
    tail_ids = layout.tail_ids[: room - len(ids)]
    if spec.prompt_format is PromptFormat.FIM:
        tail_ids = token_ids(spec.end_ids[:1])
    return Canvas.around(noisy_ids, layout.head_ids, tail_ids)


def resume_sampling(sampling: Sampling, strength: float) -> Sampling:
    """The rest of the schedule for a canvas of which only a fraction `strength` is noise (uniform noise only)."""
    if not isinstance(sampling, UniformSampling):
        return sampling
    num_steps = max(1, round(strength * sampling.max_denoising_steps))
    hottest = sampling.t_min + strength * (sampling.t_max - sampling.t_min)
    widest = round(sampling.top_k_end + strength * (sampling.top_k_start - sampling.top_k_end))
    return replace(sampling, max_denoising_steps=num_steps, t_max=hottest, top_k_start=widest)


def denoise(
    denoiser: Denoiser, slot: int, canvas: Canvas, sampling: Sampling, rng: np.random.Generator
) -> Iterator[Step]:
    """Steps of one canvas; the last one is over. Raises as `Denoiser.predict` does."""
    for (step,) in denoise_together(denoiser, slot, [canvas], sampling, rng):
        yield step


def denoise_together(
    denoiser: Denoiser,
    slot: int,
    canvases: Sequence[Canvas],
    sampling: Sampling,
    rng: np.random.Generator,
    *,
    explores: bool = True,
    closes_gaps: bool = False,
) -> Iterator[tuple[Step, ...]]:
    """States of several canvases after the same prompt, one tuple per forward pass, until all canvases have stopped.

    All running canvases share each pass. Later canvases differ from the first by their samples: with mask noise only
    their first forced token is sampled (if `explores`), with uniform noise every token is. See `unmask` for
    `closes_gaps`.
    """
    spec = denoiser.spec
    end_ids = token_ids(spec.end_ids)
    steps = [Step.before(canvas) for canvas in canvases]
    while running := [i for i, step in enumerate(steps) if not step.is_over]:
        if len(running) == 1 and isinstance(sampling, UniformSampling) and sampling.stop_interval > 1:
            (lane,) = running
            chain = denoiser.predict_chain(slot, steps[lane], sampling, rng, lane)
            for prediction, noise_ids in chain:
                if not steps[lane].is_over:  # later steps are dropped
                    steps[lane] = renoise(steps[lane], prediction, sampling, noise_ids)
                    yield tuple(steps)
            if chain:
                continue
        number = steps[running[0]].number + 1
        explore = explores and number == 1 and len(canvases) > 1
        heat = temperature(sampling, number, explore=explore)
        best = top_k(sampling, number, spec.vocab_size)
        predictions = denoiser.predict(slot, [steps[i].canvas_ids for i in running], heat, rng, running, best)
        for i, prediction in zip(running, predictions, strict=True):
            if isinstance(sampling, MaskSampling):
                explored = explore and i > 0
                steps[i] = unmask(steps[i], prediction, sampling, end_ids, explore=explored, closes_gaps=closes_gaps)
            else:
                steps[i] = renoise(steps[i], prediction, sampling, noise(spec, len(steps[i].canvas_ids), rng))
        yield tuple(steps)
