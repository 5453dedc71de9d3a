"""What the engine answers: a frame per denoising step, and one result."""

from dataclasses import dataclass

from dg_lsp.engine.request import DecoderName
from dg_lsp.postprocess.validate import Candidate, Rejection


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall milliseconds of one request."""

    prefill: float
    """Making the prompt and decoding what the cache lacks of it."""
    denoise: float
    postprocess: float
    total: float
    """From the engine's first look at the request to its result, less the time in which somebody drew its steps."""
    predict: float
    """Inside the backend's forward passes over canvases: what is left of `denoise` is the engine's own."""


@dataclass(frozen=True, slots=True)
class FillResult:
    """Ranked candidates, best first, and what they cost."""

    model: str
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    canvas_length: int
    """0 for a plan without a canvas."""
    steps: int
    """Forward passes after the prompt's."""
    tokens_per_forward: float
    """Fill tokens of the best candidate, its end token included, over the forward passes that made it."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that did not have to be decoded."""
    timings: Timings
    plan: DecoderName = DecoderName.AUTO
    """What ran; `auto` where the request never got so far."""
    is_cached: bool = False
    """The rest of an earlier fill, through which the user has typed so far."""
    slot: int = -1
    """Of the KV cache; -1 where none was taken."""

    @property
    def text(self) -> str:
        """The best candidate's text, or nothing."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True, slots=True)
class Cell:
    """One canvas position as a person may look at it."""

    text: str
    """The draft's text here; empty for an end token."""
    confidence: float
    """Probability of the draft's token, 0 to 1."""
    is_committed: bool
    is_end: bool


@dataclass(frozen=True, slots=True)
class Frame:
    """The best canvas after one denoising step."""

    block: int
    """0 for the first canvas; a longer fill goes on in further ones."""
    step: int
    """1-based, counted over the whole request."""
    cells: tuple[Cell, ...]
    settled_text: str
    """The beginning of the fill that will not change any more."""


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The new text of the stretch, or why there is none."""

    model: str
    start: int
    end: int
    """Offsets of what `text` stands for: an instruction is about whole lines."""
    text: str
    """In the buffer's own line ends and indentation; empty where it was rejected."""
    rejection: Rejection | None
    score: float
    """Mean log probability per token, in nats."""
    confidence: float
    """Probability that the first line is what the user wants, as the model sees it; 0 where it was rejected."""
    follows_instructions: bool
    """False where an instruction was given to a model that knows none: it saw it as a comment."""
    steps: int
    timings: Timings
