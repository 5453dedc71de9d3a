"""What a GGUF file says of itself in its `dg.*` metadata, as a `ModelSpec`.

llama.cpp hands every value over as a string. Nothing is guessed: a model that is asked in the wrong format answers
nonsense, so a key that is missing or odd refuses the file and is named.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.canvas.echo import MIN_MATCH
from dg_lsp.canvas.expectation import Expectation
from dg_lsp.canvas.spec import CAUSAL_BLOCK, FimTokens, MaskSampling, ModelSpec, PromptFormat, SpecialTokens
from dg_lsp.errors import ModelUnsupportedError

VERSION = 1
"""The description format that this release reads."""

CAUSAL_PROMPT = 1024
"""Longest prompt of a causal model: they take far more, but what a keystroke may cost does not."""
DIFFUSION_ARCHITECTURES = ("dream", "llada", "llada-moe", "rnd1", "diffusion-gemma")
"""llama.cpp's own; they say nothing of how they want to be asked."""

PLAN_PREFIX = "dg.plan."

_SHOWN_LENGTH = 200
"""Longer values (chat templates, merges) say nothing at a glance."""


def describe(
    metadata: Mapping[str, str], vocab_size: int, name: str, specials: SpecialTokens | None = None
) -> ModelSpec:
    """The spec of a model from its file's metadata.

    A file that says nothing of diffusion is a causal model, where its vocabulary's special tokens are given.

    Raises:
        ModelUnsupportedError: a `dg.*` key is missing, odd, or asks for what this version cannot do.
    """
    keys = _Keys(metadata, vocab_size, name)
    is_stock = not any(key.startswith("dg.") for key in metadata)
    if is_stock and specials is not None and metadata.get("general.architecture") not in DIFFUSION_ARCHITECTURES:
        return _causal(metadata, vocab_size, name, specials)
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
    banned_ids = keys.banned_tokens("dg.banned_token_ids")
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
        echo_match=keys.echo_match(),
        expectations=keys.expectations(),
        metadata=_rest(metadata),
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
        banned_ids=tuple(sorted({*specials.control_ids} - {*specials.end_ids})),
        canvas_lengths=(),
        max_prompt_tokens=max(1, min(room, CAUSAL_PROMPT)),
        metadata=_rest(metadata),
    )


def _rest(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a person may want to read: no vocabulary, no long texts."""
    return tuple(
        (key, value)
        for key, value in sorted(metadata.items())
        if not key.startswith("tokenizer.") and len(value) <= _SHOWN_LENGTH
    )


@dataclass(frozen=True, slots=True)
class _Keys:
    """Reads one key at a time; every refusal names the model, the key and the way out."""

    metadata: Mapping[str, str]
    vocab_size: int
    name: str

    def refusal(self, problem: str) -> ModelUnsupportedError:
        return ModelUnsupportedError(
            f"model {self.name}: {problem}; use a GGUF that dg-lsp's training wrote, or --model dg-mini"
        )

    def odd(self, key: str, expected: str) -> ModelUnsupportedError:
        return self.refusal(f"{key} must be {expected}, not {self.metadata.get(key, '')!r:.80}")

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if value is None:
            raise self.refusal(f"{key} is missing from its metadata")
        return value.strip()

    def check_version(self) -> None:
        if "dg.version" not in self.metadata:
            architecture = self.metadata.get("general.architecture", "unknown")
            raise self.refusal(f"a {architecture} GGUF that describes no diffusion model: dg.version is missing")
        if self.number("dg.version") != VERSION:
            raise self.odd("dg.version", f"{VERSION} for this version of dg-lsp")

    def only(self, key: str, value: str) -> None:
        if self.text(key) != value:
            raise self.odd(key, f"{value!r} for this version of dg-lsp")

    def flag_if_there(self, key: str) -> None:
        if self.metadata.get(key, "true") not in ("true", "false"):
            raise self.odd(key, "true or false")

    def number(self, key: str) -> int:
        return self._integer(key, self.text(key), "a whole number")

    def _integer(self, key: str, text: str, expected: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise self.odd(key, expected)
        return int(text)

    def count(self, key: str) -> int:
        value = self.number(key)
        if value < 1:
            raise self.odd(key, "at least 1")
        return value

    def share(self, key: str) -> float:
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if not 0.0 < value <= 1.0:
            raise self.odd(key, "a probability above 0 and at most 1")
        return value

    def token(self, key: str) -> int:
        value = self.number(key)
        if value >= self.vocab_size:
            raise self.odd(key, f"a token id under {self.vocab_size}")
        return value

    def _numbers(self, key: str, expected: str) -> tuple[int, ...]:
        text = self.text(key)
        return tuple(self._integer(key, part.strip(), expected) for part in text.split(",")) if text else ()

    def banned_tokens(self, key: str) -> tuple[int, ...]:
        expected = f"token ids under {self.vocab_size}, separated by commas"
        ids = self._numbers(key, expected)
        if any(value >= self.vocab_size for value in ids):
            raise self.odd(key, expected)
        return ids

    def canvas_lengths(self, key: str) -> tuple[int, ...]:
        expected = "ascending lengths from 1, separated by commas"
        lengths = self._numbers(key, expected)
        if not lengths or lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
            raise self.odd(key, expected)
        return lengths

    def echo_match(self) -> int:
        """`dg.echo_match`; 0 where it is missing."""
        if "dg.echo_match" not in self.metadata:
            return 0
        value = self.number("dg.echo_match")
        if 0 < value < MIN_MATCH:
            raise self.odd("dg.echo_match", f"0, or at least {MIN_MATCH} tokens")
        return value

    def expectations(self) -> tuple[Expectation, ...]:
        """Every `dg.plan.KIND.PLAN`: passes of one token, over a guess, over a canvas, and the share of hits."""
        keys = sorted(key for key in self.metadata if key.startswith(PLAN_PREFIX))
        return tuple(self._expectation(key) for key in keys)

    def _expectation(self, key: str) -> Expectation:
        kind, _, plan = key.removeprefix(PLAN_PREFIX).partition(".")
        try:
            singles, checks, canvases, hits = map(float, self.text(key).split(","))
        except ValueError:
            hits = math.nan
        if not (kind and plan and 0 < hits <= 1 and 0 < singles + checks + canvases < math.inf):
            raise self.odd(key, "three mean numbers of passes and a share of hits above 0, separated by commas")
        return Expectation(kind, plan, singles, checks, canvases, hits)
