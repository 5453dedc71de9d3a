"""Fills the gaps of a range, together on one canvas or one after the other.

Every fill is judged like a completion at its gap, and the buffer must not break by it. A gap without a good fill
stays as it was. On one canvas the text between the gaps is frozen, so that all gaps settle together. What ends a gap
depends on how the model was trained:

- `fim`: the prompt has the text before the first gap and after the last one, as for a fill, and the canvas is a middle
  with known parts, closed by a frozen end token.
- `infill`: the text before the first gap and after the last one is frozen in the canvas, as for one gap.
- `instruct`: the question shows the lines with marked gaps, and the answer is these lines, frozen but for the gaps.

In each, an end token in a gap ends that gap only. With mask noise it is removed together with the masks
after it, so the frozen text follows the fill as it will in the buffer. With uniform noise a canvas keeps its length,
and the rest is left out.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from dg_lsp.canvas.layout import NOTHING, PASS_TOKENS, Canvas, Flags, Layout, TokenIds, Tokenizer, noise, token_ids
from dg_lsp.canvas.prompt_format import (
    CODE_CLOSING,
    GAP_MARK,
    in_infill_format,
    layout_of,
    prompt_of,
    rewrite_layout,
    template_words,
)
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptFormat
from dg_lsp.context.document import Cursor, Snapshot, TextStyle
from dg_lsp.context.gaps import STAND_IN, Gap
from dg_lsp.context.languages import language_of
from dg_lsp.context.window import Prompt
from dg_lsp.diffusion.samplers import Step, denoise_together
from dg_lsp.engine.decode_task import DecodeTask, EngineModel
from dg_lsp.engine.decoders.base import EMPTY, Draft, Limits, Progress
from dg_lsp.engine.decoders.diffusion import join_scores
from dg_lsp.engine.request import FillRequest, Replacement, RewriteRequest, RewriteResult, Verdict
from dg_lsp.engine.rewrite import RangeTask
from dg_lsp.postprocess.text_edits import Change, all_applied, is_among_statements, is_remark
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, breakage
from dg_lsp.settings import CompletionSettings

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine

DRAFTS = 3  # of a gap, token by token: the first one that fits is taken
MIN_GAP = 8  # tokens that each gap of a canvas has room for
INSTRUCTION = f"replace each {GAP_MARK} by the code that is missing there, and change nothing else."


@dataclass(frozen=True, slots=True, eq=False)
class GapsLayout:
    """Prompt, then a head, gaps with frozen text between them, and a tail."""

    layout: Layout
    between: tuple[TokenIds, ...]  # one less than gaps, none empty

    @property
    def num_gaps(self) -> int:
        """Number of gaps, at least 1."""
        return len(self.between) + 1

    @property
    def _num_frozen(self) -> int:
        return self.layout.num_frozen + sum(map(len, self.between))

    def fits(self, spec: ModelSpec) -> bool:
        """Whether the model's longest canvas has room for the frozen text and a usual length of each gap."""
        return self._num_frozen + self.num_gaps * MIN_GAP <= spec.longest_block

    def canvases(self, spec: ModelSpec, rng: np.random.Generator) -> list[Canvas]:
        """The canvases of one pass, each with another length of the gaps; the tail takes the room that is left."""
        sizes = spec.gaps_within((spec.longest_block - self._num_frozen) // self.num_gaps)
        lengths = [self._num_frozen + self.num_gaps * size for size in sizes]
        while len(lengths) > 1 and sum(lengths) > PASS_TOKENS:
            lengths.pop()
        # one canvas alone may be as long as the model's longest
        spare = (PASS_TOKENS - sum(lengths)) // len(lengths) if len(lengths) > 1 else spec.longest_block
        return [
            self._canvas(size, min(spec.longest_block, length + spare), spec, rng)
            for size, length in zip(sizes[: len(lengths)], lengths, strict=True)
        ]

    def _canvas(self, size: int, length: int, spec: ModelSpec, rng: np.random.Generator) -> Canvas:
        num_known = len(self.layout.head_ids) + sum(map(len, self.between))
        tail = self.layout.tail_ids[: max(0, length - num_known - self.num_gaps * size)]
        parts, flags = [self.layout.head_ids], [np.ones(len(self.layout.head_ids), np.bool_)]
        for known in (*self.between, tail):
            parts += [noise(spec, size, rng), known]
            flags.append(np.repeat([False, True], [size, len(known)]))
        return Canvas(token_ids(np.concatenate(parts)), np.concatenate(flags))

    def gaps(self, frozen: Flags) -> list[slice]:
        """The positions of the gaps in a canvas that may have been resized, by the frozen tokens before them."""
        num_before = np.cumsum([len(self.layout.head_ids), *map(len, self.between)])
        num_frozen = np.cumsum(frozen)
        starts = np.searchsorted(num_frozen, num_before, side="left") + (num_before > 0)
        ends = np.searchsorted(num_frozen, num_before, side="right")
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def gaps_layout(prompt: Prompt, between: tuple[str, ...], tokenizer: Tokenizer, spec: ModelSpec) -> GapsLayout:
    """The layout of gaps with these texts between them; `prompt` has what is before the first and after the last.

    Raises:
        ModelUnsupportedError: see `layout_of`.
    """
    encoded = tuple(map(tokenizer.encode, between))
    if spec.prompt_format is PromptFormat.INSTRUCT:
        return GapsLayout(_answer_layout(prompt, between, tokenizer, spec), encoded)
    # no causal pass precedes the canvas, so its prompt goes as far as the first gap
    layout = layout_of(prompt, tokenizer, replace(spec, has_causal_head=False), spec.max_prompt_tokens)
    if spec.prompt_format is PromptFormat.FIM:
        layout = replace(layout, tail_ids=token_ids(spec.end_ids[:1]))
    return GapsLayout(layout, encoded)


def _answer_layout(prompt: Prompt, between: tuple[str, ...], tokenizer: Tokenizer, spec: ModelSpec) -> Layout:
    """The question shows the lines of the gaps; the answer is frozen around the first and the last gap."""
    cut = prompt.prefix.rfind("\n") + 1
    opening, (rest, end, below) = prompt.prefix[cut:], prompt.suffix.partition("\n")
    selection = opening + GAP_MARK + "".join(text + GAP_MARK for text in between) + rest + end
    asked = replace(prompt, prefix=prompt.prefix[:cut], suffix=below, selection=selection, instruction=INSTRUCTION)
    layout = rewrite_layout(asked, tokenizer, spec, spec.max_prompt_tokens)
    head = tokenizer.encode(opening.lstrip(" "))  # the answer begins with the indentation
    tail = tokenizer.encode(rest + CODE_CLOSING.format(**template_words(asked)))
    return replace(
        layout,
        head_ids=token_ids(np.concatenate([layout.head_ids, head])),
        tail_ids=token_ids(np.concatenate([tail, spec.end_ids[:1]])),
    )


def _fills_together(spec: ModelSpec, decoder: DecoderName) -> bool:
    """Whether the gaps share a canvas: where the model takes frozen text on both sides of a gap, or on request.

    A model with fill-in-the-middle tokens has seen one gap only, and fills several better one after the other.
    """
    takes_gaps = spec.prompt_format in (PromptFormat.INFILL, PromptFormat.INSTRUCT)
    is_wanted = decoder is DecoderName.INFILL or (decoder is DecoderName.AUTO and takes_gaps)
    return is_wanted and spec.has_free_canvas


class GapsText:
    """A buffer in pieces: the text between the gaps, and what stands in each of them."""

    def __init__(self, snapshot: Snapshot, gaps: Sequence[Gap]) -> None:
        text = snapshot.text
        self._snapshot = snapshot
        self._gaps = gaps
        self._old = [text[gap.start : gap.end] for gap in gaps]
        self._leads = [gap.lead(text) for gap in gaps]
        self._parts: list[str] = []  # known text and gaps in turns, known text first and last
        end = 0
        for gap, old in zip(gaps, self._old, strict=True):
            self._parts += [text[end : gap.start], old if old.strip() else STAND_IN]
            end = gap.end
        self._parts.append(text[end:])
        self.verdicts: list[Verdict] = [Rejection(Reason.UNFINISHED) for _ in gaps]

    def opened(self, first: int, last: int) -> tuple[Snapshot, int]:
        """The buffer without the gaps from `first` to `last` and what is between them, and where they were."""
        before = self._before(first) + self._leads[first]
        return replace(self._snapshot, text=before + self._after(last)), len(before)

    def between(self, first: int, last: int) -> tuple[str, ...]:
        """The texts between these gaps as the model sees them."""
        style = TextStyle.of(self._snapshot.text, self._gaps[first].start)
        return tuple(style.to_model(self._parts[2 * i] + self._leads[i]) for i in range(first + 1, last + 1))

    def take(self, number: int, verdict: Verdict, settings: CompletionSettings) -> bool:
        """Puts a candidate into its gap, unless it is not worth that; True if it is there now."""
        if isinstance(verdict, Candidate):
            before = self._before(number)
            old = self._parts[2 * number + 1]
            whole = replace(self._snapshot, text=before + old + self._after(number))
            reason = verdict.fault
            if verdict.text.strip() in (self._old[number].strip(), STAND_IN):
                reason = Reason.UNCHANGED
            elif not before.rpartition("\n")[2].strip() and is_remark(verdict.text, language_of(whole.language)):
                reason = Reason.HOLLOW
            elif reason is None and verdict.confidence < settings.min_confidence:
                reason = Reason.LOW_CONFIDENCE
            elif reason is None:
                reason = breakage(whole, len(before), len(before) + len(old), verdict.text)
            if reason is None:
                self._parts[2 * number + 1] = verdict.text
            else:
                verdict = Rejection(reason, verdict.text)
        self.verdicts[number] = verdict
        return isinstance(verdict, Candidate)

    def _before(self, number: int) -> str:
        return "".join(self._parts[: 2 * number + 1])

    def _after(self, number: int) -> str:
        return "".join(self._parts[2 * number + 2 :])


class GapsFill(RangeTask):
    """See `Engine.rewrite`; of a request with gaps."""

    def __init__(
        self, engine: "Engine", request: RewriteRequest, deadline: float, model: EngineModel | None = None
    ) -> None:
        """`deadline` is in `time.monotonic` seconds; without a model nothing is joined."""
        super().__init__(engine, request, deadline)
        # another draft on a canvas takes as long as the first one, and a server may charge for it
        self._num_drafts = DRAFTS if model is not None and model.spec.sampling is None else 1
        wanted = request.decoder or DecoderName(engine.settings.decoder)
        self._model = model if model is not None and _fills_together(model.spec, wanted) else None
        if self._model is not None and self._model.spec.prompt_format is PromptFormat.PREFIX:
            self._model = replace(self._model, spec=in_infill_format(self._model.spec))
        self._text = GapsText(request.snapshot, request.gaps)
        self._alternatives: list[tuple[int, Candidate]] = []  # by the number of their gap

    def run(self) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then the result."""
        first = 0
        block = 0
        while first < len(self._request.gaps):
            layout, last = self._group(first)
            steps = self._fill_one(first) if layout is None else self._fill_together(layout, first)
            for progress in steps:
                yield replace(progress, block=block)
            first = last + 1
            block += 1
        verdicts = self._text.verdicts
        ordered = sorted(self._alternatives, key=lambda alternative: -alternative[1].confidence)
        alternatives = [
            self._result([*verdicts[:number], candidate, *verdicts[number + 1 :]])
            for number, candidate in ordered[: self._request.num_candidates - 1]
        ]
        return replace(self._result(verdicts), alternatives=tuple(alternatives))

    def _group(self, first: int) -> tuple[GapsLayout | None, int]:
        """The layout of as many gaps as share a canvas, and the last of them; None for a single one."""
        layout = None
        model = self._model
        if model is None:
            return None, first
        with self._costs.stage("prompt"):
            for last in range(first + 1, len(self._request.gaps)):
                prompt = prompt_of(*self._text.opened(first, last), model.spec.max_prompt_tokens)
                prompt = replace(prompt, snippets=self._request.snippets)
                longer = gaps_layout(prompt, self._text.between(first, last), model.tokenizer, model.spec)
                if not longer.fits(model.spec):
                    return layout, last - 1
                layout = longer
        return layout, len(self._request.gaps) - 1

    def _fill_one(self, number: int) -> Generator[Progress, None, None]:
        snapshot, offset = self._text.opened(number, number)
        decoder = None if self._model is not None else self._request.decoder
        seed = self._request.seed
        gap = self._request.gaps[number]
        is_line = not gap.hint and is_among_statements(Cursor.at(snapshot.text, offset), language_of(snapshot.language))
        max_lines = 1 if is_line else None
        result = yield from self._complete(
            snapshot, offset, seed=seed, max_lines=max_lines, decoder=decoder, gap_drafts=self._num_drafts
        )
        rejections = result.rejections or (Rejection(Reason.EMPTY),)
        self._take_best(number, result.candidates or rejections)

    def _take_best(self, number: int, verdicts: Sequence[Verdict]) -> None:
        for at, verdict in enumerate(verdicts):
            if self._text.take(number, verdict, self._settings):
                further = (verdict for verdict in verdicts[at + 1 :] if isinstance(verdict, Candidate))
                self._alternatives += [(number, candidate) for candidate in further]
                return

    def _fill_together(self, layout: GapsLayout, first: int) -> Generator[Progress, None, None]:
        """Canvases with all gaps of the group, each with another length of the gaps; each gap takes the best fill."""
        model = self._model
        assert model is not None
        limits = Limits(model.spec.longest_block, model.spec.longest_block, None, deadline=self._deadline)
        task = DecodeTask(model, DecoderName.INFILL, layout.layout, limits, self._costs, seed=self._request.seed)
        return task.running(self._settle(task, layout, first))

    def _settle(self, task: DecodeTask, layout: GapsLayout, first: int) -> Generator[Progress, None, None]:
        costs = task.costs
        limits = task.limits
        canvases = layout.canvases(task.spec, task.rng)
        yield from task.prefill(layout.layout.prompt_ids)
        steps: tuple[Step, ...] = tuple(map(Step.before, canvases))
        states = denoise_together(
            task.denoiser, task.slot, canvases, task.sampling, task.rng, explores=False, closes_gaps=True
        )
        while not limits.is_over() and (state := next(states, None)) is not None:
            steps = state
            costs.num_passes += 1
            yield _shown(layout, steps, costs.num_passes)
        scores = [[0.0] * layout.num_gaps for _ in steps]
        if not limits.is_over():
            scores = join_scores(task, steps, lambda step: layout.gaps(step.frozen))
            yield _shown(layout, steps, costs.num_passes)
        with costs.stage("postprocess"):
            for number in range(layout.num_gaps):
                drafts = [
                    replace(_draft(step, layout.gaps(step.frozen)[number], task.spec.end_ids), join=joins[number])
                    for step, joins in zip(steps, scores, strict=True)
                ]
                drafts.sort(key=lambda draft: -draft.score)
                self._take_best(first + number, [self._judge(task, draft, first + number) for draft in drafts])

    def _judge(self, task: DecodeTask, draft: Draft, number: int) -> Verdict:
        if not draft.is_ended:
            return Rejection(Reason.UNFINISHED)
        fill = FillRequest(*self._text.opened(number, number), is_gap=True)
        verdict = fill.judge(task.stop.decode(draft.ids), draft.score)
        return replace(verdict, confidence=task.confidence(draft)) if isinstance(verdict, Candidate) else verdict

    def _result(self, verdicts: Sequence[Verdict]) -> RewriteResult:
        text = self._request.snapshot.text
        pairs = zip(self._request.gaps, verdicts, strict=True)
        gaps = tuple(Replacement(gap.start, gap.end, verdict) for gap, verdict in pairs)
        filled = [gap for gap in gaps if gap.reason is None]
        whole = verdicts[0]
        if filled:
            score = fmean(gap.verdict.score for gap in filled)
            confidence = min(gap.verdict.confidence for gap in filled)
            edited = all_applied((Change(gap.start, gap.end, gap.text) for gap in filled), text)
            end = gaps[-1].end + len(edited) - len(text)
            whole = Candidate(edited[gaps[0].start : end], score, confidence)
        return RewriteResult(
            gaps[0].start,
            gaps[-1].end,
            whole,
            model=self._engine.spec.name,
            steps=self._costs.num_passes,
            timings=self._costs.timings(),
            gaps=gaps,
        )


def _shown(layout: GapsLayout, steps: Sequence[Step], number: int) -> Progress:
    """The most probable canvas from the first gap to the last one."""
    step = max(steps, key=lambda step: Draft(NOTHING, step.confidence[~step.frozen]).score)
    gaps = layout.gaps(step.frozen)
    part = step.take(slice(gaps[0].start, gaps[-1].stop))
    return Progress(0, number, EMPTY, part.draft_ids, part.confidence, part.committed, part.frozen)


def _draft(step: Step, gap: slice, end_ids: tuple[int, ...]) -> Draft:
    """The fill of a gap; it has ended if all of it is settled."""
    draft = EMPTY.grow(step.draft_ids[gap], step.confidence[gap], end_ids)
    return replace(draft, is_ended=bool(step.committed[gap].all()))
