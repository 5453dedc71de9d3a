"""How a stretch of a buffer is written anew: by instruction, from partly kept tokens, or from nothing."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import numpy as np

from dg_lsp.canvas.chat import TEMPLATES, rewrite_layout
from dg_lsp.canvas.layout import NOTHING, Layout, Renoise, resume_sampling
from dg_lsp.canvas.prompt_format import layout_of
from dg_lsp.canvas.spec import ModelSpec, Sampling
from dg_lsp.canvas.tokenizer import Tokenizer
from dg_lsp.context.document import LINE_END, TextStyle, line_start
from dg_lsp.context.languages import language_of
from dg_lsp.context.window import CHARS_PER_TOKEN, Prompt, prompt_at, shown_path
from dg_lsp.diffusion.denoiser import Denoiser
from dg_lsp.diffusion.loop import denoise
from dg_lsp.engine.decoders.base import DecodeTask, Progress, gap_of
from dg_lsp.engine.decoders.diffusion import DiffusionDecoder
from dg_lsp.engine.kv_slots import KVSlots
from dg_lsp.engine.request import FillRequest, RewriteRequest
from dg_lsp.engine.request_denoiser import SlotDenoiser, Stopwatch, TimedDenoiser
from dg_lsp.engine.result import FillResult, RewriteResult
from dg_lsp.engine.stop_criteria import Draft, Limits, StopCriteria, confidence_of
from dg_lsp.errors import RequestError
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge_rewrite

GROWTH = 2
"""Times as long as the selection that an instructed rewrite may get, and `SPARE` tokens more."""
SPARE = 96
MAX_TRIES = 4
"""Draws of which tokens are given up, where what came of the first one cannot be shown."""
WORTH_ANOTHER = (Reason.SYNTAX_ERROR, Reason.UNCHANGED, Reason.REPEATS_ITSELF, Reason.EMPTY)
Fill = Callable[..., Generator[Progress, None, FillResult]]


@dataclass(frozen=True, slots=True)
class RewriteAttempt:
    """What the model said, before anybody judged it."""

    text: bytes
    score: float
    confidence: float
    steps: int
    is_whole: bool = True
    """False where the deadline came first."""


class Rewriter:
    """One model's way to rewrite. Belongs to the engine's thread."""

    def __init__(
        self,
        denoiser: Denoiser,
        tokenizer: Tokenizer,
        spec: ModelSpec,
        sampling: Sampling | None,
        slots: KVSlots,
        fill: Fill,
    ) -> None:
        self._denoiser = denoiser
        self._tokenizer = tokenizer
        self._spec = spec
        self._sampling = sampling
        self._slots = slots
        self._fill = fill

    @property
    def follows_instructions(self) -> bool:
        """The model has a chat template that is known here."""
        return self._spec.template in TEMPLATES

    def run(
        self, request: RewriteRequest, *, deadline: float, check_syntax: bool
    ) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then the result. `deadline` in `time.monotonic` seconds.

        Raises:
            RequestError: the stretch is empty or outside of the buffer, or the model lacks what the strength needs.
            BackendError: the runtime failed.
        """
        is_instructed = bool(request.instruction.strip()) and self.follows_instructions
        request = self._checked(request, is_instructed=is_instructed)
        watch = Stopwatch()
        steps = 0
        for number in range(MAX_TRIES):
            asked = replace(request, seed=request.seed + number)
            answer = yield from watch.passing_on(self._answer(asked, deadline, watch, is_instructed=is_instructed))
            steps += answer.steps
            with watch.stage("postprocess"):
                verdict = _judged(answer, asked, check_syntax=check_syntax)
            if isinstance(verdict, Candidate) or verdict.reason not in WORTH_ANOTHER or request.strength >= 1:
                break
        return RewriteResult(
            model=self._spec.name,
            start=request.start,
            end=request.end,
            text="" if isinstance(verdict, Rejection) else verdict.text,
            rejection=verdict if isinstance(verdict, Rejection) else None,
            score=0.0 if isinstance(verdict, Rejection) else verdict.score,
            confidence=0.0 if isinstance(verdict, Rejection) else answer.confidence,
            follows_instructions=self.follows_instructions,
            steps=steps,
            timings=watch.timings(),
        )

    def _answer(
        self, request: RewriteRequest, deadline: float, watch: Stopwatch, *, is_instructed: bool
    ) -> Generator[Progress, None, RewriteAttempt]:
        if request.strength >= 1 and not is_instructed:
            return (yield from self._anew(request, deadline))
        return (yield from self._on_canvas(request, deadline, watch, is_instructed=is_instructed))

    def _checked(self, request: RewriteRequest, *, is_instructed: bool) -> RewriteRequest:
        text = request.snapshot.text
        if not 0 <= request.start < request.end <= len(text) or not text[request.start : request.end].strip():
            raise RequestError("there is nothing to rewrite: select some code")
        if not 0 < request.strength <= 1:
            raise RequestError(f"strength {request.strength:g} is not above 0 and at most 1")
        if request.strength < 1 and self._sampling is None:
            raise RequestError(f"{self._spec.name} has no canvas to renoise: use strength 1, or a diffusion model")
        bounds = whole_lines if is_instructed else without_blanks
        start, end = bounds(text, request.start, request.end)
        return replace(request, start=start, end=end)

    def _anew(self, request: RewriteRequest, deadline: float) -> Generator[Progress, None, RewriteAttempt]:
        """The stretch is a hole like any other, as many lines as it had at most."""
        snapshot = request.snapshot
        old = snapshot.text[request.start : request.end]
        before = snapshot.text[: request.start] + as_comment(request)
        text = before + snapshot.text[request.end :]
        result = yield from self._fill(
            FillRequest(
                replace(snapshot, text=text),
                len(before),
                max_lines=len(LINE_END.split(old)),
                early_stop_ms=0.0,
                seed=request.seed,
                extra=request.extra,
            ),
            deadline=deadline,
        )
        if not result.candidates:
            is_whole = bool(result.rejections) and result.rejections[0].reason is not Reason.UNFINISHED
            return RewriteAttempt(b"", 0.0, 0.0, result.steps, is_whole)
        best = result.candidates[0]
        written = TextStyle.of(text).to_model(best.text).encode()
        return RewriteAttempt(written, best.score, best.confidence, result.steps)

    def _on_canvas(
        self, request: RewriteRequest, deadline: float, watch: Stopwatch, *, is_instructed: bool
    ) -> Generator[Progress, None, RewriteAttempt]:
        sampling = self._sampling
        if sampling is None:
            raise RequestError(f"{self._spec.name} has no canvas; choose a diffusion model")
        with watch.stage("prompt"):
            prompt = self._prompt(request, is_instructed=is_instructed)
            build = rewrite_layout if is_instructed else layout_of
            layout = build(prompt, self._tokenizer, self._spec, self._spec.max_prompt_tokens)
            ids = self._tokenizer.encode(prompt.selection)
            longest = GROWTH * len(ids) + SPARE
            limits = Limits(self._canvas(longest), longest, None, deadline=deadline)
            enough = StopCriteria(self._tokenizer, limits, layout.stop)
            denoiser = TimedDenoiser(SlotDenoiser(self._denoiser, self._slots), watch, self._spec)
            task = DecodeTask(denoiser, limits, enough, np.random.default_rng(request.seed))
        slot = self._slots.choose(layout.prompt_ids)
        self._slots.hold(slot, layout.prompt_ids)
        if request.strength >= 1:
            return (yield from self._from_nothing(task, sampling, slot, layout, prompt))
        return (
            yield from self._from_there(
                task, resume_sampling(sampling, request.strength), request, slot, layout, prompt
            )
        )

    def _from_nothing(
        self, task: DecodeTask, sampling: Sampling, slot: int, layout: Layout, prompt: Prompt
    ) -> Generator[Progress, None, RewriteAttempt]:
        """An open canvas after the question; the answer has begun with the selection's indentation."""
        filling = DiffusionDecoder(task, sampling)
        filling.prefill(slot, layout.prompt_ids, 0)
        (draft, *_) = yield from filling.run(slot, layout)
        is_whole = not task.limits.is_over() or draft.is_ended
        indentation = prompt.selection[: len(prompt.selection) - len(prompt.selection.lstrip(" "))]
        text = indentation.encode() + task.enough.fill(draft)
        return RewriteAttempt(text, draft.score, self._confidence(draft), draft.steps, is_whole)

    def _from_there(
        self, task: DecodeTask, sampling: Sampling, request: RewriteRequest, slot: int, layout: Layout, prompt: Prompt
    ) -> Generator[Progress, None, RewriteAttempt]:
        """Canvases that begin as the selection, a share of it noise."""
        selection = prompt.selection
        begun = len(selection) - len(selection.lstrip(" ")) if layout.stop else 0  # frozen as the answer's beginning
        ids = self._tokenizer.encode(selection[begun:])
        renoising = Renoise(layout, ids, self._spec, request.strength, task.rng)
        draft, steps = Draft.empty(), 0
        for block, plan in enumerate(renoising):
            task.denoiser.prefill(slot, plan.prompt_ids)
            settled, hole_ids = draft, NOTHING
            for step in denoise(task.denoiser, slot, plan, sampling, task.rng):
                steps += 1
                hole = gap_of(step)
                settled, hole_ids = draft.grow(hole.draft_ids, hole.confidence, NOTHING), hole.draft_ids
                yield Progress(block, steps, hole, settled)
                if task.limits.is_over() and step.stop is None:
                    return RewriteAttempt(b"", 0.0, 0.0, steps, is_whole=False)
            draft = settled
            renoising.settle(hole_ids)
        text = selection[:begun].encode() + self._tokenizer.decode(renoising.result_ids)
        return RewriteAttempt(text, draft.score, self._confidence(draft), steps)

    def _confidence(self, draft: Draft) -> float:
        return confidence_of(draft.ids, draft.confidence, self._tokenizer)

    def _prompt(self, request: RewriteRequest, *, is_instructed: bool) -> Prompt:
        snapshot = request.snapshot
        old = snapshot.text[request.start : request.end]
        around = replace(snapshot, text=snapshot.text[: request.start] + snapshot.text[request.end :])
        chars = self._spec.max_prompt_tokens * CHARS_PER_TOKEN
        prompt = prompt_at(around, request.start, prefix_chars=chars, suffix_chars=chars // 3)
        comment = "" if is_instructed else as_comment(request)
        return replace(
            prompt,
            prefix=prompt.prefix + comment,
            selection=TextStyle.of(snapshot.text, request.start).to_model(old),
            instruction=request.instruction.strip(),
            path=shown_path(snapshot.uri),
            language=snapshot.language,
            extra=request.extra,
        )

    def _canvas(self, longest: int) -> int:
        lengths = self._spec.canvas_lengths
        return min((length for length in lengths if length >= min(longest, 64)), default=self._spec.longest_block)


def whole_lines(text: str, start: int, end: int) -> tuple[int, int]:
    """The stretch with the rest of its first and its last line, line end included."""
    first = line_start(text, start)
    if end > start and text[end - 1] in "\n\r":
        return first, end
    ends = [at for at in (text.find(mark, end) for mark in "\n\r") if at >= 0]
    if not ends:
        return first, len(text)
    last = min(ends)
    return first, last + (2 if text[last : last + 2] == "\r\n" else 1)


def without_blanks(text: str, start: int, end: int) -> tuple[int, int]:
    """The stretch without the blanks and line ends around its text: they are not the model's to change."""
    old = text[start:end]
    return start + len(old) - len(old.lstrip()), start + len(old.rstrip())


def as_comment(request: RewriteRequest) -> str:
    """The instruction for a model that knows code only: a comment above, where the stretch begins a line."""
    instruction = " ".join(request.instruction.split())
    comment = language_of(request.snapshot.language).comment
    text = request.snapshot.text
    blanks = text[line_start(text, request.start) : request.start]
    return "" if not (instruction and comment) or blanks.strip() else f"{comment} {instruction}\n{blanks}"


def _judged(answer: RewriteAttempt, request: RewriteRequest, *, check_syntax: bool) -> Candidate | Rejection:
    if not answer.is_whole:
        return Rejection(Reason.UNFINISHED)
    return judge_rewrite(
        answer.text,
        snapshot=request.snapshot,
        start=request.start,
        end=request.end,
        score=answer.score,
        check_syntax=check_syntax,
        must_fix_errors=request.must_fix_errors,
    )
