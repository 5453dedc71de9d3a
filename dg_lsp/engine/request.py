"""Requests to the engine, and their results: a frame per denoising step, and one result per request."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from typing_extensions import override

from dg_lsp.canvas.chat import Turn
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Cursor, Snapshot, allowed_lines
from dg_lsp.context.gaps import Gap
from dg_lsp.context.languages import language_of
from dg_lsp.context.window import NO_SNIPPETS, Snippets
from dg_lsp.postprocess.text_edits import gap_end
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection, judge, judge_rewrite
from dg_lsp.settings import NO_OPTIONS, CompletionSettings, SamplerOptions

if TYPE_CHECKING:
    from dg_lsp.engine.decoders.base import Progress
    from dg_lsp.engine.engine import Engine

CHAT_MAX_TOKENS = 1024  # longest answer of a chat that sets no length
CHAT_DEADLINE_MS = 60_000.0
Result_co = TypeVar("Result_co", covariant=True)
Verdict = Candidate | Rejection


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall milliseconds of one request."""

    prefill: float = 0.0  # building the prompt, and decoding what the cache lacks of it
    denoise: float = 0.0
    postprocess: float = 0.0
    total: float = 0.0
    """From the engine's start on the request to its result, without the time in which the caller held a step."""
    setup: float = 0.0  # building the prompt: the part of `prefill` before the model works


NO_TIME = Timings()


class Ending(StrEnum):
    """Why a decoder stopped."""

    END = "end"  # an end token, or all that was wanted is there
    STOP = "stop"  # a text that the request named
    TOKENS = "tokens"  # as many tokens or lines as the request allows
    CONTEXT = "context"  # prompt and text fill the model's context
    DEADLINE = "deadline"

    @property
    def is_cut(self) -> bool:
        """The text might go on."""
        return self in (Ending.TOKENS, Ending.CONTEXT, Ending.DEADLINE)


@dataclass(frozen=True, slots=True)
class FillResult:
    """Ranked candidates, best first, and their cost."""

    model: str
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    canvas_length: int = 0  # 0 for a decoder without a canvas
    steps: int = 0  # forward passes after the prompt's, those of alternatives included
    output_tokens: int = 0  # tokens of the best candidate, its end token included; 0 where nothing was computed
    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that were not decoded again
    timings: Timings = NO_TIME
    decoder: DecoderName = DecoderName.AUTO  # the decoder that ran; `auto` where none did
    is_cached: bool = False  # the rest of an earlier fill that the user has typed into so far
    slot: int = -1  # of the KV cache; -1 where none was taken
    hidden: tuple[Candidate, ...] = ()  # improbable or faulty: kept for the keys that the user types next
    thought: str = ""  # what the model wrote before its answer to a conversation
    ending: Ending = Ending.END
    num_blocks: int = 0  # canvases that were denoised, those that share a pass included
    canvas_tokens: int = 0  # tokens of these canvases
    slot_tokens: int = 0  # that the slot of the KV cache holds afterwards
    step_limit: int = 0  # most passes over a canvas, or most tokens where there is none
    is_prompt_cut: bool = False  # there was no time to decode the whole prompt

    @classmethod
    def unfinished(cls) -> "FillResult":
        """The result at the deadline of a request that the model never started on."""
        return cls("", (), (Rejection(Reason.UNFINISHED),))

    def confident(self, least: float | None) -> "FillResult":
        """Hides the candidates below this confidence, and those with a fault even if it is 0; None hides nothing.

        If nothing is left, the probable beginning of the best improbable line is shown.
        """
        if least is None:
            return self
        hidden = tuple(candidate for candidate in self.candidates if candidate.fault or candidate.confidence < least)
        shown = tuple(candidate for candidate in self.candidates if candidate not in hidden)
        if not shown:
            begun = (candidate.beginning(least) for candidate in hidden if candidate.fault is None)
            shown = tuple(filter(None, begun))[:1]
        refused = tuple(Rejection(candidate.fault or Reason.LOW_CONFIDENCE, candidate.text) for candidate in hidden)
        return replace(self, candidates=shown, hidden=(*self.hidden, *hidden), rejections=(*refused, *self.rejections))

    def after_test(self, passing: "Replacement | None") -> "FillResult":
        """The result with the candidate that passes a test, if there is one; all others are rejected."""
        failed = tuple(Rejection(Reason.FAILS_TEST, candidate.text) for candidate in self.candidates)
        kept = tuple(candidate for candidate in self.candidates if passing and candidate is passing.verdict)
        return replace(self, candidates=kept, rejections=(*failed, *self.rejections))

    @property
    def text(self) -> str:
        """The best candidate's text; empty without one."""
        return self.candidates[0].text if self.candidates else ""

    @property
    def reason(self) -> Reason | None:
        """Why there is no candidate; None with a candidate, and if nothing was rejected."""
        return None if self.candidates or not self.rejections else self.rejections[0].reason

    @property
    def problem(self) -> str:
        """The reason in words, to be read after `the result`."""
        return (self.reason or Reason.EMPTY).problem

    @property
    def is_unfinished(self) -> bool:
        """Nothing was stable at the deadline: the same request may have a candidate later."""
        return not self.candidates and any(rejection.reason is Reason.UNFINISHED for rejection in self.rejections)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the best candidate per forward pass; the passes of alternatives count too."""
        return self.output_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Replacement:
    """New text for a range of the buffer or for a gap, or the reason why there is none."""

    start: int
    end: int  # offsets of the text to replace: an instruction covers whole lines
    verdict: Verdict

    @property
    def reason(self) -> Reason | None:
        """Why there is no new text; None with one."""
        return self.verdict.reason if isinstance(self.verdict, Rejection) else None

    @property
    def text(self) -> str:
        """In the buffer's own line ends and indentation; empty where rejected."""
        return self.verdict.text if isinstance(self.verdict, Candidate) else ""


@dataclass(frozen=True, slots=True)
class RewriteResult(Replacement):
    """The new text of a range, and its cost."""

    model: str
    steps: int
    timings: Timings
    gaps: tuple[Replacement, ...] = ()  # the gaps of the range, if only they were filled
    step_limit: int = 0  # most passes over a canvas; 0 where there is none
    alternatives: "tuple[RewriteResult, ...]" = ()  # less probable texts, as many as were requested and differ

    def rejected(self, reason: Reason) -> "RewriteResult":
        """The result with neither a new text nor a filled gap."""
        verdict = Rejection(reason, self.text)
        return replace(self, verdict=verdict, gaps=tuple(replace(gap, verdict=verdict) for gap in self.gaps))


@dataclass(frozen=True, slots=True)
class Cell:
    """One canvas position, for display."""

    text: str  # the draft's text here; empty for an end token
    confidence: float  # probability of the draft's token, 0 to 1
    is_committed: bool
    is_end: bool
    is_frozen: bool = False  # text of the buffer between two gaps


@dataclass(frozen=True, slots=True)
class Frame:
    """The best canvas after one denoising step, for display."""

    block: int  # 0 for the first canvas; a longer fill continues in further ones
    step: int  # 1-based, counted over the whole request
    cells: tuple[Cell, ...]
    settled_text: str  # the beginning of the fill that will not change any more
    earlier_text: str = ""  # the part of it that is from canvases before this one
    thought: str = ""  # of an answer to a conversation, before `settled_text`


class Priority(IntEnum):
    """Order of requests, the most urgent first. A more urgent request interrupts the one that runs."""

    TYPED = 0  # an automatic completion: out of date at the next keystroke, and hidden if it is probably wrong
    INVOKED = 1  # a completion that the user requested
    REWRITE = 2
    CHAT = 3
    WARM_UP = 4  # only decodes a prompt
    SPECULATION = 5  # the fill that follows if the user accepts the last one, or a refresh; any other request ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest(ABC, Generic[Result_co]):
    """What all requests have, by the type of their results."""

    client: Hashable = 0  # the session or machine, where several share the model: they share no cache
    sampler: SamplerOptions = NO_OPTIONS  # in place of the model's own values
    decoder: DecoderName | None = None  # None takes the setting, or of a chat the one with the least expected time
    seed: int = 0
    endpoint: str = ""  # the path of the HTTP API or the method of LSP, for the audit log
    id: str = ""  # of the audit record; empty leaves it to the log
    priority: Priority = field(default=Priority.TYPED, compare=False)
    deadline_ms: float | None = None
    """Milliseconds from submission, after which the result is what is settled; None takes the setting."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """The document or the conversation: a newer request of the same kind about it replaces the request."""

    def deadline_from(self, arrival: float, settings: CompletionSettings) -> float:
        """The deadline of a request that arrived then, both in `time.monotonic` seconds."""
        return arrival + (self.deadline_ms or settings.deadline_ms) / 1e3

    @abstractmethod
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, Result_co]":
        """The engine's work for the request, see `Engine`. `deadline` is in `time.monotonic` seconds."""


@dataclass(frozen=True, slots=True)
class DocumentRequest(EngineRequest[Result_co]):
    """A request about a document."""

    snapshot: Snapshot
    snippets: Snippets = field(default=NO_SNIPPETS, kw_only=True)  # code of other files for the prompt

    @property
    @override
    def subject(self) -> str:
        return self.snapshot.uri


def max_lines(settings: CompletionSettings) -> int | None:
    """Most lines of a completion at the cursor; None: what the position allows."""
    return 1 if settings.lines == "single" else None


@dataclass(frozen=True, slots=True)
class FillRequest(DocumentRequest[FillResult]):
    """A cursor in a buffer, and limits of the completion there."""

    offset: int  # code-point offset of the cursor in the snapshot's text
    num_candidates: int = 1
    max_lines: int | None = None  # None allows one line on a line with text and any number on a blank line
    max_tokens: int | None = None  # longest fill; None takes the setting, 0 only decodes the prompt
    early_stop_ms: float | None = None  # time until whole lines are enough, 0 for never; None takes the setting
    is_followed: bool = True  # idle time finishes it, and computes the fill that follows if it is accepted
    is_gap: bool = False  # in place of a placeholder: one argument, or statements of the block around it
    cursor: Cursor = field(init=False, repr=False, compare=False)
    """The lines around the offset, computed once for all that look at them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cursor", Cursor.at(self.snapshot.text, self.offset))

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, FillResult]":
        return engine.complete(self, deadline=deadline)

    @property
    def line_limit(self) -> int | None:
        """Most lines of the fill; None is any number."""
        return allowed_lines(self.cursor) if self.max_lines is None else self.max_lines

    def min_confidence(self, settings: CompletionSettings) -> float | None:
        """See `FillResult.confident`: None where the user requested candidates in a document with some text."""
        is_guess = self.priority is Priority.TYPED or not self.snapshot.text.strip()
        return settings.min_confidence if is_guess else None

    def end_of(self, fill: str) -> int | None:
        """Offset at which a fill is over, whatever follows; None if it is not. See `gap_end`."""
        return gap_end(fill, self.cursor, language_of(self.snapshot.language)) if self.is_gap else None

    @property
    def is_requested(self) -> bool:
        """The user has requested it, and did not only type, or will: several candidates are computed in advance."""
        return self.priority is Priority.INVOKED or self.num_candidates > 1

    def judge(self, fill: bytes, score: float) -> Verdict:
        """See `postprocess.validate.judge`."""
        return judge(
            fill,
            snapshot=self.snapshot,
            offset=self.offset,
            cursor=self.cursor,
            max_lines=self.line_limit,
            score=score,
            must_parse=self.is_requested,  # a rewrite is checked as a whole
            is_gap=self.is_gap,
        )


@dataclass(frozen=True, slots=True)
class RewriteRequest(DocumentRequest[RewriteResult]):
    """A range of a buffer to write anew; the rest of the buffer stays as it is."""

    priority: Priority = field(default=Priority.REWRITE, kw_only=True)
    deadline_ms: float = field(default=60_000.0, kw_only=True)  # an unfinished rewrite is rejected
    start: int
    end: int  # code-point offsets into the snapshot's text, `start < end`
    instruction: str = ""  # in words; empty leaves the change to the model
    strength: float = 1.0
    """Share of the tokens to replace, above 0 and at most 1: 0.3 keeps most of them, 1 starts from nothing."""
    must_fix_errors: bool = False  # a buffer with syntax errors must have fewer afterwards
    gaps: tuple[Gap, ...] = ()  # to fill, while the rest of the range stays as it is; in order, without overlap
    num_candidates: int = 1  # of several, improbable ones are not rejected: the caller selects one
    is_instructed: bool = False  # the model follows the instruction, see `checked_request`

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, RewriteResult]":
        return engine.rewrite(self, deadline=deadline)

    def unfinished(self) -> RewriteResult:
        """The result at the deadline of a rewrite that the model never started on."""
        verdict = Rejection(Reason.UNFINISHED)
        gaps = tuple(Replacement(gap.start, gap.end, verdict) for gap in self.gaps)
        return RewriteResult(self.start, self.end, verdict, "", 0, NO_TIME, gaps=gaps)

    def data_with(self, result: RewriteResult) -> bytes:
        """The buffer with a result, as a file."""
        return (self.snapshot.text[: result.start] + result.text + self.snapshot.text[result.end :]).encode()

    def judge(self, answer: bytes, score: float) -> Verdict:
        """See `judge_rewrite`."""
        return judge_rewrite(
            answer,
            snapshot=self.snapshot,
            start=self.start,
            end=self.end,
            score=score,
            must_fix_errors=self.must_fix_errors,
            instruction=self.instruction,
        )


@dataclass(frozen=True, slots=True)
class IdleRequest(EngineRequest[None]):
    """In idle time: decodes the prompt of a fill that may come next, or again what the cache holds approximately."""

    priority: Priority = field(default=Priority.SPECULATION, kw_only=True)
    deadline_ms: float = field(default=math.inf, kw_only=True)
    subject: ClassVar[str] = ""
    fill: FillRequest | None = None  # None refreshes the cache

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, None]":
        return engine.refresh() if self.fill is None else engine.warm_up(self.fill)


@dataclass(frozen=True, slots=True)
class ChatRequest(EngineRequest[FillResult]):
    """A conversation to continue, or a text as it is."""

    priority: Priority = field(default=Priority.CHAT, kw_only=True)
    deadline_ms: float = field(default=CHAT_DEADLINE_MS, kw_only=True)
    turns: tuple[Turn, ...]
    subject: str  # of the conversation
    text: str | None = None  # to continue without a chat template, in place of turns; neither lines nor loops end it
    stops: tuple[str, ...] = ()  # texts after which the model need not go on; the caller cuts there
    ignores_end: bool = False  # end tokens do not end the answer
    is_stopped: Callable[[], bool] = field(default=bool, compare=False)  # the answer is what is settled when it is true
    max_tokens: int = CHAT_MAX_TOKENS  # longest answer, over as many canvases as that takes and the model has room for

    @property
    def is_raw(self) -> bool:
        """A text is continued as it is."""
        return self.text is not None

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, FillResult]":
        return engine.chat(self, deadline=deadline)
