"""Who types: the keys that a text takes, and the time before each.

Times are log-normal, which fits measured ones well (González, Calot, Ierache and Hasperué, "On the shape of timings
distributions in free-text keystroke dynamics profiles", Heliyon 7, 2021; the log-logistic fits a little better). Their
mean within a line is that of Dhakal, Feit, Kristensson and Oulasvirta, "Observations on Typing from 136 Million
Keystrokes", CHI 2018: 239 ms, about 52 words a minute, over 168,000 people who copied sentences. That writers pause
longer before a word than in it, and longest before a sentence, is found wherever it was looked for; how much longer a
programmer does before a word and a line of code is this module's assumption, and so is the spread. All of it is
printed beside the results.
"""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from dg_lsp.context.document import is_word

_KEY = re.compile(r"(?:\r\n|\r|\n)[ \t]*|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Typist:
    """Milliseconds before a key: log-normal, the mean as the key's place says."""

    in_word_ms: float = 222.0
    """Also before blanks and punctuation. With a word's start at every sixth key, 239 ms on average."""
    word_start_ms: float = 325.0
    line_start_ms: float = 1500.0
    spread: float = 0.5
    """Standard deviation of the logarithm: half of all times lie between 0.7 and 1.4 times their median."""
    speed: float = 1.0
    """All times between keys are divided by it."""
    reaction_ms: float = 380.0
    """From an item's appearance to the key that accepts it: 100 to see, three times 70 to think and 70 to press
    (Card, Moran and Newell, "The Psychology of Human-Computer Interaction", 1983, matching a known name)."""

    def delays(self, keys: Sequence[str], seed: int) -> tuple[float, ...]:
        """Milliseconds before each key. The same keys and seed give the same, whatever a model does meanwhile."""
        import numpy as np  # not with this module: the command line reads its defaults here

        name = zlib.crc32("".join(keys).encode("utf-8", "surrogatepass"))
        normal = np.random.default_rng((seed, name)).standard_normal(len(keys))
        # a log-normal's mean is above its median by this much
        factors = np.exp(self.spread * normal - self.spread**2 / 2) / self.speed
        before = ("\n", *keys)
        return tuple(
            float(self._mean(left, key) * factor) for left, key, factor in zip(before, keys, factors, strict=False)
        )

    def _mean(self, before: str, key: str) -> float:
        if before[0] in "\r\n":
            return self.line_start_ms
        return self.word_start_ms if is_word(key) and not is_word(before) else self.in_word_ms


def keys_of(text: str) -> tuple[str, ...]:
    """What each key press writes: a character, or a line end with the next line's indentation, as editors indent."""
    return tuple(_KEY.findall(text))
