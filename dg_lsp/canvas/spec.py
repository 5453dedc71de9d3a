"""What a model needs to be asked right: its noise, special ids, canvas lengths and defaults.

Knows no file and no runtime; `models` fills a spec in from GGUF metadata.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class DecoderName(StrEnum):
    """How a request is decoded, as settings, the command line and records spell it."""

    AUTO = "auto"
    """The decoder with the least expected time to a useful edit on this machine."""
    DIFFUSION = "diffusion"
    """Open canvases, denoised; several share each pass where several candidates are wanted or where it pays."""
    AUTOREGRESSIVE = "autoregressive"
    """Token by token, greedily."""
    SPECULATIVE = "speculative"
    """A canvas drafts and one causal pass verifies. The text is that of `autoregressive`."""
    PROMPT_LOOKUP = "prompt-lookup"
    """Like `speculative`, but the draft is what followed the same tokens elsewhere in the buffer."""
    INFILL = "infill"
    """Canvases with the prefix's tail and the suffix's head frozen around gaps of several lengths."""

    @property
    def needs_canvas(self) -> bool:
        """Requires a model that denoises."""
        return self in (DecoderName.DIFFUSION, DecoderName.SPECULATIVE, DecoderName.INFILL)

    @property
    def needs_causal_head(self) -> bool:
        """Requires weights that also decode token by token."""
        return self in (DecoderName.AUTOREGRESSIVE, DecoderName.SPECULATIVE, DecoderName.PROMPT_LOOKUP)


@dataclass(frozen=True, slots=True)
class ExpectedPasses:
    """Mean forward passes of one decoder at one kind of cursor position, after the prompt's."""

    kind: str
    """Of the position: `line-end`, `whole-line` or `block`."""
    decoder: DecoderName
    singles: float
    """Causal passes of one token."""
    checks: float
    """Causal passes over a draft of several tokens."""
    canvases: float
    """Passes over canvases."""
    hits: float
    """Share of answers whose first line is right, above 0."""
    num_canvases: int = 1
    """Canvases that share each pass."""


class PromptFormat(StrEnum):
    """How prefix and suffix reach the model."""

    FIM = "fim"
    """Suffix, then prefix, then middle sentinels in the cached prompt; open canvas ended by an end token."""
    INFILL = "infill"
    """Prefix tail and suffix head frozen in the canvas around a hole."""
    PREFIX = "prefix"
    """What stands before the cursor and nothing else: for models that know no middle."""
    INSTRUCT = "instruct"
    """Chat template in the prompt; code fence and prefix tail frozen in the canvas."""


class UnmaskOrder(StrEnum):
    """Which mask is taken when no confidence reaches the threshold, and when an end token may be taken."""

    LEFTMOST = "leftmost"
    """The leftmost mask is always taken; an end token only once everything before it is."""
    CONFIDENT = "confident"
    """The most confident mask is always taken; an end token whenever it is confident."""


@dataclass(frozen=True, slots=True)
class MaskSampling:
    """Absorbing noise (MDLM, LLaDA, Dream, dg-mini): masks are replaced by confident tokens and stay."""

    mask_id: int
    confidence_threshold: float = 0.9
    """A mask is replaced once the probability of its best token exceeds this."""
    max_denoising_steps: int = 128
    order: UnmaskOrder = UnmaskOrder.LEFTMOST
    expand_id: int | None = None
    """Predicted where one mask is too few: it becomes two (DreamOn, arXiv 2602.01326)."""
    delete_id: int | None = None
    """Predicted where a mask is too much: it goes away, and so does the run of masks after it."""
    max_free: int = 64
    """Positions that are not frozen, beyond which nothing expands."""


@dataclass(frozen=True, slots=True)
class UniformSampling:
    """Uniform noise (DiffusionGemma): random tokens, accepted within an entropy budget, else renoised."""

    entropy_bound: float = 0.1
    """Nats that the accepted positions of one step may add up to, the largest of them left out."""
    t_max: float = 0.8
    t_min: float = 0.4
    max_denoising_steps: int = 48
    stability_threshold: int = 1
    """Steps that the draft must have stayed the same before it may end the loop."""
    confidence_threshold: float = 0.005
    """Mean entropy in nats, over free positions only, under which a stable draft ends the loop."""


CAUSAL_BLOCK = 64
"""Tokens that a model without a canvas gets room for after its prompt, and as many again."""

Sampling = MaskSampling | UniformSampling


class FimOrder(StrEnum):
    """Which part of a fill-in-the-middle prompt comes first."""

    SUFFIX_FIRST = "suffix-first"
    """Typing changes only the prompt's end."""
    PREFIX_FIRST = "prefix-first"
    """As Qwen, CodeGemma and StarCoder were trained; every keystroke decodes the suffix again."""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The sentinels of a fill-in-the-middle prompt."""

    prefix_id: int
    suffix_id: int
    middle_id: int
    order: FimOrder = FimOrder.SUFFIX_FIRST


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What a vocabulary says of its tokens that are no text."""

    control_ids: tuple[int, ...]
    """End tokens and sentinels included."""
    end_ids: tuple[int, ...]
    """Tokens that end a generation."""
    start_ids: tuple[int, ...] = ()
    """What every prompt begins with."""
    fim: FimTokens | None = None
    file_separator_id: int | None = None


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file that lies beside a model's and belongs to it."""

    filename: str
    sha256: str
    """Of its content, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model as the canvas and the denoising loop see it."""

    name: str
    vocab_size: int
    sampling: Sampling | None
    """None for a causal model, which has no canvas."""
    end_ids: tuple[int, ...]
    """Token ids that end a fill."""
    prompt_format: PromptFormat = PromptFormat.FIM
    fim: FimTokens | None = None
    start_ids: tuple[int, ...] = ()
    """What every prompt begins with."""
    file_separator_id: int | None = None
    """What comes before the path of each file of a prompt with several; None where the model saw one at a time."""
    banned_ids: tuple[int, ...] = ()
    """Never predicted: special tokens that cannot stand in a fill."""
    canvas_lengths: tuple[int, ...] = (16, 32, 64)
    """Lengths that the model was trained for, ascending; none for a model without a canvas."""
    max_prompt_tokens: int = 512
    """Longest prompt that the model was trained for."""
    has_causal_head: bool = True
    """The weights also decode autoregressively: what follows a token can be asked with what comes after it hidden."""
    is_shifted: bool = False
    """Logits at a position say what comes after it, as of causal models (Dream); the runtime undoes it."""
    is_bidirectional: bool = False
    """Trained with a prompt that sees what comes after it; a cached prompt, which does not, is an approximation."""
    template: str = ""
    """Name of the chat template of an instruct model."""
    self_conditioning: SideFile | None = None
    """Weights that feed a canvas's last prediction back into its next one (DiffusionGemma); None has no such thing."""
    hole_lengths: tuple[int, ...] = ()
    """Tokens between frozen prefix tail and suffix head that are raced where the length is not known, ascending."""
    repetition_match: int = 0
    """Tokens that must recur in the buffer before what followed them overrides the model's prediction; 0 turns that
    off, since only a small model gains by it."""
    expectations: tuple[ExpectedPasses, ...] = ()
    """What decoders take, as far as the file says."""
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """What else the file says of itself, for `doctor` and `models show`."""

    @property
    def noise(self) -> str:
        """`mask`, `uniform` or `none`."""
        if self.sampling is None:
            return "none"
        return "mask" if isinstance(self.sampling, MaskSampling) else "uniform"

    @property
    def longest_block(self) -> int:
        """Tokens that a runtime must have room for after the longest prompt."""
        return self.canvas_lengths[-1] if self.canvas_lengths else CAUSAL_BLOCK


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One directory, found whole."""

    folder: Path
    special_ids: frozenset[int]
    """Tokens that are no text."""
    size_bytes: int
    """Of its weights on disk."""
    num_weights: int
    """Numbers of the text model."""
    num_vectors: int
    """Those of them that 8-bit formats leave as they are: embedding, norms, routers."""
    stored_type: str
    """`float32`, `float16` or `bfloat16`."""

    @property
    def description(self) -> str:
        """For a person."""
        return f"checkpoint of {self.num_weights / 1e9:.2f} B weights in {self.stored_type}"

    def close(self) -> None:
        """Nothing is held."""
