"""Next edits that a model proposes, where the last edits are not repeated: the one interface of all such models.

`source_of` chooses how a model is used. An edit model rewrites the lines around the cursor in its own prompt format. A
diffusion model that follows instructions denoises a part of their tokens again, so that several places change together.
"""

import math
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

from dg_lsp.canvas.chat import has_template
from dg_lsp.canvas.edit_prompt import (
    JOINED_LINES,
    UNFINISHED_JOINED_LINES,
    EditFormat,
    EditPrompt,
    edit_format_of,
    edit_prompt,
    edited_region,
)
from dg_lsp.canvas.spec import DecoderName, ModelSpec
from dg_lsp.context.document import LineIndex, Snapshot, TextStyle
from dg_lsp.context.edit_history import Edit
from dg_lsp.context.languages import grammar_of, language_of
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.context.syntax_tree import LimitedParser
from dg_lsp.context.window import shown_path
from dg_lsp.engine.decoders.base import Progress, RequestCosts
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.engine.request import NO_TIME, ChatRequest, EngineRequest, FillResult, Priority, RewriteRequest, Timings
from dg_lsp.errors import ModelUnsupportedError, RequestError
from dg_lsp.postprocess.brackets import balance
from dg_lsp.postprocess.text_edits import Change, is_repetitive, minimal_changes, to_text, with_line_ends_of
from dg_lsp.postprocess.validate import Reason, breakage

if TYPE_CHECKING:
    from dg_lsp.engine.engine import Engine

DEADLINE_MS = 5000.0
PROMPT_SHARE = 0.75
"""Largest fraction of a model's context that a prompt takes."""
MIN_PROBABILITY = 0.7
"""Mean probability of a token of an answer, most of which are copies; a server reports none."""
STRENGTH = 0.5
"""Fraction of the region's tokens that diffusion replaces by noise."""
REGION_LINES = (8, 4, 2, 1, 0)
"""Lines above and below that of the cursor that diffusion denoises again: as many as fit into one canvas."""
NUM_SHOWN_EDITS = 3
MAX_SEPARATE = 6
"""An answer with more changes is one edit."""


@dataclass(frozen=True, slots=True)
class NextEditResult:
    """The edits that a model proposes, which do not touch and are in the order of the text, and their cost."""

    proposals: tuple[Proposal, ...]
    model: str
    steps: int = 0
    timings: Timings = NO_TIME
    reason: Reason | None = None
    """Why there is none."""

    @property
    def is_unfinished(self) -> bool:
        """See `FillResult.is_unfinished`."""
        return self.reason is Reason.UNFINISHED


@dataclass(frozen=True, slots=True)
class NextEditRequest(EngineRequest[NextEditResult]):
    """A document after the user's last edits."""

    priority: ClassVar = Priority.REWRITE
    snapshot: Snapshot  # without other cells
    offset: int  # of the cursor
    edits: tuple[Edit, ...]  # of this document, newest first
    snippets: Snippets = NO_SNIPPETS
    deadline_ms: float = DEADLINE_MS

    @property
    @override
    def subject(self) -> str:
        return self.snapshot.uri

    @override
    def run(self, engine: "Engine", deadline: float) -> Generator[Progress, None, NextEditResult]:
        """The engine's work for the request; raises `ModelUnsupportedError` if the model proposes no edits."""
        source = source_of(engine.spec)
        if source is None:
            raise ModelUnsupportedError(f"{engine.spec.name} proposes no edits: use an edit model")
        return source(engine, self, deadline)


Source = Callable[["Engine", NextEditRequest, float], Generator[Progress, None, NextEditResult]]
"""How a kind of model proposes edits: one value for each forward pass, then the result."""


def source_of(spec: ModelSpec) -> Source | None:
    """The source that a model is; None if it is none."""
    if _format_of(spec):
        return from_edit_model
    return from_diffusion if spec.has_free_canvas and has_template(spec) else None


def _format_of(spec: ModelSpec) -> EditFormat | None:
    """The format of an edit model, by the name of its file or in it."""
    return edit_format_of(f"{spec.name} {dict(spec.metadata).get('general.name', '')}")


def from_diffusion(
    engine: "Engine", request: NextEditRequest, deadline: float
) -> Generator[Progress, None, NextEditResult]:
    """The changes of the lines around the cursor by a rewrite that keeps a part of their tokens."""
    lines = LineIndex.of(request.snapshot.text)
    line = lines.line_at(request.offset)
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
    judged: tuple[Proposal, ...] | Reason = rewritten.reason or Reason.LOW_CONFIDENCE
    if (probability := math.exp(rewritten.score)) >= MIN_PROBABILITY and rewritten.rejection is None:
        judged = _proposals(rewritten.text, probability, request, rewritten.start, rewritten.end)
    result = NextEditResult((), rewritten.model, steps=rewritten.steps, timings=rewritten.timings)
    return replace(result, reason=judged) if isinstance(judged, Reason) else replace(result, proposals=judged)


def from_edit_model(
    engine: "Engine", request: NextEditRequest, deadline: float
) -> Generator[Progress, None, NextEditResult]:
    """The edits in the answer of an edit model.

    The answer is not read further than to where it joins the unchanged lines again.

    Raises:
        RequestError: the code contains a mark of the model's prompt, or the prompt is too long.
    """
    form = _format_of(engine.spec)
    assert form is not None
    costs = RequestCosts()
    with costs.stage("prompt"):
        lines = LineIndex.of(request.snapshot.text)
        path, files = shown_path(request.snapshot.uri), request.snippets.chunks
        room = int(PROMPT_SHARE * engine.footprint.context_size)  # 0 for a server
        prompt = edit_prompt(form, lines, request.offset, request.edits, path, files, room)
    answer = yield from costs.relay(_answer(engine, request, form, prompt, deadline))
    with costs.stage("postprocess"):
        judged = Reason.UNFINISHED if answer is None else _judged(answer, request, prompt)
    num_passes = 0 if answer is None else answer.num_passes
    result = NextEditResult((), engine.spec.name, steps=num_passes, timings=costs.timings())
    return replace(result, reason=judged) if isinstance(judged, Reason) else replace(result, proposals=judged)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The rewritten lines; None where nothing changes, or the model's text cannot be read."""

    region: str | None
    score: float  # mean log probability of a token
    num_passes: int


def _answer(
    engine: "Engine", request: NextEditRequest, form: EditFormat, prompt: EditPrompt, deadline: float
) -> Generator[Progress, None, _Answer | None]:
    """The model's answer; None if it was not finished in time."""
    continuation = ChatRequest(
        (),
        name=request.subject,
        text=prompt.text,
        stops=form.stops,
        decoder=DecoderName.PROMPT_LOOKUP,  # most of an answer is a copy
        max_tokens=prompt.max_tokens,
        client=request.client,
    )
    read = partial(edited_region, form, prompt)
    num_lines = 0
    with closing(engine.chat(continuation, deadline=deadline)) as steps:
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                result: FillResult = end.value
                break
            yield progress
            text = engine.frame(progress).settled_text
            if text.count("\n") > num_lines:
                num_lines = text.count("\n")
                if region := read(text, unfinished=JOINED_LINES):
                    return _Answer(region, progress.draft.score, progress.number)
    region = read(result.text, unfinished=UNFINISHED_JOINED_LINES if result.ending.is_cut else 0)
    if region is None and (result.ending.is_cut or not result.candidates):
        return None
    return _Answer(region, result.candidates[0].score, result.steps)


def _judged(answer: _Answer, request: NextEditRequest, prompt: EditPrompt) -> tuple[Proposal, ...] | Reason:
    """The proposals of an answer, or why there is none."""
    snapshot = request.snapshot
    old = snapshot.text[prompt.start : prompt.end]
    if answer.region is None:
        return Reason.UNCHANGED
    if (probability := math.exp(answer.score)) < MIN_PROBABILITY:
        return Reason.LOW_CONFIDENCE
    if to_text(answer.region.encode()) is None and to_text(old.encode()) is not None:
        return Reason.NOT_TEXT
    if is_repetitive(answer.region) and not is_repetitive(old):
        return Reason.REPEATS_ITSELF
    new = with_line_ends_of(old, answer.region, TextStyle.of(snapshot.text, prompt.start).line_end)
    if fault := _fault(snapshot, prompt.start, prompt.end, new):
        return fault
    return _proposals(new, probability, request, prompt.start, prompt.end)


def _proposals(
    new: str, probability: float, request: NextEditRequest, start: int, end: int
) -> tuple[Proposal, ...] | Reason:
    """The changes that turn `[start, end)` of the text into `new`, without those that take back an edit."""
    snapshot = request.snapshot
    changes = minimal_changes(snapshot.text[start:end], new, start)
    is_sound_alone = len(changes) <= MAX_SEPARATE and not any(
        _fault(snapshot, change.start, change.end, change.text) for change in changes if len(changes) > 1
    )
    if not is_sound_alone:  # one edit from the first change to the last
        first, last = changes[0].start, changes[-1].end
        changes = (Change(first, last, new[first - start : len(new) - (end - last)]),)
    proposals = [Proposal(change.start, change.end, change.text, probability) for change in changes]
    lines = LineIndex.of(snapshot.text)
    kept = tuple(proposal for proposal in proposals if not _is_reversal(proposal, lines, request))
    return kept or Reason.REVERSAL


def _fault(snapshot: Snapshot, start: int, end: int, new: str) -> Reason | None:
    """What a new text would break. In a text with syntax errors, balanced brackets are enough."""
    reason = breakage(snapshot, start, end, new)
    language = language_of(snapshot.language)
    grammar = grammar_of(language.grammar)
    if reason is Reason.SYNTAX_ERROR and grammar is not None and LimitedParser(grammar).has_error(snapshot.text):
        before, after = (balance(text, language) for text in (snapshot.text[start:end], new))
        is_balanced = (before.strays, before.closers, before.quote) == (after.strays, after.closers, after.quote)
        return None if is_balanced else reason
    return reason


def _is_reversal(proposal: Proposal, lines: LineIndex, request: NextEditRequest) -> bool:
    """Whether a proposal takes back one of the last edits, unless that edit made a syntax error."""
    before, after = (text.strip() for text in proposal.changed_line(lines))
    if not any((edit.new.strip(), edit.old.strip()) == (before, after) for edit in request.edits):
        return False
    grammar = grammar_of(language_of(request.snapshot.language).grammar)
    parser = LimitedParser(grammar) if grammar else None
    return parser is None or not parser.has_error(lines.text) or parser.has_error(proposal.applied(lines.text))
