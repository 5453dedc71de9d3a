"""Rewrites a range of a buffer: by an instruction, from partly kept tokens, or from nothing."""

import math
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

import attrs

from dg_lsp.canvas.prompt_format import answer_start, layout_of, prompt_of, rewrite_layout
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.context.document import LINE_END, REACH, Snapshot, TextStyle, line_start
from dg_lsp.context.languages import language_of
from dg_lsp.context.window import Prompt, SnippetSource
from dg_lsp.diffusion.samplers import denoise, renoised, resume_sampling
from dg_lsp.engine.decode_task import DecodeTask, EngineModel
from dg_lsp.engine.decoder_selection import canvas_length
from dg_lsp.engine.decoders.base import EMPTY, Limits, Progress, RequestCosts, gap_of
from dg_lsp.engine.request import Ending, FillRequest, FillResult, Priority, RewriteRequest, RewriteResult, Verdict
from dg_lsp.errors import RequestError
from dg_lsp.models.registry import instruction_model
from dg_lsp.postprocess.validate import Reason, Rejection, rank

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine

GROWTH = 2  # longest rewrite by an instruction, in lengths of the selection; `SPARE` tokens are added
SPARE = 512  # so that a stub of two lines can be implemented
MAX_TOKENS = 256  # of a fill in place of several lines
MAX_TRIES = 4  # tries with other tokens replaced, where the result of the first cannot be shown
UNFINISHED = Rejection(Reason.UNFINISHED)
FIX_TEST = "change it so that the test passes whose output is shown above."
"""Instruction of a rewrite with the output of a test, where the user gives no other one."""


class RangeTask:
    """One rewrite at work."""

    def __init__(self, engine: "Engine", request: RewriteRequest, deadline: float) -> None:
        """`deadline` is in `time.monotonic` seconds."""
        self._engine = engine
        self._settings = engine.settings
        if request.num_candidates > 1:
            self._settings = attrs.evolve(engine.settings, min_confidence=0.0)
        self._request = request
        self._deadline = deadline
        self._costs = RequestCosts()

    def _complete(
        self,
        snapshot: Snapshot,
        offset: int,
        *,
        seed: int,
        max_lines: int | None,
        decoder: DecoderName | None = None,
        gap_drafts: int = 0,
    ) -> Generator[Progress, None, FillResult]:
        """A completion in place of the range; of a gap if `gap_drafts` is not 0. Its passes are added to the costs."""
        request = FillRequest(
            snapshot,
            offset,
            num_candidates=max(self._request.num_candidates, gap_drafts),
            is_gap=gap_drafts > 0,
            max_lines=max_lines,
            max_tokens=None if max_lines == 1 else MAX_TOKENS,
            early_stop_ms=0.0,
            decoder=decoder,
            seed=seed,
            snippets=self._request.snippets,
            priority=Priority.INVOKED if gap_drafts else Priority.REWRITE,
            client=self._request.client,
            sampler=self._request.sampler,
        )
        result = yield from self._engine.complete(request, deadline=self._deadline, costs=self._costs)
        least = max_lines or math.inf  # a part of what belongs there is no candidate
        whole = tuple(fill for fill in result.candidates if not fill.is_cut or fill.text.count("\n") + 1 >= least)
        cut = (UNFINISHED,) * (len(result.candidates) - len(whole))
        return replace(result, candidates=whole, rejections=(*cut, *result.rejections))


class Rewrite(RangeTask):
    """See `Engine.rewrite`; on a local model."""

    def __init__(self, engine: "Engine", model: EngineModel, request: RewriteRequest, deadline: float) -> None:
        """Raises `RequestError` where the range is empty or outside of the buffer, or the strength needs a canvas."""
        request = checked_request(request, model.spec)
        super().__init__(engine, request, deadline)
        self._model = model

    def run(self) -> Generator[Progress, None, RewriteResult]:
        """One value per forward pass, then the result."""
        request = self._request
        attempt = self._denoise if request.is_instructed or request.strength < 1 else self._fill_range
        verdicts: list[Verdict] = []
        for number in range(max(MAX_TRIES, request.num_candidates)):
            first, *further = yield from attempt(request.seed + number)
            verdicts += [first, *further]
            candidates, _ = rank(verdicts)
            if len(candidates) >= request.num_candidates or first == UNFINISHED or request.strength >= 1:
                break
        ranked = candidates[: request.num_candidates]
        result = RewriteResult(
            request.start,
            request.end,
            ranked[0] if ranked else first,
            model=self._model.spec.name,
            steps=self._costs.num_passes,
            timings=self._costs.timings(),
            step_limit=self._model.spec.sampling.max_denoising_steps if self._model.spec.sampling else 0,
        )
        return replace(result, alternatives=tuple(replace(result, verdict=verdict) for verdict in ranked[1:]))

    def _fill_range(self, seed: int) -> Generator[Progress, None, list[Verdict]]:
        request = self._request
        snapshot, offset = without_range(request)
        max_lines = len(LINE_END.split(request.snapshot.text[request.start : request.end]))
        result = yield from self._complete(snapshot, offset, seed=seed, max_lines=max_lines)
        if not result.candidates:
            return [Rejection(result.reason or Reason.UNFINISHED)]
        style = TextStyle.of(snapshot.text)
        return [
            self._judged(style.to_model(candidate.text).encode(), candidate.score, candidate.confidence)
            for candidate in result.candidates
        ]

    def _denoise(self, seed: int) -> Generator[Progress, None, list[Verdict]]:
        model = self._model
        request = self._request
        with self._costs.stage("prompt"):
            size = model.spec.max_prompt_tokens
            prompt = replace(rewrite_prompt(request, size), snippets=request.snippets)
            num_selected = len(model.tokenizer.encode(prompt.selection))
            build = rewrite_layout if request.is_instructed else layout_of
            layout = build(prompt, model.tokenizer, model.spec, size)
            longest = GROWTH * num_selected + SPARE
            decoder = DecoderName.SPECULATIVE if model.spec.is_drafter else DecoderName.DIFFUSION
            if not model.spec.has_free_canvas:
                layout = layout.in_prompt()
            length = canvas_length(model.spec, None, layout, least=min(longest, 64))
            if model.spec.sampling is None:
                decoder = DecoderName.PROMPT_LOOKUP  # most of an answer is a copy of the selection
                length = 0
            limits = Limits(
                length,
                longest,
                None,
                num_candidates=request.num_candidates,
                deadline=self._deadline,
                stops=next_lines(request) if request.is_instructed else (),
                max_length=model.room,
            )
            task = DecodeTask(model, decoder, layout, limits, self._costs, seed=seed)
        if request.strength >= 1:
            return (yield from self._from_nothing(task, prompt))
        return [(yield from task.running(self._from_selection(task, prompt)))]

    def _from_nothing(self, task: DecodeTask, prompt: Prompt) -> Generator[Progress, None, list[Verdict]]:
        drafts = yield from task.drafts()
        indentation = answer_start(prompt, task.spec).encode()
        stop = task.stop
        return [
            UNFINISHED
            if stop.ending(draft, task.costs.num_passes) not in (Ending.END, Ending.STOP)
            else self._judged(indentation + stop.shown_bytes(draft), draft.score, task.confidence(draft))
            for draft in drafts
        ]

    def _from_selection(self, task: DecodeTask, prompt: Prompt) -> Generator[Progress, None, Verdict]:
        model = self._model
        selection = prompt.selection
        strength = self._request.strength
        num_frozen = len(answer_start(prompt, model.spec)) if task.layout.stop else 0  # blanks in the layout's head
        selected_ids = model.tokenizer.encode(selection[num_frozen:])
        canvas = renoised(task.layout, selected_ids, model.spec, strength, task.rng)
        yield from task.prefill(task.layout.prompt_ids)
        if task.limits.is_over():
            return UNFINISHED
        draft = EMPTY
        for step in denoise(task.denoiser, task.slot, canvas, resume_sampling(task.sampling, strength), task.rng):
            task.costs.num_passes += 1
            gap = gap_of(step)
            draft = EMPTY.grow(gap.draft_ids, gap.confidence, ())
            yield Progress.of(0, task.costs.num_passes, gap, draft)
            if task.limits.is_over() and not step.is_over:
                return UNFINISHED
        text = selection[:num_frozen].encode() + model.tokenizer.decode(draft.ids)
        return self._judged(text, draft.score, task.confidence(draft))

    def _judged(self, text: bytes, score: float, confidence: float) -> Verdict:
        with self._costs.stage("postprocess"):
            verdict = self._request.judge(text, score)
        if isinstance(verdict, Rejection):
            return verdict
        # what an instruction asks for can be written in many ways, and the user sees the change before it is made
        is_asked_for = self._request.is_instructed and self._request.strength >= 1
        if not is_asked_for and confidence < self._settings.min_confidence:
            return Rejection(Reason.LOW_CONFIDENCE, verdict.text)
        return replace(verdict, confidence=confidence)


def checked_request(request: RewriteRequest, spec: ModelSpec) -> RewriteRequest:
    """The request for whole lines if the model follows its instruction, else without the blanks around the range.

    The output of a test is the instruction to fix it, if there is no other one.

    Raises:
        RequestError: the range is empty or outside of the buffer, or the model lacks what the strength needs.
    """
    text = request.snapshot.text
    start = request.start
    end = request.end
    if not 0 <= start < end <= request.snapshot.end or not text[start:end].strip():
        raise RequestError("there is nothing to rewrite: select some code")
    if not 0 < request.strength <= 1:
        raise RequestError(f"strength must be above 0 and at most 1, not {request.strength:g}")
    if request.strength < 1 and not spec.has_free_canvas:
        raise RequestError(f"{spec.name} has no canvas to renoise: use strength 1, or a local diffusion model")
    is_failing = any(chunk.source is SnippetSource.TEST for chunk in request.snippets.chunks)
    instruction = request.instruction.strip() or (FIX_TEST if is_failing else "")
    if instruction and spec.follows_instructions:
        line_end = LINE_END.search(text, end, request.snapshot.end)
        is_whole = text[end - 1] in "\n\r"
        end = end if is_whole else line_end.end() if line_end else request.snapshot.end
        start = line_start(text, start)
        return replace(request, start=start, end=end, instruction=instruction, is_instructed=True)
    old = text[start:end]
    return replace(request, start=start + len(old) - len(old.lstrip()), end=start + len(old.rstrip()))


def next_lines(request: RewriteRequest) -> tuple[str, ...]:
    """A text at which an answer ends: the next two lines below the range, where the model goes on with the file.

    Empty without two such lines, or if the range has them itself.
    """
    text = request.snapshot.text
    style = TextStyle.of(text, request.start)
    lines = style.to_model(text[request.end : request.end + REACH]).split("\n")
    numbers = [number for number, line in enumerate(lines[:-1]) if line.strip()][:2]
    if len(numbers) < 2:
        return ()
    following = "\n".join(lines[numbers[0] : numbers[1] + 1]) + "\n"
    return () if following in style.to_model(text[request.start : request.end]) else (following,)


def without_range(request: RewriteRequest) -> tuple[Snapshot, int]:
    """The buffer without the range, and the offset of the gap.

    An instruction that the model does not follow becomes a comment above a range that begins a line.
    """
    text = request.snapshot.text
    before = text[: request.start]
    blanks = text[line_start(text, request.start) : request.start]
    instruction = " ".join(request.instruction.split())
    comment = language_of(request.snapshot.language).commented(instruction)
    if instruction and comment and not request.is_instructed and not blanks.strip():
        before += f"{comment}\n{blanks}"
    return replace(request.snapshot, text=before + text[request.end :]), len(before)


def instruction_note(request: RewriteRequest, spec: ModelSpec) -> str:
    """What becomes of the instruction, or of TODO comments at gaps, if the model follows none; empty otherwise."""
    is_instructed = bool(request.instruction.strip())
    if spec.follows_instructions or not (is_instructed or any(gap.hint for gap in request.gaps)):
        return ""
    fate = "it sees the TODO lines as comments"
    if is_instructed:
        has_comments = bool(language_of(request.snapshot.language).commented(request.instruction))
        fate = "it receives this one as a comment" if has_comments else "in a file without comments it receives none"
    return f"{spec.name} follows no instructions: {fate} ({instruction_model()} follows them)"


def rewrite_prompt(request: RewriteRequest, max_tokens: int, *, prefix_share: float = 1.0) -> Prompt:
    """The code around the range, the range, and the instruction; see `prompt_of`."""
    prompt = prompt_of(*without_range(request), max_tokens, prefix_share)
    text = request.snapshot.text
    selection = TextStyle.of(text, request.start).to_model(text[request.start : request.end])
    return replace(prompt, selection=selection, instruction=request.instruction.strip())
