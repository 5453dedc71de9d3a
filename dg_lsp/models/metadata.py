"""A `ModelSpec` from the metadata of a GGUF file, or from a checkpoint folder.

llama.cpp returns every metadata value as a string. A missing or invalid `dg.*` key is an error that names the key: with
a wrong prompt format, a model returns nonsense.
"""

import contextlib
import math
import re
import sys
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from dg_lsp.canvas.chat_template import ChatTemplate
from dg_lsp.canvas.fim import find_fim
from dg_lsp.canvas.spec import (
    CAUSAL_BLOCK,
    Checkpoint,
    DecoderName,
    ExpectedPasses,
    FimTokens,
    MaskSampling,
    ModelSpec,
    PromptCut,
    PromptFormat,
    SideFile,
    SpecialTokens,
    UniformSampling,
)
from dg_lsp.errors import InputFileError, ModelError, ModelUnsupportedError, escaped
from dg_lsp.gguf import BF16, F16, F32
from dg_lsp.models.checkpoint import (
    CONTROL,
    DAMAGE,
    DIFFUSION_ARCHITECTURE,
    EMBEDDING,
    MODEL_TYPE,
    name_of,
    read_checkpoint,
    read_json,
    read_vocabulary,
)
from dg_lsp.models.registry import CONFIGURATION, MINI, Family, find_family

MAX_CAUSAL_PROMPT_TOKENS = 1024
"""Longest prompt of a causal model: the context would hold more, but a completion has to stay fast."""

_SNIPPET_TOKENS = 256
"""Tokens of code of other places in a prompt of dg-base: one window. A second one gains less than it costs."""
_MAX_DISPLAYED_LENGTH = 200
_BLOCK_LENGTH = re.compile(r"(?i)\bSDAR\b.*?[-_ ]b(4|8|16|32|64)\b")
"""SDAR's names end with the length of their blocks, if it is not 4."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TRAINED_ADVICE = "use a GGUF that dg-lsp's training wrote, or --model dg-mini"
_CONVERTED_ADVICE = "convert it again with dg-lsp models convert"


def describe(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens | None = None
) -> ModelSpec:
    """The spec of a model from its file's metadata.

    With `specials`, a file without `dg.*` keys is a masked diffusion model if its architecture and name are those of a
    known family, and a causal model otherwise.

    Raises ModelUnsupportedError: a `dg.*` key is missing, invalid, or not supported by this version.
    """
    keys = MetadataKeys(metadata, vocab_size, name, _TRAINED_ADVICE)
    if specials is not None and not any(key.startswith("dg.") for key in metadata):
        family = find_family(keys.architecture, f"{metadata.get('general.name', '')} {name}")
        if family is not None and isinstance(family.sampling, MaskSampling):
            return _describe_masked(keys, specials, family, family.sampling)
        if keys.architecture != DIFFUSION_ARCHITECTURE:
            return _describe_causal(keys, specials, find_fim(metadata, name, specials))
    if metadata.get("dg.noise") == "uniform":
        keys = replace(keys, advice=_CONVERTED_ADVICE)
        return replace(_describe_uniform(keys), self_conditioning=_side_file(keys))
    return _describe_trained(keys)


def _displayed(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The keys that `models show` prints, escaped: no vocabulary, no chat template."""
    return tuple(
        (escaped(key), escaped(value))
        for key, value in sorted(metadata.items())
        if not key.startswith("tokenizer.") and len(value) <= _MAX_DISPLAYED_LENGTH
    )


def _describe_trained(keys: "MetadataKeys") -> ModelSpec:
    """The spec of a file that dg-lsp's training wrote, such as dg-mini."""
    has_canvas = keys.metadata.get("dg.noise") != "none"  # else only its causal passes are trained
    keys.check_version("mask" if has_canvas else "none", PromptFormat.FIM)
    mask_id, end_id = keys.token("dg.mask_token_id"), keys.token("dg.end_token_id")
    fim = FimTokens(
        prefix_id=keys.token("dg.prefix_token_id"),
        suffix_id=keys.token("dg.suffix_token_id"),
        middle_id=keys.token("dg.middle_token_id"),
        family="dg-mini",
        evidence="metadata",
        cut=PromptCut(keys.choice("dg.cut", tuple(PromptCut), PromptCut.CHARACTER)),
    )
    banned_ids = keys.tokens("dg.banned_token_ids")
    if end_id in banned_ids:
        raise keys.error("dg.banned_token_ids bans the end token, so a completion could never end")
    sampling = None
    if has_canvas:
        sampling = MaskSampling(
            mask_id=mask_id,
            confidence_threshold=keys.positive("dg.confidence_threshold", 1.0),
            max_denoising_steps=keys.number("dg.max_denoising_steps", 1),
        )
    max_prompt_tokens = keys.number("dg.max_prompt_tokens", 1)
    snippet_tokens = 0
    if not has_canvas:  # the weights that it was made from know longer contexts than the prompts of its training
        longest = keys.prompt_limit(max_prompt_tokens + _SNIPPET_TOKENS, CAUSAL_BLOCK)
        snippet_tokens = max(0, longest - max_prompt_tokens)
    return ModelSpec(
        name=keys.name,
        vocab_size=keys.vocab_size,
        sampling=sampling,
        end_ids=(end_id,),
        prompt_format=PromptFormat.FIM,
        fim=fim,
        # a predicted mask would stay a mask for ever, so the mask is always banned
        banned_ids=tuple(sorted({*banned_ids, mask_id})),
        canvas_lengths=keys.canvas_lengths() if has_canvas else (),
        max_prompt_tokens=max_prompt_tokens,
        has_causal_head=not has_canvas or keys.flag("dg.causal"),
        is_shifted=keys.flag("dg.shift"),
        start_ids=keys.tokens("dg.start_token_ids") if "dg.start_token_ids" in keys.metadata else (),
        takes_snippets=snippet_tokens > 0 or keys.flag("dg.snippets"),
        snippet_tokens=snippet_tokens,
        languages=keys.languages() if has_canvas else (),  # adapted weights know further languages (docs/log.md)
        expectations=keys.expectations(),
        metadata=_displayed(keys.metadata),
    )


def _describe_uniform(keys: "MetadataKeys") -> ModelSpec:
    """The spec of a DiffusionGemma without its side file, for runtimes that do the self-conditioning themselves."""
    keys.check_version("uniform", PromptFormat.INSTRUCT)
    end_ids, banned_ids = keys.tokens("dg.end_token_ids"), keys.tokens("dg.banned_token_ids")
    t_max = keys.positive("dg.t_max")
    if not end_ids or {*end_ids} & {*banned_ids}:
        raise keys.error("dg.end_token_ids names no token, or one that dg.banned_token_ids bans")
    return ModelSpec(
        name=keys.name,
        vocab_size=keys.vocab_size,
        sampling=UniformSampling(
            entropy_bound=keys.positive("dg.entropy_bound"),
            t_max=t_max,
            t_min=keys.positive("dg.t_min", maximum=t_max),
            max_denoising_steps=keys.number("dg.max_denoising_steps", 1),
            stability_threshold=keys.number("dg.stability_threshold"),
            confidence_threshold=keys.positive("dg.stop_confidence"),
        ),
        end_ids=end_ids,
        prompt_format=PromptFormat.INSTRUCT,
        banned_ids=banned_ids,
        canvas_lengths=keys.canvas_lengths(),
        max_prompt_tokens=keys.number("dg.max_prompt_tokens", 1),
        # the encoder of the prompt is causal, but is not trained to predict the next token
        has_causal_head=False,
        template=keys.read("dg.template", str),
        metadata=_displayed(keys.metadata),
    )


def _side_file(keys: "MetadataKeys") -> SideFile:
    # the side file lies beside the model: a path into another folder is refused
    filename = keys.read("dg.self_conditioning", str, lambda name: not {*name} & {*"/\\\0"} and name.strip("."))
    return SideFile(filename, keys.read("dg.self_conditioning.sha256", str, _SHA256.fullmatch))


def _describe_masked(
    keys: "MetadataKeys", specials: SpecialTokens, family: Family, defaults: MaskSampling
) -> ModelSpec:
    """The spec of a masked diffusion model of a known family, from that of a causal model with the same file."""
    metadata = keys.metadata
    sampling = _mask_sampling(keys, defaults)
    length = _BLOCK_LENGTH.search(f"{keys.name} {metadata.get('general.name', '')}")
    if sampling.block_length and length:
        sampling = replace(sampling, block_length=int(length[1]))
    is_bidirectional = not (sampling.block_length or family.is_drafter)
    fim = None if is_bidirectional else find_fim(metadata, keys.name, specials)
    causal = _describe_causal(keys, specials, fim)
    resizing_ids = {sampling.expand_id, sampling.delete_id}
    end_ids = {*causal.end_ids, *(token for token in family.end_ids if token < keys.vocab_size)}
    end_ids -= resizing_ids  # a deleted token does not end the text
    shift = metadata.get("diffusion.shift_logits")
    # every text of Dream starts with its first token: DreamOn's `eval/generator.py` adds it
    first = parse_number(metadata.get("tokenizer.ggml.bos_token_id", "")) if family.architecture == "dream" else None
    return replace(
        causal,
        sampling=sampling,
        end_ids=tuple(sorted(end_ids)),
        prompt_format=family.prompt_format if fim or is_bidirectional else PromptFormat.PREFIX,
        start_ids=causal.start_ids or (() if first is None or first >= keys.vocab_size else (first,)),
        banned_ids=tuple(sorted({*causal.banned_ids, sampling.mask_id} - end_ids - resizing_ids)),
        canvas_lengths=(sampling.block_length,) if sampling.block_length else family.canvas_lengths,
        max_prompt_tokens=keys.prompt_limit(family.max_prompt_tokens, max(CAUSAL_BLOCK, family.canvas_lengths[-1])),
        has_causal_head=family.is_drafter,
        is_shifted=family.is_shifted if shift is None else shift == "true",
        is_drafter=family.is_drafter,
        is_bidirectional=is_bidirectional,
        template=family.template,
        gap_lengths=family.gap_lengths,
    )


def _mask_sampling(keys: "MetadataKeys", defaults: MaskSampling) -> MaskSampling:
    file_mask_id = parse_number(keys.metadata.get("tokenizer.ggml.mask_token_id", ""))
    mask_id = defaults.mask_id if file_mask_id is None else file_mask_id
    if mask_id >= keys.vocab_size:
        problem = f"no mask {mask_id} in a vocabulary of {keys.vocab_size}"
        raise replace(keys, advice="convert it again with its own tokenizer").error(problem)
    can_resize = max(defaults.expand_id or 0, defaults.delete_id or 0) < keys.vocab_size
    return replace(
        defaults,
        mask_id=mask_id,
        expand_id=defaults.expand_id if can_resize else None,
        delete_id=defaults.delete_id if can_resize else None,
    )


def _describe_causal(keys: "MetadataKeys", specials: SpecialTokens, fim: FimTokens | None) -> ModelSpec:
    """The spec of a causal language model; it fills the middle if its vocabulary has the tokens for that."""
    metadata = keys.metadata
    end_ids = {*specials.end_ids, *(fim.end_ids if fim else ())}
    is_sentencepiece = metadata.get("tokenizer.ggml.model") == "llama"
    return ModelSpec(
        name=keys.name,
        vocab_size=keys.vocab_size,
        sampling=None,
        end_ids=tuple(sorted(end_ids)),
        prompt_format=PromptFormat.FIM if fim else PromptFormat.PREFIX,
        fim=fim,
        start_ids=specials.start_ids,
        adds_blank=is_sentencepiece and metadata.get("tokenizer.ggml.add_space_prefix") != "false",
        banned_ids=tuple(sorted({*specials.control_ids} - end_ids)),
        canvas_lengths=(),
        max_prompt_tokens=keys.prompt_limit(MAX_CAUSAL_PROMPT_TOKENS, CAUSAL_BLOCK),
        chat_template=_chat_template(metadata, keys.name, specials),
        metadata=_displayed(metadata),
    )


_INSTRUCT_NAME = re.compile(r"(?<![a-z])(instruct|it|chat|sft|dpo|rlhf|assistant)(?![a-z])|instruct", re.IGNORECASE)
_BASE_NAME = re.compile(r"(?<![a-z])(base|pt|pretrained|foundation)(?![a-z])", re.IGNORECASE)
_BASE_FAMILY = re.compile(r"qwen-?_?(1\.5|2(\.5)?)(?![0-9])|gemma|starcoder|mellum", re.IGNORECASE)
"""Families whose models are base models unless their name says otherwise; files of Qwen2.5's base models have a chat
template, too."""


def _chat_template(metadata: Mapping[str, str], name: str, specials: SpecialTokens) -> ChatTemplate | None:
    """The file's chat template, unless the file's names are those of a base model."""
    source = metadata.get("tokenizer.chat_template", "")
    names = " ".join((*(metadata.get(f"general.{key}", "") for key in ("name", "finetune", "basename")), name))
    is_base = _BASE_NAME.search(names) or _BASE_FAMILY.search(names)
    if not source.strip() or (is_base and not _INSTRUCT_NAME.search(names)):
        return None
    spellings = {str(token): spelling for spelling, token in specials.spellings.items()}
    bos, eos = (spellings.get(metadata.get(f"tokenizer.ggml.{kind}_token_id", ""), "") for kind in ("bos", "eos"))
    return ChatTemplate(source, bos, eos)


_VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_STORED_TYPES = {F32: "float32", F16: "float16", BF16: "bfloat16"}


def read_folder(folder: Path, name: str = "") -> tuple[Checkpoint, ModelSpec]:
    """Reads the configuration, vocabulary and weight headers of a checkpoint; `name` defaults to the folder's name.

    Raises:
        ModelError: a file is missing, damaged or cut short.
        ModelUnsupportedError: another kind of model, or invalid settings.
    """
    try:
        return _read_folder(folder, name or name_of(folder))
    except InputFileError as error:
        raise ModelError(str(error)) from error
    except DAMAGE as error:
        problem = f"{folder}: its configuration or tokenizer is not that of a {MODEL_TYPE} ({error})"
        raise ModelUnsupportedError(f"{problem}: download it again") from error


def _read_folder(folder: Path, name: str) -> tuple[Checkpoint, ModelSpec]:
    config = read_json(folder / CONFIGURATION)
    if config.get("model_type") != MODEL_TYPE:
        problem = f"{folder} holds a {config.get('model_type', 'model')} checkpoint, which is used as a GGUF file"
        raise ModelUnsupportedError(f"{problem}: run dg-lsp models convert {folder}")
    saved = read_checkpoint(folder)
    if EMBEDDING not in saved:
        raise ModelError(f"{folder} holds no {EMBEDDING}: download it again")
    values = read_vocabulary(folder, config)
    metadata = {key: str(value.read()) for key, value in values.items() if key.startswith("dg.")}
    kinds = values["tokenizer.ggml.token_type"].read()
    assert isinstance(kinds, list)
    spec = _describe_uniform(MetadataKeys(metadata, len(kinds), name, _CONVERTED_ADVICE))
    control_ids = {token for token, kind in enumerate(kinds) if kind == CONTROL}
    text_tensors = [tensor for tensor in saved.values() if not tensor.name.startswith(_VISION)]
    checkpoint = Checkpoint(
        folder=folder,
        special_ids=frozenset({*control_ids, *spec.banned_ids, *spec.end_ids}),
        size_bytes=sum(path.stat().st_size for path in {tensor.path for tensor in saved.values()}),
        num_weights=sum(math.prod(tensor.shape) for tensor in text_tensors),
        stored_type=_STORED_TYPES[saved[EMBEDDING].kind],
    )
    return checkpoint, spec


# single keys

_VERSION = 1  # the version of the `dg.*` keys that this release reads
_EXPECTATION_PREFIX = "dg.plan."
_PLAN_DECODERS = {
    "canvas": DecoderName.DIFFUSION,
    "causal": DecoderName.AUTOREGRESSIVE,
    "draft-verify": DecoderName.SPECULATIVE,
    "lookup": DecoderName.PROMPT_LOOKUP,
}
"""Decoders by their names in the `dg.plan.*` keys of a file."""
_LANGUAGE_ID = re.compile(r"[a-z][a-z0-9.+#_-]*")
Item = TypeVar("Item")


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas; none in an empty text."""
    return tuple(map(int, text.split(","))) if text else ()


@dataclass(frozen=True, slots=True)
class MetadataKeys:
    """Reads and checks single keys. Every error names the model, the key and a remedy."""

    metadata: Mapping[str, str]
    vocab_size: int
    name: str
    advice: str  # the end of every error message

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, or the empty string."""
        return self.metadata.get("general.architecture", "")

    def prompt_limit(self, recommended: int, block_length: int) -> int:
        """The recommended longest prompt in tokens, within the context that the model was trained with."""
        trained = parse_number(self.metadata.get(f"{self.architecture}.context_length", ""))
        return recommended if trained is None else max(1, min(recommended, trained - 2 * block_length))

    def error(self, problem: str) -> ModelUnsupportedError:
        """An error with the model's name and the remedy."""
        return ModelUnsupportedError(f"model {self.name}: {problem}; {self.advice}")

    def read(self, key: str, parse: Callable[[str], Item], is_valid: Callable[[Item], object] = lambda _: True) -> Item:
        """What `parse` makes of the value. Raises `ModelUnsupportedError`, as all methods do.

        A missing value is an error too, and one for which `parse` or `is_valid` raises ValueError or TypeError.
        """
        text = self.metadata.get(key)
        with contextlib.suppress(ValueError, TypeError):
            if text is not None and is_valid(value := parse(text.strip())):
                return value
        problem = "missing" if text is None else f"{text!r:.80}, which this version of dg-lsp cannot use"
        raise self.error(f"{key} is {problem}")

    def choice(self, key: str, words: Container[str], default: str | None = None) -> str:
        """One of the words; the default if the key is missing and there is a default."""
        if default is not None and key not in self.metadata:
            return default
        return self.read(key, str, words.__contains__)

    def flag(self, key: str) -> bool:
        """False if the key is missing."""
        return self.choice(key, ("true", "false"), "false") == "true"

    def number(self, key: str, minimum: int = 0) -> int:
        """A whole number of at least `minimum`."""
        return self.read(key, int, lambda value: value >= minimum)

    def positive(self, key: str, maximum: float = sys.float_info.max) -> float:
        """A number above 0 and at most `maximum`."""
        return self.read(key, float, lambda value: 0 < value <= maximum)

    def token(self, key: str) -> int:
        """A token id."""
        return self.read(key, int, range(self.vocab_size).__contains__)

    def tokens(self, key: str) -> tuple[int, ...]:
        """Token ids; none if the value is empty."""
        return self.read(key, _numbers, lambda ids: all(token in range(self.vocab_size) for token in ids))

    def canvas_lengths(self) -> tuple[int, ...]:
        """`dg.canvas_lengths`, ascending."""
        return self.read(
            "dg.canvas_lengths", _numbers, lambda lengths: min(lengths) >= 1 and list(lengths) == sorted({*lengths})
        )

    def check_version(self, noise: str, prompt_format: PromptFormat) -> None:
        """Refuses files for other versions, noise or prompt formats."""
        if "dg.version" not in self.metadata:
            problem = "GGUF that describes no diffusion model: dg.version is missing"
            raise self.error(f"a {self.architecture or 'unknown'} {problem}")
        for key, value in (("version", str(_VERSION)), ("noise", noise), ("prompt_format", prompt_format)):
            self.choice(f"dg.{key}", (value,))

    def languages(self) -> tuple[str, ...]:
        """The ids in `dg.languages`; without this key, Python where `general.name` is dg-mini, else none."""
        if "dg.languages" not in self.metadata:
            return ("python",) if self.metadata.get("general.name") == MINI else ()
        return self.read(
            "dg.languages",
            lambda text: tuple(name.strip() for name in text.split(",")),
            lambda names: all(map(_LANGUAGE_ID.fullmatch, names)),
        )

    def expectations(self) -> tuple[ExpectedPasses, ...]:
        """One entry for each `dg.plan.KIND.DECODER`; unknown decoders are left out."""
        keys = sorted(key for key in self.metadata if key.startswith(_EXPECTATION_PREFIX))
        return tuple(self._expectation(key) for key in keys if key.rpartition(".")[2] in _PLAN_DECODERS)

    def _expectation(self, key: str) -> ExpectedPasses:
        kind, _, name = key.removeprefix(_EXPECTATION_PREFIX).rpartition(".")
        return self.read(
            key,
            lambda text: ExpectedPasses(kind, _PLAN_DECODERS[name], *map(float, text.split(","))),
            lambda row: bool(kind) and 0 < row.hits <= 1 and 0 < row.singles + row.checks + row.canvases < math.inf,
        )


def parse_number(text: str) -> int | None:
    """A whole number from 0 in ASCII digits; None for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
