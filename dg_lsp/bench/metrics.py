"""Metrics of attempts: match with the reference, time to first useful edit (TTFUE), latency and model cost."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

CUTS = (50, 100, 250, 500, 1000)
"""Milliseconds at which the share of useful edits is reported."""
ALL = "all"
"""Label of the summary over all kinds."""


@dataclass(frozen=True, slots=True)
class ShownItem:
    """One suggestion on its way to the user."""

    ms: float
    """Milliseconds from the request to the departure of the item."""
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The answer of one contender to one test case; a cost is None if a server does not report it."""

    case: str
    """Id of the test case."""
    kind: str
    contender: str
    decoder: str
    """The decoder that ran."""
    reference: str
    shown: tuple[ShownItem, ...] = ()
    """In order of departure; the last one is final."""
    passes: bool | None = None
    """True if the completed program passes its tests; None if they did not run."""
    latency_ms: float
    """From the request to the final answer, shown or not."""
    steps: int | None = None
    """Forward passes after the prefill."""
    tokens: int | None = None
    """Generated tokens, including the end token."""
    confidence: float | None = None
    """Mean log probability per token, in nats."""
    rejection: str | None = None
    """Reason why nothing was shown."""
    prefill_ms: float | None = None
    model_ms: float | None = None
    """Time inside the model, including prefill."""

    @property
    def text(self) -> str:
        """The final text; empty if nothing was shown."""
        return self.shown[-1].text if self.shown else ""

    @property
    def is_exact(self) -> bool:
        """True if the final text equals the reference, see `texts_match`."""
        return bool(self.shown) and texts_match(self.text, self.reference)

    @property
    def is_first_line(self) -> bool:
        """True if the final text starts with the first line of the reference."""
        return bool(self.shown) and first_lines_match(self.text, self.reference)

    @property
    def ttfue_ms(self) -> float | None:
        """Departure of the first useful item; None for a miss."""
        useful = [item.ms for item in self.shown if first_lines_match(item.text, self.reference)]
        if self.passes and self.shown:
            useful.append(self.shown[-1].ms)
        return min(useful, default=None)

    @property
    def is_useful(self) -> bool:
        """True if at least one shown item was useful."""
        return self.ttfue_ms is not None

    @property
    def is_reversed(self) -> bool:
        """True if an earlier item started differently from the final one."""
        return any(_head(item.text) != _head(self.text) for item in self.shown[:-1])

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def parse(cls, tree: Mapping[str, Any]) -> Self:
        """Inverse of `json`.

        Raises:
            TypeError, KeyError: a key is missing or unknown.
        """
        return cls(**{**tree, "shown": tuple(ShownItem(**item) for item in tree["shown"])})


def texts_match(text: str, reference: str) -> bool:
    """True if the lines are equal, without trailing blanks and trailing line ends."""
    return _lines(text) == _lines(reference)


def first_lines_match(text: str, reference: str) -> bool:
    """True if both start with the same line, without trailing blanks.

    If the reference starts with empty lines, everything up to its first line with text is compared. Nothing matches a
    blank reference.
    """
    head = _head(reference)
    return bool(head) and _head(text) == head


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).rstrip("\n").split("\n")


def _head(text: str) -> list[str]:
    """The lines up to the first one with text, which is included."""
    lines = _lines(text)
    return next((lines[: i + 1] for i, line in enumerate(lines) if line), [])


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Median and 90th percentile in milliseconds; None without values."""

    p50: float | None
    p90: float | None

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Quantiles of the values, in any order."""
        ordered = sorted(values)
        return cls(percentile(ordered, 0.5), percentile(ordered, 0.9)) if ordered else cls(None, None)


@dataclass(frozen=True, slots=True)
class Summary:
    """Shares are between 0 and 1 and relate to all attempts unless stated otherwise; a miss counts in all of them."""

    num: int
    exact_match: float
    first_line_match: float
    """Of the final text."""
    pass_at_1: float | None
    """Over the attempts whose tests ran."""
    ttfue_ms: Quantiles
    """Over the hits."""
    useful_by: dict[int, float]
    """Share of attempts with a useful item, by milliseconds since the request."""
    miss_rate: float
    """Share of attempts without any useful item."""
    show_rate: float
    reversal_rate: float
    """Over the attempts that showed something."""
    latency_ms: Quantiles
    steps_mean: float | None
    """Over the attempts whose steps are known."""
    tokens_per_forward: float | None
    """All tokens over all steps of the same attempts."""
    model_ms_per_useful: float | None
    """Model time of all attempts over the number of useful edits."""

    def json(self) -> dict[str, Any]:
        """Plain JSON values, rounded to four digits."""
        tree: dict[str, Any] = rounded(dataclasses.asdict(self))
        return {**tree, "useful_by": {str(cut): share for cut, share in tree["useful_by"].items()}}


def summarize(attempts: Iterable[Attempt], cuts: Sequence[int] = CUTS) -> Summary:
    """Summary of the attempts; without attempts it consists of zeros and Nones."""
    listed = list(attempts)
    hits = [attempt.ttfue_ms for attempt in listed if attempt.ttfue_ms is not None]
    shown = [attempt for attempt in listed if attempt.shown]
    tested = [attempt.passes for attempt in listed if attempt.passes is not None]
    counted = [(attempt.steps, attempt.tokens or 0) for attempt in listed if attempt.steps is not None]
    model_ms = [attempt.model_ms for attempt in listed if attempt.model_ms is not None]
    num_steps = sum(steps for steps, _ in counted)
    has_steps = bool(counted) or not listed
    return Summary(
        num=len(listed),
        exact_match=share(sum(attempt.is_exact for attempt in listed), len(listed)),
        first_line_match=share(sum(attempt.is_first_line for attempt in listed), len(listed)),
        pass_at_1=share(sum(tested), len(tested)) if tested else None,
        ttfue_ms=Quantiles.of(hits),
        useful_by={cut: share(sum(ms <= cut for ms in hits), len(listed)) for cut in cuts},
        miss_rate=share(len(listed) - len(hits), len(listed)),
        show_rate=share(len(shown), len(listed)),
        reversal_rate=share(sum(attempt.is_reversed for attempt in shown), len(shown)),
        latency_ms=Quantiles.of(attempt.latency_ms for attempt in listed),
        steps_mean=share(num_steps, len(counted)) if has_steps else None,
        tokens_per_forward=share(sum(tokens for _, tokens in counted), num_steps) if has_steps else None,
        model_ms_per_useful=sum(model_ms) / len(hits) if hits and len(model_ms) == len(listed) else None,
    )


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """Linear interpolation in ascending values.

    Raises:
        ValueError: no values.
    """
    if not ordered:
        raise ValueError("percentile of an empty sequence")
    position = fraction * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (position - low) * (ordered[high] - ordered[low])


def share(part: float, whole: float) -> float:
    """`part / whole`; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def rounded(tree: Any) -> Any:
    """The same JSON tree with floats rounded to four digits."""
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    return round(tree, 4) if isinstance(tree, float) else tree


def by_contender(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt."""
    return _group(attempts, lambda attempt: attempt.contender)


def by_kind(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt, and `ALL` unless there is exactly one kind."""
    listed = list(attempts)
    groups = _group(listed, lambda attempt: attempt.kind)
    return groups if len(groups) == 1 else {**groups, ALL: listed}


def by_decoder(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt, named after contender and decoder."""
    return _group(attempts, lambda attempt: f"{attempt.contender}: {attempt.decoder}")


def _group(attempts: Iterable[Attempt], key: Callable[[Attempt], str]) -> dict[str, list[Attempt]]:
    groups: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        groups.setdefault(key(attempt), []).append(attempt)
    return groups
