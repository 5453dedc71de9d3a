"""Fills the gaps of a range, together on one canvas or one after the other.

Every fill is judged like a completion at its gap, and the buffer must not break by it. A gap without a good fill
stays as it was.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean

import numpy as np
import numpy.typing as npt

from dg_lsp.canvas.gaps import GapsLayout, gaps_layout
from dg_lsp.canvas.layout import NOTHING, noise, token_ids
from dg_lsp.canvas.prompt_format import in_format, prompt_of
from dg_lsp.canvas.spec import DecoderName, ModelSpec, PromptFormat
from dg_lsp.context.document import Snapshot, TextStyle
from dg_lsp.context.gaps import STAND_IN, Gap
from dg_lsp.diffusion.samplers import Step, denoise_together
from dg_lsp.engine.decode_run import DecodeRun, EngineModel, Stopwatch
from dg_lsp.engine.decoders.base import EMPTY, Draft, Progress, mapped
from dg_lsp.engine.decoders.diffusion import JOIN_TOKENS, join_score
from dg_lsp.engine.request import FillRequest, Priority, RewriteRequest
from dg_lsp.engine.result import FilledGap, FillResult, RewriteResult
from dg_lsp.engine.stop_criteria import Limits
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, breakage, judge
from dg_lsp.settings import CompletionSettings

Fill = Callable[..., Generator[Progress, None, FillResult]]
Verdict = Candidate | Rejection
Scores = npt.NDArray[np.float64]
"""Shape (canvases, gaps)."""


def fills_together(spec: ModelSpec, decoder: DecoderName) -> bool:
    """Whether the gaps share a canvas: where the model takes frozen text on both sides of a gap, or on request.

    A model with fill-in-the-middle tokens has seen one gap only, and fills several better one after the other.
    """
    if decoder is DecoderName.INFILL:
        return spec.sampling is not None
    takes_gaps = spec.prompt_format in (PromptFormat.INFILL, PromptFormat.INSTRUCT)
    return decoder is DecoderName.AUTO and spec.sampling is not None and takes_gaps


class GapsText:
    """A buffer in pieces: the text between the gaps, and what stands in each of them."""

    def __init__(self, snapshot: Snapshot, gaps: Sequence[Gap]) -> None:
        self.gaps, self._snapshot, text = gaps, snapshot, snapshot.text
        ends = (0, *(gap.end for gap in gaps)), (*(gap.start for gap in gaps), len(text))
        self._pieces = [text[start:end] for start, end in zip(*ends, strict=True)]
        self._old = [text[gap.start : gap.end] for gap in gaps]
        self._leads = [gap.lead(text) for gap in gaps]
        self._shown = [old if old.strip() else STAND_IN for old in self._old]
        self.verdicts: list[Verdict] = [Rejection(Reason.UNFINISHED) for _ in gaps]

    def opened(self, first: int, last: int) -> tuple[Snapshot, int]:
        """The buffer without the gaps from `first` to `last` and what is between them, and where they were."""
        before = self._before(first) + self._leads[first]
        return replace(self._snapshot, text=before + self._after(last)), len(before)

    def between(self, first: int, last: int) -> tuple[str, ...]:
        """The texts between these gaps as the model sees them."""
        style = TextStyle.of(self._snapshot.text, self.gaps[first].start)
        return tuple(style.to_model(self._pieces[i] + self._leads[i]) for i in range(first + 1, last + 1))

    def take(self, number: int, verdict: Verdict, settings: CompletionSettings) -> bool:
        """Puts a candidate into its gap, unless it is not worth that; True if it is there now."""
        if isinstance(verdict, Candidate):
            before, old = self._before(number), self._shown[number]
            whole = replace(self._snapshot, text=before + old + self._after(number))
            reason = verdict.fault
            if verdict.text.strip() == self._old[number].strip():
                reason = Reason.UNCHANGED
            elif reason is None and verdict.confidence < settings.min_confidence:
                reason = Reason.LOW_CONFIDENCE
            elif reason is None and settings.check_syntax:
                reason = breakage(whole, len(before), len(before) + len(old), verdict.text)
            if reason is None:
                self._shown[number] = verdict.text
            else:
                verdict = Rejection(reason, verdict.text)
        self.verdicts[number] = verdict
        return isinstance(verdict, Candidate)

    def result_text(self) -> str:
        """The text from the first gap to the last one; gaps without a fill are as they were."""
        parts = [
            verdict.text if isinstance(verdict, Candidate) else old
            for verdict, old in zip(self.verdicts, self._old, strict=True)
        ]
        return parts[0] + "".join(piece + part for piece, part in zip(self._pieces[1:-1], parts[1:], strict=True))

    def _before(self, number: int) -> str:
        return self._pieces[0] + "".join(map("".join, zip(self._shown[:number], self._pieces[1:], strict=False)))

    def _after(self, number: int) -> str:
        shown = self._shown[number + 1 :]
        return self._pieces[number + 1] + "".join(map("".join, zip(shown, self._pieces[number + 2 :], strict=True)))


class GapsFill:
    """One request at work."""

    def __init__(
        self,
        request: RewriteRequest,
        name: str,
        settings: CompletionSettings,
        deadline: float,
        fill: Fill,
        model: EngineModel | None = None,
    ) -> None:
        """`deadline` is in `time.monotonic` seconds, `fill` is `Engine.run`; without a model nothing is joined."""
        self._request, self._name, self._settings = request, name, settings
        self._deadline, self._fill = deadline, fill
        wanted = request.decoder or DecoderName(settings.decoder)
        self._model = model if model is not None and fills_together(model.spec, wanted) else None
        if self._model is not None and self._model.spec.prompt_format is PromptFormat.PREFIX:
            self._model = replace(self._model, spec=in_format(self._model.spec, PromptFormat.INFILL))
        self._text = GapsText(request.snapshot, request.gaps)
        self._watch = Stopwatch()
        self._steps = 0

    def run(self) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then the result."""
        first, block = 0, 0
        while first < len(self._request.gaps):
            layout, last = self._group(first)
            if layout is not None and self._model is not None:
                steps = self._watch.relay(self._join(self._model, layout, first))
            else:
                steps = self._fill_one(first)
            yield from mapped(steps, partial(replace, block=block))
            first, block = last + 1, block + 1
        return self._result()

    def _group(self, first: int) -> tuple[GapsLayout | None, int]:
        """The layout of as many gaps as share a canvas, and the last of them; None for a single one."""
        last, layout = first, None
        if self._model is None:
            return None, first
        with self._watch.stage("prompt"):
            while last + 1 < len(self._request.gaps):
                longer = self._layout(self._model, first, last + 1)
                if not longer.fits(self._model.spec):
                    break
                layout, last = longer, last + 1
        return layout, last

    def _layout(self, model: EngineModel, first: int, last: int) -> GapsLayout:
        prompt = prompt_of(*self._text.opened(first, last), model.spec.max_prompt_tokens)
        prompt = replace(prompt, snippets=self._request.snippets)
        return gaps_layout(prompt, self._text.between(first, last), model.tokenizer, model.spec)

    def _fill_one(self, number: int) -> Generator[Progress, None, None]:
        """A completion where the gap is."""
        request = self._request
        snapshot, offset = self._text.opened(number, number)
        decoder = None if self._model is not None else request.decoder
        fill = FillRequest(
            snapshot,
            offset,
            early_stop_ms=0.0,
            decoder=decoder,
            seed=request.seed,
            snippets=request.snippets,
            priority=Priority.INVOKED,
            client=request.client,
            sampler=request.sampler,
        )
        before = self._steps
        steps = self._fill(fill, deadline=self._deadline)
        steps = mapped(steps, lambda progress: replace(progress, number=before + progress.number))
        result = yield from self._watch.relay(steps)
        self._steps = before + result.steps
        rejections = result.rejections or (Rejection(Reason.EMPTY),)
        self._take_best(number, result.candidates or rejections)

    def _take_best(self, number: int, verdicts: Sequence[Verdict]) -> None:
        """Puts the first candidate into the gap that is good there."""
        for verdict in verdicts:
            if self._text.take(number, verdict, self._settings):
                return

    def _join(self, model: EngineModel, layout: GapsLayout, first: int) -> Generator[Progress, None, None]:
        """Canvases with all gaps of the group, each with another length of the gaps; each gap takes the best fill."""
        limits = Limits(model.spec.longest_block, model.spec.longest_block, None, deadline=self._deadline)
        run = DecodeRun(model, DecoderName.INFILL, layout.layout, limits, self._watch, seed=self._request.seed)
        task = run.task
        canvases = layout.canvases(model.spec, task.rng)
        yield from task.prefill(layout.layout.prompt_ids)
        steps: tuple[Step, ...] = tuple(map(Step.before, canvases))
        states = denoise_together(
            task.denoiser, task.slot, canvases, task.sampling, task.rng, explores=False, closes_gaps=True
        )
        for steps in () if limits.is_over() else states:
            self._steps += 1
            yield _shown(layout, max(steps, key=_mean_confidence), self._steps)
            if limits.is_over():
                break
        is_over = limits.is_over()
        joins = np.zeros((len(steps), layout.num_gaps)) if is_over else _joins(run, layout, steps)
        ranked = _ranked(layout, steps, joins, frozenset(model.spec.end_ids))
        if not is_over:
            self._steps += 1
            yield _composed(layout, [drafts[0] for drafts in ranked], self._steps)
        with self._watch.stage("postprocess"):
            for number, drafts in enumerate(ranked, start=first):
                self._take_best(number, [self._judge(run, draft, number) for draft in drafts])

    def _judge(self, run: DecodeRun, draft: Draft, number: int) -> Verdict:
        if not draft.is_ended:
            return Rejection(Reason.UNFINISHED)
        snapshot, offset = self._text.opened(number, number)
        fill = FillRequest(snapshot, offset)
        verdict = judge(
            run.task.stop.decode(draft.ids),
            snapshot=snapshot,
            offset=offset,
            cursor=fill.cursor,
            max_lines=fill.line_limit,
            score=draft.score,
            check_syntax=self._settings.check_syntax,
        )
        return replace(verdict, confidence=run.confidence(draft)) if isinstance(verdict, Candidate) else verdict

    def _result(self) -> RewriteResult:
        gaps = self._request.gaps
        filled_gaps = tuple(FilledGap.of(gap, verdict) for gap, verdict in zip(gaps, self._text.verdicts, strict=True))
        filled = [verdict for verdict in self._text.verdicts if isinstance(verdict, Candidate)]
        refused = [verdict for verdict in self._text.verdicts if isinstance(verdict, Rejection)]
        return RewriteResult(
            self._name,
            gaps[0].start,
            gaps[-1].end,
            self._text.result_text() if filled else "",
            None if filled else refused[0],
            fmean(candidate.score for candidate in filled) if filled else 0.0,
            min((candidate.confidence for candidate in filled), default=0.0),
            True,  # there is no instruction
            self._steps,
            self._watch.timings(),
            filled_gaps,
        )


def _mean_confidence(step: Step) -> float:
    free = step.confidence[~step.frozen]
    return float(np.log(np.maximum(free, 1e-9)).mean()) if len(free) else 0.0


def _shown(layout: GapsLayout, step: Step, number: int) -> Progress:
    """The canvas from the first gap to the last one."""
    where = slice(layout.gap(0, step.frozen).start, layout.gap(layout.num_gaps - 1, step.frozen).stop)
    part = step.take(where)
    return Progress(0, number, EMPTY, part.draft_ids, part.confidence, part.committed, part.frozen)


def _draft(layout: GapsLayout, step: Step, number: int, end_ids: frozenset[int]) -> Draft:
    """The fill of a gap; it has ended if all of it is settled."""
    where = layout.gap(number, step.frozen)
    draft = EMPTY.grow(step.draft_ids[where], step.confidence[where], end_ids)
    return replace(draft, is_ended=bool(step.committed[where].all()))


def _ranked(layout: GapsLayout, steps: Sequence[Step], joins: Scores, end_ids: frozenset[int]) -> list[list[Draft]]:
    """The fills of each gap by all canvases, the best first."""
    ranked = []
    for number in range(layout.num_gaps):
        pairs = zip(steps, joins[:, number].tolist(), strict=True)
        drafts = [replace(_draft(layout, step, number, end_ids), join=join) for step, join in pairs]
        ranked.append(sorted(drafts, key=lambda draft: -draft.score))
    return ranked


def _composed(layout: GapsLayout, best: Sequence[Draft], number: int) -> Progress:
    """The best fill of each gap with the frozen text between them."""
    ids, confidence, frozen = [best[0].ids], [best[0].confidence[: len(best[0].ids)]], [len(best[0].ids), 0]
    for known, draft in zip(layout.between, best[1:], strict=True):
        ids += [known, draft.ids]
        confidence += [np.ones(len(known), np.float32), draft.confidence[: len(draft.ids)]]
        frozen[-1] = len(known)
        frozen += [len(draft.ids), 0]
    flags = np.repeat(np.arange(len(frozen)) % 2 == 1, frozen)
    tokens = token_ids(np.concatenate(ids))
    return Progress(0, number, EMPTY, tokens, np.concatenate(confidence), np.ones(len(tokens), np.bool_), flags)


def _joins(run: DecodeRun, layout: GapsLayout, steps: Sequence[Step]) -> Scores:
    """How well the first frozen tokens after each gap follow its fill, by canvas and gap.

    One pass in which they are noise, as `InfillDecoder` compares gap lengths.
    """
    task, canvases, known, ends = run.task, [], [], []
    end_ids = frozenset(task.spec.end_ids)
    for step in steps:
        parts, at, begins = [step.canvas_ids[:0]], 0, []
        for number in range(layout.num_gaps):
            where = layout.gap(number, step.frozen)
            fill = EMPTY.grow(step.draft_ids[where], step.confidence[where], end_ids).ids
            parts += [step.canvas_ids[at : where.start], fill]
            begins.append(sum(map(len, parts)))
            at = where.stop
        canvas = np.concatenate([*parts, step.canvas_ids[at:]])
        masked = canvas.copy()
        limits = [*begins[1:], len(canvas)]
        for begin, limit in zip(begins, limits, strict=True):
            unknown = masked[begin : min(begin + JOIN_TOKENS, limit)]
            unknown[:] = noise(task.spec, len(unknown), task.rng)
        canvases.append(token_ids(masked) if len(masked) else NOTHING)
        known.append(canvas)
        ends.append(begins)
    lanes = range(len(steps), 2 * len(steps))  # of their own: see `InfillDecoder`
    predictions = task.denoiser.predict(task.slot, canvases, 0.0, task.rng, lanes)
    predicted = zip(predictions, known, ends, strict=True)
    return np.array([[join_score(prediction, ids, at) for at in begins] for prediction, ids, begins in predicted])
