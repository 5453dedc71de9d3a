"""What a GGUF file says of itself in its `dg.*` metadata, as a `ModelSpec`.

llama.cpp hands every value over as a string. Nothing is guessed: a model that is asked in the wrong format answers
nonsense, so a key that is missing or odd refuses the file and is named.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from dg_lsp.canvas.repetition import MIN_MATCH
from dg_lsp.canvas.spec import (
    CAUSAL_BLOCK,
    Checkpoint,
    DecoderName,
    ExpectedPasses,
    FimTokens,
    MaskSampling,
    ModelSpec,
    PromptFormat,
    SideFile,
    SpecialTokens,
    UniformSampling,
)
from dg_lsp.errors import InputFileError, ModelBrokenError, ModelNotFoundError, ModelUnsupportedError
from dg_lsp.gguf import BF16, F16, F32
from dg_lsp.models.checkpoint import CONTROL, read_checkpoint, read_json, vocabulary
from dg_lsp.models.convert import SamplerDefaults, describe_diffusion
from dg_lsp.models.presets import Family, for_architecture

VERSION = 1
"""The description format that this release reads."""

EXPECTATION_PREFIX = "dg.plan."
_DECODERS = {
    "canvas": (DecoderName.DIFFUSION, 1),
    "race": (DecoderName.DIFFUSION, 2),
    "causal": (DecoderName.AUTOREGRESSIVE, 1),
    "draft-verify": (DecoderName.SPECULATIVE, 1),
    "lookup": (DecoderName.PROMPT_LOOKUP, 1),
}
"""Decoders and numbers of canvases by their names in `dg.plan.*` keys, which files have kept since version 0.1."""

_SHOWN_LENGTH = 200
"""Longer values (chat templates, merges) say nothing at a glance."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Reads one key at a time; every refusal names the model, the key and the way out."""

    metadata: Mapping[str, str]
    vocab_size: int
    name: str
    advice: str = "use a GGUF that dg-lsp's training wrote, or --model dg-mini"
    """How every refusal ends."""

    def refusal(self, problem: str) -> ModelUnsupportedError:
        """The error for a file that cannot be used for this reason."""
        return ModelUnsupportedError(f"model {self.name}: {problem}; {self.advice}")

    def odd(self, key: str, expected: str) -> ModelUnsupportedError:
        """The error for a key whose value is not what it must be."""
        return self.refusal(f"{key} must be {expected}, not {self.metadata.get(key, '')!r:.80}")

    def text(self, key: str) -> str:
        """The value, without space around it."""
        value = self.metadata.get(key)
        if value is None:
            raise self.refusal(f"{key} is missing from its metadata")
        return value.strip()

    def check_version(self) -> None:
        """Refuses a file that does not describe itself, or in a format that this release does not read."""
        if "dg.version" not in self.metadata:
            architecture = self.metadata.get("general.architecture", "unknown")
            raise self.refusal(f"a {architecture} GGUF that describes no diffusion model: dg.version is missing")
        if self.number("dg.version") != VERSION:
            raise self.odd("dg.version", f"{VERSION} for this version of dg-lsp")

    def only(self, key: str, value: str) -> None:
        """Refuses any value but this one."""
        if self.text(key) != value:
            raise self.odd(key, f"{value!r} for this version of dg-lsp")

    def flag_if_there(self, key: str) -> None:
        """Refuses what is neither true nor false."""
        if self.metadata.get(key, "true") not in ("true", "false"):
            raise self.odd(key, "true or false")

    def number(self, key: str) -> int:
        """A whole number from 0."""
        return self._integer(key, self.text(key), "a whole number")

    def _integer(self, key: str, text: str, expected: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise self.odd(key, expected)
        return int(text)

    def count(self, key: str) -> int:
        """A whole number from 1."""
        value = self.number(key)
        if value < 1:
            raise self.odd(key, "at least 1")
        return value

    def share(self, key: str) -> float:
        """A probability above 0."""
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if not 0.0 < value <= 1.0:
            raise self.odd(key, "a probability above 0 and at most 1")
        return value

    def positive(self, key: str) -> float:
        """A finite number above 0."""
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if not 0.0 < value < math.inf:
            raise self.odd(key, "a number above 0")
        return value

    def token(self, key: str) -> int:
        """A token id."""
        value = self.number(key)
        if value >= self.vocab_size:
            raise self.odd(key, f"a token id under {self.vocab_size}")
        return value

    def _numbers(self, key: str, expected: str) -> tuple[int, ...]:
        text = self.text(key)
        return tuple(self._integer(key, part.strip(), expected) for part in text.split(",")) if text else ()

    def tokens(self, key: str) -> tuple[int, ...]:
        """Token ids, none of them where the value is empty."""
        expected = f"token ids under {self.vocab_size}, separated by commas"
        ids = self._numbers(key, expected)
        if any(value >= self.vocab_size for value in ids):
            raise self.odd(key, expected)
        return ids

    def canvas_lengths(self, key: str) -> tuple[int, ...]:
        """Ascending lengths, at least one."""
        expected = "ascending lengths from 1, separated by commas"
        lengths = self._numbers(key, expected)
        if not lengths or lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
            raise self.odd(key, expected)
        return lengths

    def repetition_match(self) -> int:
        """`dg.echo_match`; 0 where it is missing."""
        if "dg.echo_match" not in self.metadata:
            return 0
        value = self.number("dg.echo_match")
        if 0 < value < MIN_MATCH:
            raise self.odd("dg.echo_match", f"0, or at least {MIN_MATCH} tokens")
        return value

    def expectations(self) -> tuple[ExpectedPasses, ...]:
        """Every `dg.plan.KIND.DECODER`: passes of one token, over a draft, over canvases, and the share of hits."""
        keys = sorted(key for key in self.metadata if key.startswith(EXPECTATION_PREFIX))
        return tuple(self._expectation(key) for key in keys if key.rpartition(".")[2] in _DECODERS)

    def _expectation(self, key: str) -> ExpectedPasses:
        kind, _, name = key.removeprefix(EXPECTATION_PREFIX).partition(".")
        try:
            singles, checks, canvases, hits = map(float, self.text(key).split(","))
        except ValueError:
            hits = math.nan
        if not (kind and name and 0 < hits <= 1 and 0 < singles + checks + canvases < math.inf):
            raise self.odd(key, "three mean numbers of passes and a share of hits above 0, separated by commas")
        decoder, num_canvases = _DECODERS[name]
        return ExpectedPasses(kind, decoder, singles, checks, canvases, hits, num_canvases)


def shown_metadata(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a person may want to read: no vocabulary, no long texts."""
    return tuple(
        (key, value)
        for key, value in sorted(metadata.items())
        if not key.startswith("tokenizer.") and len(value) <= _SHOWN_LENGTH
    )


ADVICE = "repack it again with dg-lsp models repack"

_SHA256 = re.compile(r"[0-9a-f]{64}")


def describe_diffusiongemma(metadata: Mapping[str, str], vocab_size: int, name: str) -> ModelSpec:
    """The spec of a file whose noise is uniform.

    Raises:
        ModelUnsupportedError: a `dg.*` key is missing, odd, or asks for what this version cannot do.
    """
    spec = describe_uniform(metadata, vocab_size, name)
    return replace(spec, self_conditioning=_side_file(Keys(metadata, vocab_size, name, ADVICE)))


def describe_uniform(metadata: Mapping[str, str], vocab_size: int, name: str) -> ModelSpec:
    """The same without a side file: where the weights feed back by themselves.

    Raises:
        ModelUnsupportedError: as `describe_diffusiongemma`.
    """
    keys = Keys(metadata, vocab_size, name, ADVICE)
    keys.check_version()
    keys.only("dg.noise", "uniform")
    keys.only("dg.prompt_format", PromptFormat.INSTRUCT)
    end_ids, banned_ids = keys.tokens("dg.end_token_ids"), keys.tokens("dg.banned_token_ids")
    if not end_ids or {*end_ids} & {*banned_ids}:
        raise keys.refusal("dg.end_token_ids names no token, or one that dg.banned_token_ids bans")
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=_sampling(keys),
        end_ids=end_ids,
        prompt_format=PromptFormat.INSTRUCT,
        banned_ids=banned_ids,
        canvas_lengths=keys.canvas_lengths("dg.canvas_lengths"),
        max_prompt_tokens=keys.count("dg.max_prompt_tokens"),
        # the encoder that reads the prompt is causal, but was never asked what comes next
        has_causal_head=False,
        template=keys.text("dg.template"),
        metadata=shown_metadata(metadata),
    )


def _sampling(keys: Keys) -> UniformSampling:
    t_max, t_min = keys.positive("dg.t_max"), keys.positive("dg.t_min")
    if t_min > t_max:
        raise keys.odd("dg.t_min", f"at most dg.t_max, {t_max:g}")
    return UniformSampling(
        entropy_bound=keys.positive("dg.entropy_bound"),
        t_max=t_max,
        t_min=t_min,
        max_denoising_steps=keys.count("dg.max_denoising_steps"),
        stability_threshold=keys.number("dg.stability_threshold"),
        confidence_threshold=keys.positive("dg.stop_confidence"),
    )


def _side_file(keys: Keys) -> SideFile:
    filename, sha256 = keys.text("dg.self_conditioning"), keys.text("dg.self_conditioning.sha256")
    # it lies beside the model; a path that leads elsewhere is not ours
    if not filename or {*filename} & {"/", "\\", "\0"} or filename in (".", ".."):
        raise keys.odd("dg.self_conditioning", "the name of a file beside the model")
    if not _SHA256.fullmatch(sha256):
        raise keys.odd("dg.self_conditioning.sha256", "64 hexadecimal digits")
    return SideFile(filename, sha256)


RELABELLED_FROM = "general.relabelled_from"
"""The architecture of a file that is run as another one."""
_MASK = "tokenizer.ggml.mask_token_id"
_SHIFT = "diffusion.shift_logits"
_START = "tokenizer.ggml.bos_token_id"
_STARTED = "dream"
"""An architecture whose authors begin every text with its first token, whatever the tokenizer's settings say."""


def describe_masked(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens
) -> ModelSpec | None:
    """The spec of a masked diffusion model; None for every other model.

    Raises:
        ModelUnsupportedError: the vocabulary has no mask.
    """
    family = _family(metadata, name)
    if family is None or not isinstance(family.sampling, MaskSampling):
        return None
    sampling = _sampling_masked(family.sampling, metadata, vocab_size, name)
    is_special = {sampling.expand_id, sampling.delete_id}
    end_ids = {*specials.end_ids, *(token for token in family.end_ids if token < vocab_size)}
    end_ids -= is_special  # what goes away ends nothing
    shift = metadata.get(_SHIFT)
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=sampling,
        end_ids=tuple(sorted(end_ids)),
        prompt_format=family.prompt_format,
        start_ids=specials.start_ids or _usual_start(family, metadata),
        banned_ids=tuple(sorted({*specials.control_ids, sampling.mask_id} - end_ids - is_special)),
        canvas_lengths=family.canvas_lengths,
        max_prompt_tokens=_prompt_tokens(family, metadata),
        has_causal_head=False,
        is_shifted=family.is_shifted if shift is None else shift == "true",
        is_bidirectional=True,
        template=family.template,
        gap_lengths=family.gap_lengths,
        metadata=shown_metadata(metadata),
    )


def _family(metadata: Mapping[str, str], name: str) -> Family | None:
    """By what the file calls itself, else by what it is called."""
    architecture = metadata.get(RELABELLED_FROM) or metadata.get("general.architecture", "")
    return for_architecture(architecture, f"{metadata.get('general.name', '')} {name}")


def _usual_start(family: Family, metadata: Mapping[str, str]) -> tuple[int, ...]:
    """As in DreamOn's `eval/generator.py`, which fills with Dream-Coder as well."""
    said = metadata.get(_START, "")
    return (int(said),) if family.architecture == _STARTED and said.isascii() and said.isdigit() else ()


def _sampling_masked(usual: MaskSampling, metadata: Mapping[str, str], vocab_size: int, name: str) -> MaskSampling:
    said = metadata.get(_MASK, "")
    mask_id = int(said) if said.isascii() and said.isdigit() else usual.mask_id
    if mask_id >= vocab_size:
        raise ModelUnsupportedError(
            f"model {name}: no mask {mask_id} in a vocabulary of {vocab_size}; convert it again with its own tokenizer"
        )
    can_resize = max(usual.expand_id or 0, usual.delete_id or 0) < vocab_size
    return replace(
        usual,
        mask_id=mask_id,
        expand_id=usual.expand_id if can_resize else None,
        delete_id=usual.delete_id if can_resize else None,
    )


def _prompt_tokens(family: Family, metadata: Mapping[str, str]) -> int:
    """What is recommended, and no more than was trained for."""
    architecture = metadata.get("general.architecture", "")
    trained = metadata.get(f"{architecture}.context_length", "")
    if not (trained.isascii() and trained.isdigit()):
        return family.max_prompt_tokens
    return max(1, min(family.max_prompt_tokens, int(trained) - 2 * family.canvas_lengths[-1]))


CAUSAL_PROMPT = 1024
"""Longest prompt of a causal model: they take far more, but what a keystroke may cost does not."""
UNPACKED = "diffusion-gemma"
"""The architecture of files that have to be repacked before they describe themselves."""


def describe(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens | None = None
) -> ModelSpec:
    """The spec of a model from its file's metadata.

    Where its vocabulary's special tokens are given, a file that says nothing of diffusion is a masked diffusion model
    if its architecture and name are known as one's, else a causal model.

    Raises:
        ModelUnsupportedError: a `dg.*` key is missing, odd, or asks for what this version cannot do.
    """
    keys = Keys(metadata, vocab_size, name)
    is_stock = not any(key.startswith("dg.") for key in metadata)
    if is_stock and specials is not None:
        if masked := describe_masked(metadata, vocab_size, name, specials):
            return masked
        if metadata.get("general.architecture") != UNPACKED:
            return _causal(metadata, vocab_size, name, specials)
    if metadata.get("dg.noise") == "uniform":
        return describe_diffusiongemma(metadata, vocab_size, name)
    keys.check_version()
    keys.only("dg.noise", "mask")
    keys.only("dg.prompt_format", PromptFormat.FIM)
    keys.flag_if_there("dg.causal")
    mask_id, end_id = keys.token("dg.mask_token_id"), keys.token("dg.end_token_id")
    fim = FimTokens(
        prefix_id=keys.token("dg.prefix_token_id"),
        suffix_id=keys.token("dg.suffix_token_id"),
        middle_id=keys.token("dg.middle_token_id"),
    )
    named = (mask_id, end_id, fim.prefix_id, fim.suffix_id, fim.middle_id)
    if len(set(named)) != len(named):
        raise keys.refusal("its mask, end and fill-in-the-middle tokens are not all different")
    banned_ids = keys.tokens("dg.banned_token_ids")
    if end_id in banned_ids:
        raise keys.refusal("dg.banned_token_ids bans the end token, so a fill could never end")
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=MaskSampling(
            mask_id=mask_id,
            confidence_threshold=keys.share("dg.confidence_threshold"),
            max_denoising_steps=keys.count("dg.max_denoising_steps"),
        ),
        end_ids=(end_id,),
        prompt_format=PromptFormat.FIM,
        fim=fim,
        # a mask that is predicted would stay a mask for ever, whatever the file says of it
        banned_ids=tuple(sorted({*banned_ids, mask_id})),
        canvas_lengths=keys.canvas_lengths("dg.canvas_lengths"),
        max_prompt_tokens=keys.count("dg.max_prompt_tokens"),
        has_causal_head=metadata.get("dg.causal") == "true",
        repetition_match=keys.repetition_match(),
        expectations=keys.expectations(),
        metadata=shown_metadata(metadata),
    )


def _causal(metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens) -> ModelSpec:
    """Any language model: decoded token by token, in the middle where its vocabulary has the sentinels for it."""
    architecture = metadata.get("general.architecture", "")
    trained = metadata.get(f"{architecture}.context_length", "")
    room = int(trained) - 2 * CAUSAL_BLOCK if trained.isascii() and trained.isdigit() else CAUSAL_PROMPT
    return ModelSpec(
        name=name,
        vocab_size=vocab_size,
        sampling=None,
        end_ids=specials.end_ids,
        prompt_format=PromptFormat.FIM if specials.fim else PromptFormat.PREFIX,
        fim=specials.fim,
        start_ids=specials.start_ids,
        file_separator_id=specials.file_separator_id,
        banned_ids=tuple(sorted({*specials.control_ids} - {*specials.end_ids})),
        canvas_lengths=(),
        max_prompt_tokens=max(1, min(room, CAUSAL_PROMPT)),
        metadata=shown_metadata(metadata),
    )


CONFIGURATION = "config.json"
"""What makes a directory a checkpoint."""
MODEL_TYPE = "diffusion_gemma"
_EMBEDDING = "model.decoder.embed_tokens.weight"
_IGNORED = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
_MATRICES = ("_proj.weight", "experts.gate_up_proj", "experts.down_proj")
_STORED = {F32: "float32", F16: "float16", BF16: "bfloat16"}


def read_folder(folder: Path, name: str = "") -> tuple[Checkpoint, ModelSpec]:
    """Reads configuration, vocabulary and the weights' headers; without a name the folder's is the model's.

    Raises:
        ModelNotFoundError: the directory holds no checkpoint.
        ModelBrokenError: a file is missing, damaged or cut short.
        ModelUnsupportedError: another model, or odd settings.
    """
    if not (folder / CONFIGURATION).is_file():
        raise ModelNotFoundError(
            f"{folder} is a directory without {CONFIGURATION}: name a GGUF file, or the directory of a checkpoint"
        )
    try:
        return _read(folder, name or folder.resolve().name)
    except InputFileError as error:
        raise ModelBrokenError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelUnsupportedError(
            f"{folder}: its configuration or tokenizer is none of {MODEL_TYPE} ({error}): download it again"
        ) from error


def _read(folder: Path, name: str) -> tuple[Checkpoint, ModelSpec]:
    config = read_json(folder / CONFIGURATION)
    if config.get("model_type") != MODEL_TYPE:
        raise ModelUnsupportedError(
            f"{folder} holds a {config.get('model_type', 'model')} checkpoint: transformers runs {MODEL_TYPE} here, "
            "other models are used as GGUF files"
        )
    saved = read_checkpoint(folder)
    if _EMBEDDING not in saved:
        raise ModelBrokenError(f"{folder} holds no {_EMBEDDING}: download it again")
    spec, special_ids = _described(folder, name, config)
    texts = [tensor for tensor in saved.values() if not tensor.name.startswith(_IGNORED)]
    checkpoint = Checkpoint(
        folder=folder,
        special_ids=special_ids,
        size_bytes=sum(path.stat().st_size for path in {tensor.path for tensor in saved.values()}),
        num_weights=_count(texts),
        num_vectors=_count(tensor for tensor in texts if not tensor.name.endswith(_MATRICES)),
        stored_type=_STORED[saved[_EMBEDDING].kind],
    )
    return checkpoint, spec


def _count(tensors: Any) -> int:
    return sum(prod(tensor.shape) for tensor in tensors)


def _described(folder: Path, name: str, config: Mapping[str, Any]) -> tuple[ModelSpec, frozenset[int]]:
    text = config["text_config"]
    vocab_size = int(text["vocab_size"])
    found = vocabulary(read_json(folder / "tokenizer.json"), vocab_size)
    tokens, kinds = (found[f"tokenizer.ggml.{key}"].read() for key in ("tokens", "token_type"))
    assert isinstance(tokens, list) and isinstance(kinds, list)
    generation = folder / "generation_config.json"
    sampler = SamplerDefaults.of(read_json(generation)) if generation.is_file() else SamplerDefaults()
    length, room = int(config.get("canvas_length") or 256), int(text["max_position_embeddings"])
    values = describe_diffusion(sampler, [str(token) for token in tokens], [int(kind) for kind in kinds], length, room)
    metadata = {key: str(value.read()) for key, value in values.items()}
    spec = describe_uniform(metadata, vocab_size, name)
    control = {i for i, kind in enumerate(kinds) if kind == CONTROL}
    return spec, frozenset({*control, *spec.banned_ids, *spec.end_ids})
