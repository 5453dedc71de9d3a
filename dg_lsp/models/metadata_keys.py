"""The `dg.*` keys of a GGUF file, read and checked one by one.

llama.cpp returns every metadata value as a string.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.canvas.spec import MIN_MATCH, DecoderName, ExpectedPasses, PromptCut, PromptFormat
from dg_lsp.errors import ModelUnsupportedError
from dg_lsp.models.registry import MINI, MINI_LANGUAGES

VERSION = 1
"""The version of the `dg.*` keys that this release reads."""
_EXPECTATION_PREFIX = "dg.plan."
PLAN_DECODERS = {
    "canvas": (DecoderName.DIFFUSION, 1),
    "race": (DecoderName.DIFFUSION, 2),
    "causal": (DecoderName.AUTOREGRESSIVE, 1),
    "draft-verify": (DecoderName.SPECULATIVE, 1),
    "lookup": (DecoderName.PROMPT_LOOKUP, 1),
}
"""Decoder and number of canvases by their names in the `dg.plan.*` keys of a file."""
_LANGUAGE_ID = re.compile(r"[a-z][a-z0-9.+#_-]*")


@dataclass(frozen=True, slots=True)
class MetadataKeys:
    """Reads and checks single keys. Every error names the model, the key and a remedy."""

    metadata: Mapping[str, str]
    vocab_size: int
    name: str
    advice: str  # the end of every error message

    def error(self, problem: str) -> ModelUnsupportedError:
        """An error with the model's name and the remedy."""
        return ModelUnsupportedError(f"model {self.name}: {problem}; {self.advice}")

    def invalid(self, key: str, expected: str) -> ModelUnsupportedError:
        """The error for a bad value of a key."""
        return self.error(f"{key} must be {expected}, not {self.metadata.get(key, '')!r:.80}")

    def text(self, key: str) -> str:
        """The value; raises `ModelUnsupportedError` if there is none, as all methods do for bad values."""
        value = self.metadata.get(key)
        if value is None:
            raise self.error(f"{key} is missing from its metadata")
        return value.strip()

    def check_version(self, noise: str, prompt_format: PromptFormat) -> None:
        """Refuses files for other versions, noise or prompt formats."""
        if "dg.version" not in self.metadata:
            architecture = self.metadata.get("general.architecture", "unknown")
            raise self.error(f"a {architecture} GGUF that describes no diffusion model: dg.version is missing")
        for key, value in (("version", str(VERSION)), ("noise", noise), ("prompt_format", prompt_format)):
            if self.text(f"dg.{key}") != value:
                raise self.invalid(f"dg.{key}", f"{value!r} for this version of dg-lsp")

    def number(self, key: str, minimum: int = 0, limit: float = math.inf) -> int:
        """A whole number of at least `minimum` and under `limit`."""
        value = parse_number(self.text(key))
        if value is None or not minimum <= value < limit:
            raise self.invalid(key, f"a whole number from {minimum}{f' and under {limit}' if limit < math.inf else ''}")
        return value

    def positive(self, key: str, maximum: float = math.inf) -> float:
        """A number above 0 and at most `maximum`."""
        try:
            value = float(self.text(key))
        except ValueError:
            value = math.nan
        if not 0.0 < value <= maximum or math.isinf(value):
            raise self.invalid(key, "a number above 0" if math.isinf(maximum) else f"above 0 and at most {maximum:g}")
        return value

    def flag(self, key: str) -> bool:
        """False if the key is missing."""
        value = self.metadata.get(key, "false").strip()
        if value not in ("true", "false"):
            raise self.invalid(key, "true or false")
        return value == "true"

    def token(self, key: str) -> int:
        """A token id."""
        return self.number(key, limit=self.vocab_size)

    def tokens(self, key: str) -> tuple[int, ...]:
        """Token ids; none if the value is empty."""
        text = self.text(key)
        found = [parse_number(part) for part in text.split(",")] if text else []
        ids = tuple(value for value in found if value is not None and value < self.vocab_size)
        if len(ids) != len(found):
            raise self.invalid(key, f"token ids under {self.vocab_size}, separated by commas")
        return ids

    def canvas_lengths(self) -> tuple[int, ...]:
        """`dg.canvas_lengths`, ascending."""
        key = "dg.canvas_lengths"
        lengths = tuple(parse_number(part) or 0 for part in self.text(key).split(","))
        if lengths[0] < 1 or list(lengths) != sorted(set(lengths)):
            raise self.invalid(key, "ascending lengths from 1, separated by commas")
        return lengths

    def languages(self) -> tuple[str, ...]:
        """`dg.languages`; without it, those of dg-mini for its `general.name`, else none."""
        if "dg.languages" not in self.metadata:
            return MINI_LANGUAGES if self.metadata.get("general.name") == MINI else ()
        names = tuple(name.strip() for name in self.text("dg.languages").split(","))
        if not all(_LANGUAGE_ID.fullmatch(name) for name in names):
            raise self.invalid("dg.languages", "LSP language ids, separated by commas")
        return names

    def repetition_match(self) -> int:
        """`dg.echo_match`; 0 if it is missing."""
        value = self.number("dg.echo_match") if "dg.echo_match" in self.metadata else 0
        if 0 < value < MIN_MATCH:
            raise self.invalid("dg.echo_match", f"0, or at least {MIN_MATCH} tokens")
        return value

    def cut(self) -> PromptCut:
        """`dg.cut`; at the cursor if it is missing."""
        value = self.metadata.get("dg.cut", PromptCut.CHARACTER).strip()
        if value not in [*PromptCut]:
            raise self.invalid("dg.cut", " or ".join(PromptCut))
        return PromptCut(value)

    def expectations(self) -> tuple[ExpectedPasses, ...]:
        """One entry for each `dg.plan.KIND.DECODER`; unknown decoders are left out."""
        keys = sorted(key for key in self.metadata if key.startswith(_EXPECTATION_PREFIX))
        return tuple(self._expectation(key) for key in keys if key.rpartition(".")[2] in PLAN_DECODERS)

    def _expectation(self, key: str) -> ExpectedPasses:
        kind, _, name = key.removeprefix(_EXPECTATION_PREFIX).rpartition(".")
        try:
            singles, checks, canvases, hits = map(float, self.text(key).split(","))
        except ValueError:
            hits = math.nan
        if not (kind and 0 < hits <= 1 and 0 < singles + checks + canvases < math.inf):
            raise self.invalid(key, "three mean numbers of passes and a share of hits above 0, separated by commas")
        decoder, num_canvases = PLAN_DECODERS[name]
        return ExpectedPasses(kind, decoder, singles, checks, canvases, hits, num_canvases)


def parse_number(text: str) -> int | None:
    """A whole number from 0 in ASCII digits; None for any other text."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None
