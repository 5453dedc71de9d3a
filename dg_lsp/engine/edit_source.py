"""Next edits: the last edits repeated, else those that a model proposes; the one interface of all such models.

An edit model rewrites the lines around the cursor in its own prompt format. A diffusion model that follows instructions
denoises a part of their tokens again, so that several places change together.
"""

import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from typing_extensions import override

from dg_lsp.canvas.edit_prompt import (
    JOINED_LINES,
    UNFINISHED_JOINED_LINES,
    EditFormat,
    EditPrompt,
    edit_format_of,
    edit_prompt,
)
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.context.document import LineIndex, TextStyle
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.languages import language_of
from dg_lsp.context.syntax_tree import SyntaxCheck
from dg_lsp.context.window import shown_path
from dg_lsp.engine.decoders.base import Progress, RequestCosts, Steps
from dg_lsp.engine.next_edit import Proposal, from_newest_edit, next_edits, takes_back
from dg_lsp.engine.request import NO_TIME, ChatRequest, DocumentRequest, Priority, RewriteRequest, Timings
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.brackets import balance
from dg_lsp.postprocess.text_edits import Change, is_repetitive, minimal_changes, to_text, with_unchanged_lines
from dg_lsp.postprocess.validate import Reason, breakage

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine

MIN_PROBABILITY = 0.7
"""Mean probability of a token of an answer, most of which are copies; a server reports none. Not calibrated, because no
edit model could be run."""
STRENGTH = 0.5  # fraction of the region's tokens that diffusion replaces by noise
REGION_LINES = (8, 4, 2, 1, 0)
"""Lines above and below that of the cursor that diffusion denoises again: as many as fit into one canvas."""
NUM_SHOWN_EDITS = 3
MAX_SEPARATE = 6  # changes of an answer that are edits of their own
NOT_REPEATED = "no recent edit is likely to be repeated elsewhere"
DISMISSED = "the user has gone on without this edit before"


@dataclass(frozen=True, slots=True)
class NextEditResult:
    """The edits that a model proposes, which do not touch and are in the order of the text, and their cost."""

    proposals: tuple[Proposal, ...]
    model: str
    steps: int = 0
    timings: Timings = NO_TIME
    reason: Reason | None = None  # why there is none

    @property
    def is_unfinished(self) -> bool:
        """See `FillResult.is_unfinished`."""
        return self.reason is Reason.UNFINISHED


@dataclass(frozen=True, slots=True)
class NextEditRequest(DocumentRequest[NextEditResult]):
    """A document, without other cells, after the user's last edits."""

    priority: Priority = field(default=Priority.REWRITE, kw_only=True)
    deadline_ms: float = field(default=5000.0, kw_only=True)
    lines: LineIndex  # of the snapshot's text
    edits: tuple[Edit, ...]  # of this document, newest first
    offset: int | None = None  # of the cursor; None where it is not known

    @property
    def cursor(self) -> int:
        """Offset of the cursor; without one, the end of the last line of the newest edit."""
        if self.offset is not None:
            return self.offset
        newest = self.edits[0]
        last = newest.line + max(0, newest.new.count("\n") - 1)
        return self.lines.span(min(last, self.lines.num_lines - 1))[1]

    @override
    def run(self, engine: "Engine", deadline: float) -> Generator[Progress, None, NextEditResult]:
        """The engine's work for the request; raises `ModelUnsupportedError` if the model proposes no edits."""
        if form := edit_format_of(engine.spec):
            costs = RequestCosts()
            return costs.relay(_from_edit_model(engine, self, form, deadline, costs))
        if not proposes_edits(engine.spec):
            raise ModelUnsupportedError(f"{engine.spec.name} proposes no edits: use an edit model")
        return _from_diffusion(engine, self, deadline)


@dataclass(frozen=True, slots=True)
class NextEdits:
    """The proposals for a document, or the reason why there is none: a sentence without a full stop."""

    proposals: Sequence[Proposal] = ()
    reason: str = ""


AskModel = Callable[[NextEditRequest], Awaitable[NextEditResult | None]]
"""The edits that a model proposes; None where no loaded model proposes any."""


async def propose(
    request: NextEditRequest, ask_model: AskModel, select: Callable[[Sequence[Proposal]], Sequence[Proposal]]
) -> NextEdits:
    """The repetitions that `select` returns, else those of a model's edits, in the order of `from_newest_edit`.

    Raises as `ask_model` does, which is called only where no repetition is selected.
    """
    repeated = next_edits(request.lines, request.edits, request.snapshot.language)
    if selected := select(repeated):
        return NextEdits(selected)
    result = await ask_model(request)
    if result is None:
        return NextEdits(reason=DISMISSED if repeated else NOT_REPEATED)
    if result.reason is not None:
        # a request that the model never began has a result without its name
        return NextEdits(reason=f"{NOT_REPEATED}; the edit of {result.model or 'the model'} {result.reason.problem}")
    selected = select(from_newest_edit(result.proposals, request.lines, request.edits))
    return NextEdits(selected, "" if selected else DISMISSED)


def proposes_edits(spec: ModelSpec) -> bool:
    """Whether a model proposes edits: an edit model, or a diffusion model that follows instructions."""
    return edit_format_of(spec) is not None or (spec.has_free_canvas and spec.follows_instructions)


def _from_diffusion(
    engine: "Engine", request: NextEditRequest, deadline: float
) -> Generator[Progress, None, NextEditResult]:
    """The changes of the lines around the cursor by a rewrite that keeps a part of their tokens."""
    lines = request.lines
    line = lines.line_at(request.cursor)
    last_edits = "\n".join(
        f"{edit.old.rstrip()}\nbecame\n{edit.new.rstrip()}" for edit in request.edits[:NUM_SHOWN_EDITS]
    )
    for num_lines in REGION_LINES:
        rewrite = RewriteRequest(
            request.snapshot,
            lines.span(max(0, line - num_lines))[0],
            lines.span(min(lines.num_lines - 1, line + num_lines))[1],
            instruction=f"make the changes that follow from my last edits, and no others:\n{last_edits}",
            strength=STRENGTH,
            snippets=request.snippets,
            client=request.client,
        )
        try:
            rewritten = yield from engine.rewrite(rewrite, deadline=deadline)
            break
        except RequestError:
            if num_lines == REGION_LINES[-1]:
                raise
    probability = math.exp(rewritten.verdict.score)
    proposals: tuple[Proposal, ...] = ()
    reason: Reason | None = rewritten.reason or Reason.LOW_CONFIDENCE
    if probability >= MIN_PROBABILITY and rewritten.reason is None:
        proposals, reason = _Judge(request).edits(rewritten.text, probability, rewritten.start, rewritten.end)
    return NextEditResult(proposals, rewritten.model, rewritten.steps, rewritten.timings, reason)


def _from_edit_model(
    engine: "Engine", request: NextEditRequest, form: EditFormat, deadline: float, costs: RequestCosts
) -> Generator[Progress, None, NextEditResult]:
    """The edits in the answer of an edit model, which is read up to where it joins the unchanged lines again.

    Raises:
        RequestError: the code contains a mark of the model's prompt, or the prompt is too long.
    """
    with costs.stage("prompt"):
        path, files = shown_path(request.snapshot.uri), request.snippets.chunks
        num_tokens = engine.footprint.context_size  # 0 for a server
        prompt = edit_prompt(form, request.lines, request.cursor, request.edits, path, files, num_tokens)
    continuation = ChatRequest(
        (),
        subject=request.subject,
        text=prompt.text,
        stops=form.stops,
        decoder=DecoderName.PROMPT_LOOKUP,  # most of an answer is a copy
        max_tokens=prompt.max_tokens,
        client=request.client,
    )
    region = None
    reason: Reason | None = None
    proposals: tuple[Proposal, ...] = ()
    score = 0.0
    num_passes = num_lines = 0
    answer = Steps(engine.chat(continuation, deadline=deadline))
    for progress in answer:
        yield progress
        score, num_passes = progress.draft.score, progress.number
        text = progress.text if progress.task is None else progress.task.texts(progress.draft.ids)[1]
        if text.count("\n") > num_lines:
            num_lines = text.count("\n")
            region = prompt.edited_region(text, unfinished=JOINED_LINES)
            if region is not None:
                break
    else:
        result = answer.result
        is_cut = result.ending.is_cut or not result.candidates
        region = prompt.edited_region(result.text, unfinished=UNFINISHED_JOINED_LINES if is_cut else 0)
        reason = None if region else Reason.UNFINISHED if is_cut else Reason.UNCHANGED
        score = result.candidates[0].score if result.candidates else 0.0
        num_passes = result.steps
    if region is not None:
        with costs.stage("postprocess"):
            proposals, reason = _Judge(request).answered(prompt, region, math.exp(score))
    return NextEditResult(proposals, engine.spec.name, num_passes, costs.timings(), reason)


_Judgement = tuple[tuple[Proposal, ...], Reason | None]  # the edits that are proposed, or why there is none


class _Judge:
    """Decides which of the edits of one answer are proposed."""

    def __init__(self, request: NextEditRequest) -> None:
        self._request = request
        self._syntax = SyntaxCheck(request.snapshot.text, request.snapshot.language)

    def answered(self, prompt: EditPrompt, region: str, probability: float) -> _Judgement:
        """The edits of an edit model that rewrote the lines of its prompt, or why none is proposed."""
        text = self._request.snapshot.text
        old = text[prompt.start : prompt.end]
        if probability < MIN_PROBABILITY:
            return (), Reason.LOW_CONFIDENCE
        if to_text(region.encode(), old) is None:
            return (), Reason.NOT_TEXT
        if is_repetitive(region) and not is_repetitive(old):
            return (), Reason.REPEATS_ITSELF
        styled = region.replace("\n", TextStyle.of(text, prompt.start).line_end)
        new = with_unchanged_lines(styled, region, old, prompt.region)
        if new == old:
            return (), Reason.UNCHANGED
        if fault := self._fault(Change(prompt.start, prompt.end, new)):
            return (), fault
        return self.edits(new, probability, prompt.start, prompt.end)

    def edits(self, new: str, probability: float, start: int, end: int) -> _Judgement:
        """The changes that turn `[start, end)` of the text into `new`, without those that take back an edit."""
        lines = self._request.lines
        changes = minimal_changes(lines.text[start:end], new, start)
        is_sound_alone = len(changes) == 1 or (len(changes) <= MAX_SEPARATE and not any(map(self._fault, changes)))
        if not is_sound_alone:  # one edit from the first change to the last
            first, last = changes[0].start, changes[-1].end
            changes = (Change(first, last, new[first - start : len(new) - (end - last)]),)
        proposals = (Proposal(change.start, change.end, change.text, probability) for change in changes)
        kept = tuple(edit for edit in proposals if not takes_back(edit, lines, self._request.edits, self._syntax))
        return kept, None if kept else Reason.REVERSAL

    def _fault(self, change: Change) -> Reason | None:
        """What a change would break. In a text with syntax errors, balanced brackets are enough."""
        snapshot = self._request.snapshot
        reason = breakage(snapshot, change.start, change.end, change.text)
        if reason is not Reason.SYNTAX_ERROR or not self._syntax.has_error:
            return reason
        texts = (snapshot.text[change.start : change.end], change.text)
        before, after = (balance(text, language_of(snapshot.language)) for text in texts)
        is_balanced = (before.strays, before.closers, before.quote) == (after.strays, after.closers, after.quote)
        return None if is_balanced else reason
