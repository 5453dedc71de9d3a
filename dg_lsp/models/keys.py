"""One `dg.*` key of a GGUF's metadata at a time; llama.cpp hands every value over as a string.

Nothing is guessed: a model that is asked in the wrong format answers nonsense, so a key that is missing or odd refuses
the file and is named.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dg_lsp.canvas.echo import MIN_MATCH
from dg_lsp.canvas.expectation import Expectation
from dg_lsp.errors import ModelUnsupportedError

VERSION = 1
"""The description format that this release reads."""

PLAN_PREFIX = "dg.plan."

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


def shown_metadata(metadata: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What a person may want to read: no vocabulary, no long texts."""
    return tuple(
        (key, value)
        for key, value in sorted(metadata.items())
        if not key.startswith("tokenizer.") and len(value) <= _SHOWN_LENGTH
    )
