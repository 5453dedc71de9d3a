"""Requests to the engine."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from typing_extensions import override

from dg_lsp.canvas.chat import Turn
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.document import Cursor, Snapshot, allowed_lines
from dg_lsp.context.gaps import Gap
from dg_lsp.context.snippets import NO_SNIPPETS, Snippets
from dg_lsp.engine.result import FillResult, RewriteResult
from dg_lsp.sampler_options import NO_OPTIONS, SamplerOptions
from dg_lsp.settings import CompletionSettings

if TYPE_CHECKING:
    from dg_lsp.engine.decoders.base import Progress
    from dg_lsp.engine.engine import Engine

CHAT_MAX_TOKENS = 1024  # longest answer of a chat that sets no length
CHAT_DEADLINE_MS = 60_000.0
Result_co = TypeVar("Result_co", covariant=True)


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
    slot: int = -1  # of the KV cache; -1 takes the one that shares most of the prompt
    endpoint: str = ""  # the path of the HTTP API or the method of LSP, for the audit log
    id: str = ""  # of the audit record; empty leaves it to the log

    @property
    @abstractmethod
    def subject(self) -> str:
        """The document or the conversation: a newer request of the same kind about it replaces the request."""

    @property
    @abstractmethod
    def priority(self) -> Priority:
        """How urgent it is."""

    @property
    @abstractmethod
    def deadline_ms(self) -> float | None:
        """Milliseconds from submission, after which the result is what is settled; None takes the setting."""

    @abstractmethod
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, Result_co]":
        """The engine's work for the request, see `Engine`. `deadline` is in `time.monotonic` seconds."""


@dataclass(frozen=True, slots=True)
class FillRequest(EngineRequest[FillResult]):
    """A cursor in a buffer, and limits of the completion there."""

    snapshot: Snapshot
    offset: int  # code-point offset of the cursor in the snapshot's text
    num_candidates: int = 1
    max_lines: int | None = None  # None allows one line on a line with text and any number on a blank line
    max_tokens: int | None = None  # longest fill; None takes the setting, 0 only decodes the prompt
    suffix_lines: int | None = None  # lines after the cursor's own that the model may see; None: as many as fit
    deadline_ms: float | None = None
    early_stop_ms: float | None = None  # after which whole lines are enough, 0 for never; None takes the setting
    decoder: DecoderName | None = None  # None takes the setting
    seed: int = 0
    snippets: Snippets = NO_SNIPPETS  # code of other files for the prompt
    priority: Priority = field(default=Priority.TYPED, compare=False)
    cursor: Cursor = field(init=False, repr=False, compare=False)
    """The lines around the offset, computed once for all that look at them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "cursor", Cursor.at(self.snapshot.text, self.offset))

    @property
    @override
    def subject(self) -> str:
        return self.snapshot.uri

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, FillResult]":
        return engine.run(self, deadline=deadline)

    @property
    def line_limit(self) -> int | None:
        """Most lines of the fill; None is any number."""
        return allowed_lines(self.cursor) if self.max_lines is None else self.max_lines

    def min_confidence(self, settings: CompletionSettings) -> float | None:
        """See `FillResult.confident`: None where the user requested candidates in a document with some text."""
        is_guess = self.priority is Priority.TYPED or not self.snapshot.text.strip()
        return settings.min_confidence if is_guess else None


@dataclass(frozen=True, slots=True)
class RewriteRequest(EngineRequest[RewriteResult]):
    """A range of a buffer to write anew; the rest of the buffer stays as it is."""

    priority: ClassVar = Priority.REWRITE
    snapshot: Snapshot
    start: int
    end: int  # code-point offsets into the snapshot's text, `start < end`
    instruction: str = ""  # in words; empty leaves the change to the model
    strength: float = 1.0
    """Share of the tokens to replace, above 0 and at most 1: 0.3 keeps most of them, 1 starts from nothing."""
    deadline_ms: float = 60_000.0  # an unfinished rewrite is rejected
    seed: int = 0
    must_fix_errors: bool = False  # a buffer with syntax errors must have fewer afterwards
    snippets: Snippets = NO_SNIPPETS  # code of other files for the prompt
    gaps: tuple[Gap, ...] = ()  # to fill, while the rest of the range stays as it is; in order, without overlap
    decoder: DecoderName | None = None  # for the gaps; None takes the setting

    @property
    @override
    def subject(self) -> str:
        return self.snapshot.uri

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, RewriteResult]":
        return engine.rewrite(self, deadline=deadline)


@dataclass(frozen=True, slots=True)
class WarmUpRequest(EngineRequest[None]):
    """In idle time: decodes the prompt of a fill that the user may request next."""

    priority: ClassVar = Priority.SPECULATION
    deadline_ms: ClassVar = math.inf
    fill: FillRequest

    @property
    @override
    def subject(self) -> str:
        return self.fill.subject

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, None]":
        del deadline
        return engine.warm_up(self.fill)


@dataclass(frozen=True, slots=True)
class RefreshRequest(EngineRequest[None]):
    """In idle time: decodes again what the cache holds approximately."""

    priority: ClassVar = Priority.SPECULATION
    deadline_ms: ClassVar = math.inf
    subject: ClassVar[str] = ""

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, None]":
        del deadline
        return engine.refresh()


@dataclass(frozen=True, slots=True)
class ChatRequest(EngineRequest[FillResult]):
    """A conversation to continue, or a text as it is."""

    priority: ClassVar = Priority.CHAT
    turns: tuple[Turn, ...]
    name: str  # of the conversation
    text: str | None = None  # to continue without a chat template, in place of turns; neither lines nor loops end it
    stops: tuple[str, ...] = ()  # texts after which the model need not go on; the caller cuts there
    decoder: DecoderName | None = None  # None takes the one with the least expected time to a token
    ignores_end: bool = False  # end tokens do not end the answer
    is_stopped: Callable[[], bool] = field(default=bool, compare=False)  # the answer is what is settled when it is true
    max_tokens: int = CHAT_MAX_TOKENS  # longest answer, over as many canvases as that takes and the model has room for
    deadline_ms: float = CHAT_DEADLINE_MS
    seed: int = 0

    @property
    @override
    def subject(self) -> str:
        return self.name

    @override
    def run(self, engine: "Engine", deadline: float) -> "Generator[Progress, None, FillResult]":
        return engine.chat(self, deadline=deadline)
