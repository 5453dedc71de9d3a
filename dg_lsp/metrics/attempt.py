"""One request and what came of it: the unit of every statistic.

Knows neither how the request was decoded nor what was around it.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Shown:
    """One item on its way to the user."""

    ms: float
    """From the request to its departure."""
    text: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """A site, what was shown there, and what it cost."""

    site: str
    """The site's id."""
    kind: str
    """`line-end`, `whole-line`, `block`, `span`, or what else the data says."""
    way: str
    """`diffusion`, `autoregressive`, `llama-server`, ..., or the name of a decoder."""
    decoder: str
    """The decoder that really ran."""
    want: str
    """The reference."""
    shown: tuple[Shown, ...]
    """In order of departure; the last one is final. Empty when nothing was worth showing."""
    is_exact: bool
    """The final text is the reference, see `is_same`."""
    passes: bool | None
    """The completed program passes its tests; None when they were not run."""
    latency_ms: float
    """From the request to the final answer, shown or not."""
    steps: int | None
    """Forward passes after the prefill; None where a server does not say."""
    tokens: int | None
    """Generated, the end token included; None where a server does not say."""
    confidence: float
    """Mean log probability per token of the candidate, nats; nan without one."""
    rejection: str | None
    """Why nothing was shown."""
    prefill_ms: float | None
    """None where a server does not say."""
    model_ms: float | None
    """Inside the model, prefill included; None where a server does not say."""

    @property
    def text(self) -> str:
        """The final text; empty when nothing was shown."""
        return self.shown[-1].text if self.shown else ""

    @property
    def is_first_line(self) -> bool:
        """The final text begins as the reference does."""
        return bool(self.shown) and has_same_first_line(self.text, self.want)

    @property
    def ttfue_ms(self) -> float | None:
        """Time to first useful edit: when the first useful item left; None when none did, which is a miss."""
        useful = [item.ms for item in self.shown if has_same_first_line(item.text, self.want)]
        if self.passes and self.shown:
            useful.append(self.shown[-1].ms)
        return min(useful, default=None)

    @property
    def is_useful(self) -> bool:
        """One of the shown items was."""
        return self.ttfue_ms is not None

    @property
    def is_reversed(self) -> bool:
        """An earlier item began otherwise than the final one."""
        return any(_head(item.text) != _head(self.text) for item in self.shown[:-1])

    def json(self) -> dict[str, Any]:
        """Plain JSON values; a confidence that is nan becomes null."""
        tree = dataclasses.asdict(self)
        tree["shown"] = [dataclasses.asdict(item) for item in self.shown]
        tree["confidence"] = None if math.isnan(self.confidence) else self.confidence
        return tree

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """The attempt that `json` gave.

        Raises:
            TypeError, KeyError: a key is missing or unknown.
        """
        shown = tuple(Shown(**item) for item in tree["shown"])
        confidence = math.nan if tree["confidence"] is None else tree["confidence"]
        return cls(**{**tree, "shown": shown, "confidence": confidence})


def is_same(text: str, want: str) -> bool:
    """The same lines; blanks at line ends and line ends at the end left out."""
    return _lines(text) == _lines(want)


def has_same_first_line(text: str, want: str) -> bool:
    """Both begin with the same line, blanks at its end left out.

    Where the reference begins with line ends, they and the first line with text are compared. A reference of blanks
    alone is met by nothing: there is nothing to see.
    """
    head = _head(want)
    return bool(head) and _head(text) == head


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def _head(text: str) -> tuple[str, ...]:
    """The lines up to the first one with text, that one included; nothing when there is none."""
    lines = _lines(text)
    first = next((i for i, line in enumerate(lines) if line), None)
    return () if first is None else tuple(lines[: first + 1])
