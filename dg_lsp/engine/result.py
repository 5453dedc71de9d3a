"""Results of the engine: a frame per denoising step, and one result per request."""

from dataclasses import dataclass, replace
from enum import StrEnum

from dg_lsp.canvas.spec import DecoderName
from dg_lsp.context.gaps import Gap
from dg_lsp.postprocess.validate import Candidate, Reason, Rejection


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall milliseconds of one request."""

    prefill: float = 0.0  # building the prompt, and decoding what the cache lacks of it
    denoise: float = 0.0
    postprocess: float = 0.0
    total: float = 0.0
    """From the engine's start on the request to its result, without the time in which the caller held a step."""
    predict: float = 0.0  # inside the backend's forward passes; the rest of `denoise` is the engine's own overhead


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
    canvas_length: int  # 0 for a decoder without a canvas
    steps: int  # forward passes after the prompt's
    output_tokens: int  # tokens of the best candidate, its end token included; 0 where nothing was computed
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that were not decoded again
    timings: Timings
    decoder: DecoderName = DecoderName.AUTO  # the decoder that ran; `auto` where none did
    is_cached: bool = False  # the rest of an earlier fill that the user has typed into so far
    slot: int = -1  # of the KV cache; -1 where none was taken
    drift: int = 0  # edits of the prefix that cached states of the suffix have not seen
    hidden: tuple[Candidate, ...] = ()  # improbable or faulty: kept for the keys that the user types next
    thought: str = ""  # what the model wrote before its answer to a conversation
    ending: Ending = Ending.END
    num_blocks: int = 0  # canvases that were denoised, those that share a pass included
    canvas_tokens: int = 0  # tokens of these canvases
    num_decodes: int = 0  # passes of the runtime, those of the prompt and of settled canvases included
    slot_tokens: int = 0  # that the slot of the KV cache holds afterwards

    @classmethod
    def unfinished(cls) -> "FillResult":
        """The result at the deadline of a request that the model never started on."""
        return cls("", (), (Rejection(Reason.UNFINISHED),), 0, 0, 0, 0, 0, NO_TIME)

    def confident(self, least: float | None) -> "FillResult":
        """The result with the candidates below this confidence or with a fault hidden, at 0 too; None shows all."""
        every = (*self.candidates, *self.hidden)
        good = (candidate for candidate in every if candidate.fault is None and candidate.confidence >= (least or 0.0))
        shown = every if least is None else tuple(good)
        hidden = tuple(candidate for candidate in every if candidate not in shown)
        refused = tuple(Rejection(candidate.fault or Reason.LOW_CONFIDENCE, candidate.text) for candidate in hidden)
        known = [Rejection(candidate.fault or Reason.LOW_CONFIDENCE, candidate.text) for candidate in self.hidden]
        remaining = tuple(rejection for rejection in self.rejections if rejection not in known)
        return replace(self, candidates=shown, hidden=hidden, rejections=(*refused, *remaining))

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
        """The same in words, to be read after `the result`."""
        return (self.reason or Reason.EMPTY).problem

    @property
    def is_unfinished(self) -> bool:
        """Nothing was stable at the deadline: the same request may have a candidate later."""
        return not self.candidates and any(rejection.reason is Reason.UNFINISHED for rejection in self.rejections)

    @property
    def tokens_per_forward(self) -> float:
        """Output tokens per forward pass."""
        return self.output_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class FilledGap:
    """A gap and its fill, or the reason why it stays as it is."""

    start: int
    end: int  # offsets of the placeholder
    text: str  # empty where rejected
    rejection: Rejection | None
    confidence: float  # estimated probability that the first line is right; 0 where rejected

    @classmethod
    def of(cls, gap: Gap, verdict: Candidate | Rejection) -> "FilledGap":
        """The verdict about a gap's fill."""
        if isinstance(verdict, Candidate):
            return cls(gap.start, gap.end, verdict.text, None, verdict.confidence)
        return cls(gap.start, gap.end, "", verdict, 0.0)


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The new text of a range, or the reason why there is none."""

    model: str
    start: int
    end: int  # offsets of the text to replace: an instruction covers whole lines
    text: str  # in the buffer's own line ends and indentation; empty where rejected
    rejection: Rejection | None
    score: float  # mean log probability per token, in nats; 0 where rejected
    confidence: float  # estimated probability that the first line is right; 0 where rejected
    follows_instructions: bool  # False where the model saw the instruction as a comment at most
    steps: int
    timings: Timings
    gaps: tuple[FilledGap, ...] = ()  # the gaps of the range, if only they were filled

    @property
    def reason(self) -> Reason | None:
        """Why there is no new text; None with one."""
        return self.rejection.reason if self.rejection else None


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
