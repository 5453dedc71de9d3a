"""Model specification: noise kind, special ids, canvas lengths, prompt format and sampling defaults.

Independent of files and runtimes; `models` builds a spec from GGUF metadata.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from dg_lsp.canvas.chat_template import TEMPLATES, ChatTemplate
from dg_lsp.errors import OptionError
from dg_lsp.settings import SamplerOptions


class DecoderName(StrEnum):
    """How a request is decoded, as settings, the command line and records spell it."""

    AUTO = "auto"  # the decoder with the least expected time to a useful edit on this machine
    DIFFUSION = "diffusion"
    """Open canvases, denoised; several share each pass where several candidates are wanted or where it pays."""
    AUTOREGRESSIVE = "autoregressive"  # token by token, greedily
    SPECULATIVE = "speculative"
    """A canvas drafts and one causal pass verifies. The text is that of `autoregressive`."""
    PROMPT_LOOKUP = "prompt-lookup"
    """Like `speculative`, but the draft is what followed the same tokens elsewhere in the buffer."""
    INFILL = "infill"  # canvases with the prefix's tail and the suffix's head frozen around gaps of several lengths

    @property
    def needs_canvas(self) -> bool:
        """Requires a model that denoises."""
        return self in (DecoderName.DIFFUSION, DecoderName.SPECULATIVE, DecoderName.INFILL)

    @property
    def needs_final_canvas(self) -> bool:
        """Requires canvases whose text is the fill, without verification."""
        return self in (DecoderName.DIFFUSION, DecoderName.INFILL)

    @property
    def needs_causal_head(self) -> bool:
        """Requires weights that also decode token by token."""
        return self in (DecoderName.AUTOREGRESSIVE, DecoderName.SPECULATIVE, DecoderName.PROMPT_LOOKUP)


@dataclass(frozen=True, slots=True)
class ExpectedPasses:
    """Mean number of passes of one decoder at one kind of cursor position, or for one token of a text."""

    kind: str  # `line-end`, `whole-line`, `block` or `text`
    decoder: DecoderName
    singles: float  # causal passes over one token
    checks: float  # causal passes that check a draft
    canvases: float  # bidirectional passes over a canvas
    hits: float  # fraction of fills whose first line is right, above 0


class PromptFormat(StrEnum):
    """How prefix and suffix are presented to the model."""

    FIM = "fim"  # suffix, then prefix, then middle sentinels in the cached prompt; open canvas ended by an end token
    INFILL = "infill"  # prefix tail and suffix head frozen in the canvas around a gap
    PREFIX = "prefix"  # only the text before the cursor: for models without fill-in-the-middle tokens
    INSTRUCT = "instruct"  # a chat whose answer begins with the code before the cursor


class UnmaskOrder(StrEnum):
    """Which mask is replaced when no confidence reaches the threshold, and when an end token is accepted."""

    LEFTMOST = "leftmost"
    """The leftmost mask is always replaced; an end token is accepted once all positions before it are."""
    CONFIDENT = "confident"
    """The most confident mask is always replaced; an end token is accepted whenever it is confident."""


@dataclass(frozen=True, slots=True)
class MaskSampling:
    """Absorbing noise (MDLM, LLaDA, Dream, dg-mini): masks are replaced by confident tokens for good."""

    mask_id: int
    confidence_threshold: float = 0.9  # a mask is replaced once the probability of its best token exceeds this
    max_denoising_steps: int = 128
    order: UnmaskOrder = UnmaskOrder.LEFTMOST
    expand_id: int | None = None  # token that turns one mask into two (DreamOn, arXiv 2602.01326)
    delete_id: int | None = None  # token that removes a mask and the run of masks after it
    max_free: int = 64  # number of free positions from which a canvas does not expand any more
    block_length: int = 0
    """Block diffusion: attention is full inside blocks of this length, counted from the prompt's start, and causal
    between them. A canvas is the rest of one block, and keeps its length after an end token. 0: no blocks."""
    window_length: int = 0
    """Masks are replaced in the leftmost window of this length that has any, counted from the end; 0: everywhere."""


@dataclass(frozen=True, slots=True)
class UniformSampling:
    """Uniform noise (DiffusionGemma): random tokens, accepted within an entropy budget, else renoised."""

    entropy_bound: float = 0.1
    """Entropy budget of one step in nats: the sum over the accepted positions without the largest."""
    t_max: float = 0.8
    t_min: float = 0.4
    max_denoising_steps: int = 48
    stability_threshold: int = 1  # number of steps with an unchanged draft before the loop may end
    confidence_threshold: float = 0.005
    """A stable draft ends the loop when the mean entropy of the free positions, in nats, is below this."""
    stop_interval: int = 1
    """Steps after which the host looks whether the loop may end, where a device can choose the canvases between."""
    top_k: int = 0
    """Number of the most probable tokens from which accepted tokens are drawn; 0: all."""
    top_k_start: int = 0
    """With `top_k_end`, in place of `top_k`: the number at the first step, from which it changes linearly."""
    top_k_end: int = 0  # the number at the last step
    top_k_tail_correction: bool = False
    """The entropies of all tokens, instead of those of the `top_k` tokens, decide what is accepted. Always with 1."""


CAUSAL_BLOCK = 64
"""Cache cells reserved after the prompt of a model without a canvas or with one for each block, in tokens."""

Sampling = MaskSampling | UniformSampling


class FimOrder(StrEnum):
    """Which part of a fill-in-the-middle prompt comes first."""

    SUFFIX_FIRST = "suffix-first"  # typing changes only the end of the prompt
    PREFIX_FIRST = "prefix-first"  # Qwen, CodeGemma, StarCoder; a keystroke moves the suffix in the cache


class PromptCut(StrEnum):
    """Where the text before the cursor ends in a prompt."""

    CHARACTER = "character"  # at the cursor, as in models that were trained with cuts at any character
    TOKEN = "token"  # at the token boundary before the cursor; the fill begins with the text between the two


FimTemplate = tuple[int | str, ...]
"""Token ids and texts of a prompt in order. `{prefix}`, `{suffix}` and `{files}` are texts of their own; other texts
may contain `{path}`, `{code}` and `{repository}`."""


@dataclass(frozen=True, slots=True)
class FimTokens:
    """The format of a fill-in-the-middle prompt. `fim_families.toml` has the formats of known families."""

    prefix_id: int
    suffix_id: int
    middle_id: int | None
    """None: the prompt ends with the prefix (Codestral)."""
    order: FimOrder = FimOrder.SUFFIX_FIRST
    repository: FimTemplate = ()
    """Before the files, if the repository's name is known."""
    file: FimTemplate = ()
    """One file of several."""
    prompt_with_files: FimTemplate = ()
    """The prompt if there is code of other files. Empty: that code precedes the prefix, as comments with paths."""
    end_ids: tuple[int, ...] = ()
    """Tokens that end a fill, in addition to the end tokens of the file."""
    family: str = ""
    """Row of fim_families.toml; empty for tokens of an unknown family."""
    evidence: str = ""
    """What identifies the family: `metadata`, `vocabulary` or `file name`."""
    cut: PromptCut = PromptCut.CHARACTER

    @property
    def prompt(self) -> FimTemplate:
        """A prompt without code of other files."""
        prefix: FimTemplate = (self.prefix_id, "{prefix}")
        suffix: FimTemplate = (self.suffix_id, "{suffix}")
        middle = () if self.middle_id is None else (self.middle_id,)
        return (*prefix, *suffix, *middle) if self.order is FimOrder.PREFIX_FIRST else (*suffix, *prefix, *middle)

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids."""
        pieces = (*self.prompt, *self.repository, *self.file, *self.prompt_with_files)
        return (*(piece for piece in pieces if isinstance(piece, int)), *self.end_ids)


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The non-text tokens of a vocabulary."""

    control_ids: tuple[int, ...]  # all control tokens, end tokens and sentinels included
    end_ids: tuple[int, ...]  # tokens that end a generation
    start_ids: tuple[int, ...] = ()  # first tokens of every prompt
    fim: FimTokens | None = None
    """Fill-in-the-middle tokens that the file names, or whose spelling is common; their order is a guess."""
    spellings: Mapping[str, int] = field(default_factory=dict)
    """Ids of all special tokens by spelling."""


@dataclass(frozen=True, slots=True)
class SideFile:
    """A second file of a model, in the same folder."""

    filename: str
    sha256: str  # checksum of its content, in hexadecimal digits


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, as far as canvas and denoising loop depend on it."""

    name: str
    vocab_size: int
    sampling: Sampling | None  # none for a causal model, which has no canvas
    end_ids: tuple[int, ...]  # token ids that end a fill
    prompt_format: PromptFormat = PromptFormat.FIM
    fim: FimTokens | None = None
    start_ids: tuple[int, ...] = ()  # first tokens of every prompt
    takes_snippets: bool = False  # code of other places as comments before the prefix makes its fills better
    snippet_tokens: int = 0  # tokens of such code beside the prompt; 0: it takes a part of `max_prompt_tokens`
    adds_blank: bool = False  # the tokenizer puts a blank before every text that it encodes (SentencePiece)
    banned_ids: tuple[int, ...] = ()  # special tokens that are never predicted
    canvas_lengths: tuple[int, ...] = (16, 32, 64)
    """Trained canvas lengths, ascending; empty for a model without a canvas."""
    canvas_length: int = 0  # of every canvas, as the user wants it; 0: what the fill needs
    max_prompt_tokens: int = 512  # longest trained prompt
    has_causal_head: bool = True  # the weights also decode autoregressively, with causal attention
    is_shifted: bool = False
    """Logits at a position predict the next token, as in causal models (Dream); the runtime shifts them back."""
    is_drafter: bool = False
    """The canvas begins with the newest token and only drafts: causal passes verify it (Nemotron-Labs-Diffusion)."""
    is_bidirectional: bool = False
    """Trained with bidirectional attention over prompt and canvas; a cached causal prompt is an approximation."""
    languages: tuple[str, ...] = ()  # LSP ids of the languages of its training data; empty: any language
    template: str = ""  # name of a chat template of ours, for an instruct model
    chat_template: ChatTemplate | None = field(default=None, repr=False)
    """The chat template in the file of an instruct model."""
    is_thinking: bool = False  # the chat template makes the model think before it answers
    self_conditioning: SideFile | None = None
    """Weights that feed the last prediction of a canvas into its next pass (DiffusionGemma), or None."""
    gap_lengths: tuple[int, ...] = (4, 8, 16, 32)
    """Gap lengths in tokens that are tried in one pass when the length of the fill is unknown, ascending."""
    expectations: tuple[ExpectedPasses, ...] = ()  # expected passes of the decoders, from the model file
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Further metadata of the file, for `doctor` and `models show`."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt of a fill, code of other places included."""
        return self.max_prompt_tokens + self.snippet_tokens

    @property
    def noise(self) -> str:
        """`mask`, `uniform` or `none`."""
        if self.sampling is None:
            return "none"
        return "mask" if isinstance(self.sampling, MaskSampling) else "uniform"

    def language_problem(self, language_id: str) -> str:
        """Why fills in this language are of no use, with the next step; empty if the model knows the language."""
        from dg_lsp.context.languages import language_of  # numpy, which `--help` does not need

        if not self.languages or not {language_id, language_of(language_id).id}.isdisjoint(self.languages):
            return ""
        known = ", ".join(name.capitalize() for name in self.languages)
        return f"{self.name} knows {known} only; choose another model: dg-lsp setup"

    @property
    def cut(self) -> PromptCut:
        """Of the format of its fill-in-the-middle tokens; without them, at a token boundary.

        A model that does not decode causally has no pass that makes a fill begin with the text that the prompt lacks.
        """
        if not self.has_causal_head or self.prompt_format is PromptFormat.INFILL:
            return PromptCut.CHARACTER
        return self.fim.cut if self.fim and self.prompt_format is PromptFormat.FIM else PromptCut.TOKEN

    @property
    def used_template(self) -> ChatTemplate | None:
        """The chat template that this version uses: ours of this name, else that of the file; None without one."""
        return TEMPLATES.get(self.template) or self.chat_template

    @property
    def follows_instructions(self) -> bool:
        """The model has a chat template that this version uses."""
        return self.used_template is not None

    @property
    def can_think(self) -> bool:
        """The model's chat template has a switch for thinking."""
        return self.used_template is not None and self.used_template.can_think

    @property
    def block_length(self) -> int:
        """See `MaskSampling.block_length`."""
        return self.sampling.block_length if isinstance(self.sampling, MaskSampling) else 0

    @property
    def has_final_canvas(self) -> bool:
        """The text of a canvas is the fill, without verification."""
        return self.sampling is not None and not self.is_drafter

    @property
    def has_free_canvas(self) -> bool:
        """A canvas may stand anywhere and have frozen text behind it."""
        return self.has_final_canvas and not self.block_length

    @property
    def longest_block(self) -> int:
        """Tokens that must fit after the longest prompt."""
        # without a free canvas, a fill takes several canvases, or none
        lengths = self.canvas_lengths or (CAUSAL_BLOCK,)
        return max(lengths if self.has_free_canvas else (CAUSAL_BLOCK, *lengths))

    def canvas_for(self, num_tokens: int) -> int:
        """The shortest canvas length that holds so many tokens, or the longest one."""
        longest = max(self.canvas_lengths, default=CAUSAL_BLOCK)
        return next((length for length in self.canvas_lengths if length >= num_tokens), longest)

    def gaps_within(self, room: int) -> tuple[int, ...]:
        """Gap lengths to try that fit into so many tokens, ascending; where none fits, all of the room, at least 1."""
        return tuple(length for length in self.gap_lengths if length <= room) or (max(1, room),)

    def num_canvases(self, num_candidates: int) -> int:
        """Open canvases that share each pass; with blocks one, because only one of several continues."""
        return 1 if self.block_length else num_candidates


OPTIONS_OF_ALL = ("thinking", "top_k")
"""Sampler options that every model and decoder accepts."""
_OPTIONS_OF_MASKS = ("canvas_length", "max_denoising_steps", "confidence_threshold")


def with_sampler(spec: ModelSpec, options: SamplerOptions) -> ModelSpec:
    """The spec with these options of the user in place of the model's own values.

    Raises:
        OptionError: an option does not apply to the model's family, or has a value that the model does not take.
    """
    values = options.values
    if not values:
        return spec
    for name, value in values.items():
        if reason := _refusal(name, spec):
            raise OptionError(name, f"does not apply to {spec.name}, {reason}: leave it out")
        if problem := _problem(name, value, spec):
            raise OptionError(name, problem)
    sampling = spec.sampling
    if sampling is not None:
        known = {name: value for name, value in values.items() if name in {field.name for field in fields(sampling)}}
        sampling = replace(sampling, **known)
    if isinstance(sampling, UniformSampling):
        if "top_k" in values and not {"top_k_start", "top_k_end"} & values.keys():
            sampling = replace(sampling, top_k_start=0, top_k_end=0)
        if sampling.t_min > sampling.t_max:
            problem = f"{sampling.t_min:g} is above the temperature of the first step, {sampling.t_max:g}: set both"
            raise OptionError("t_min", problem)
        if bool(sampling.top_k_start) != bool(sampling.top_k_end):
            name = "top_k_end" if sampling.top_k_start else "top_k_start"
            raise OptionError(name, "is 0, but the number of tokens changes from one step to the next: set both")
    return replace(
        spec,
        sampling=sampling,
        canvas_length=values.get("canvas_length", spec.canvas_length),
        is_thinking=values.get("thinking", spec.is_thinking),
    )


def _refusal(name: str, spec: ModelSpec) -> str:
    if name == "thinking":
        return "" if spec.can_think else "whose chat template has no thinking"
    if name == "prompt_attention":
        return "" if spec.is_bidirectional else "whose prompt does not see the canvas"
    if name in OPTIONS_OF_ALL:  # without a canvas, and with masks, every token is the best one
        return ""
    if spec.sampling is None:
        return "which has no canvas"
    if spec.is_drafter and name != "canvas_length":
        return "whose canvas only drafts"
    if isinstance(spec.sampling, MaskSampling) and name not in _OPTIONS_OF_MASKS:
        return "which denoises masks"
    return ""


def _problem(name: str, value: Any, spec: ModelSpec) -> str:
    sampling = spec.sampling
    if name == "confidence_threshold" and isinstance(sampling, MaskSampling) and not 0 < value <= 1:
        return f"is a probability for {spec.name}: set it above 0 and to at most 1"
    if name == "canvas_length" and value > spec.longest_block:
        return f"{value} is more than {spec.name} was trained for; choose at most {spec.longest_block}"
    if name == "canvas_length" and spec.block_length not in (0, value):
        return f"does not apply to {spec.name}, which fills blocks of {spec.block_length} tokens: leave it out"
    return ""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete Hugging Face checkpoint directory."""

    folder: Path
    special_ids: frozenset[int]  # non-text tokens
    size_bytes: int  # size of the weights on disk
    num_weights: int  # number of parameters of the text model
    stored_type: str  # `float32`, `float16` or `bfloat16`

    @property
    def description(self) -> str:
        """One phrase for the user."""
        return f"checkpoint of {self.num_weights / 1e9:.2f} B weights in {self.stored_type}"

    def close(self) -> None:
        """Does nothing: no resource is held."""
