"""How a user types and how an editor sends requests.

Times between keys are log-normal, which fits measured ones well (González, Calot, Ierache and Hasperué, "On the shape
of timings distributions in free-text keystroke dynamics profiles", Heliyon 7, 2021). The mean within a line is that of
Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million Keystrokes", CHI 2018: 239 ms over
168,000 people. Pauses before words and lines are longer in all studies; their length for code, and the spread, are
assumptions of this module and are printed with the results.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dg_lsp.context.document import is_word

_KEY = re.compile(r"(?:\r\n|\r|\n)[ \t]*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TypingModel:
    """Milliseconds before a key: log-normal, with a mean that depends on the position of the key."""

    in_word_ms: float = 222.0
    """Also before blanks and punctuation. With every sixth key at the start of a word, the mean is 239 ms."""
    word_start_ms: float = 325.0
    line_start_ms: float = 1500.0
    spread: float = 0.5
    """Standard deviation of the logarithm."""
    speed: float = 1.0
    """Divides all times between keys."""
    reaction_ms: float = 380.0
    """Time to accept a shown item: 100 ms to see, three times 70 to decide and 70 to press (Card, Moran and Newell,
    "The Psychology of Human-Computer Interaction", 1983, matching a known name)."""

    def delays(self, keys: Sequence[str], seed: int) -> tuple[float, ...]:
        """Milliseconds before each key, the same for the same keys and seed."""
        import numpy as np  # not with this module: the command line reads its defaults here

        name = zlib.crc32("".join(keys).encode("utf-8", "surrogatepass"))
        normal = np.random.default_rng((seed, name)).standard_normal(len(keys))
        # the mean of a log-normal distribution is above its median
        factors = np.exp(self.spread * normal - self.spread**2 / 2) / self.speed
        previous = ("\n", *keys)
        return tuple(
            float(self._mean(before, key) * factor)
            for before, key, factor in zip(previous, keys, factors, strict=False)
        )

    def _mean(self, before: str, key: str) -> float:
        if before[0] in "\r\n":
            return self.line_start_ms
        return self.word_start_ms if is_word(key) and not is_word(before) else self.in_word_ms


class MatchingKey(StrEnum):
    """What an editor does when a key matches the shown item."""

    REQUEST = "request"
    """The item stays, and every key sends a request, as in VS Code."""
    KEEP = "keep"
    """The item stays, without a new request, as in llama.vim."""
    DISMISS = "dismiss"
    """The item goes, and the next answer is shown, as in Neovim 0.12."""


@dataclass(frozen=True, slots=True)
class EditorModel:
    """When an editor sends requests."""

    debounce_ms: float = 50.0
    """From a key to its request. VS Code waits at least 50 ms, Neovim 0.12 200, llama.vim 0."""
    on_matching_key: MatchingKey = MatchingKey.REQUEST


def split_keys(text: str) -> tuple[str, ...]:
    """Text of each key press: a character, or a line end with the next indentation, which editors insert."""
    return tuple(_KEY.findall(text))
