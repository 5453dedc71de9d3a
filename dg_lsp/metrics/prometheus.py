"""Counters in Prometheus' text format (version 0.0.4). Not thread-safe: one thread counts."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Counter:
    """One sum for each combination of labels; without labels there is one from the beginning."""

    def __init__(self, name: str, sentence: str, labels: Sequence[str], kind: str = "counter") -> None:
        """`kind` is `counter`, or `gauge` for what may also fall."""
        self._name, self._sentence, self._labels, self._kind = name, sentence, tuple(labels), kind
        self._sums: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *values: str) -> None:
        """`values` are those of the labels, in order."""
        self._sums[values] = self._sums.get(values, 0.0) + amount

    def exposition(self) -> str:
        """The lines of this metric."""
        rows = [f"{self._name}{labelled(self._labels, key)} {shown(total)}" for key, total in self._sums.items()]
        return _block(self._name, self._sentence, self._kind, rows)


class Histogram:
    """How many values were at most so large, by labels."""

    def __init__(self, name: str, sentence: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        """`bounds` ascend."""
        self._name, self._sentence, self._labels = name, sentence, tuple(labels)
        self._bounds = tuple(bounds)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, value: float, *values: str) -> None:
        """`values` are those of the labels, in order."""
        counts = self._counts.setdefault(values, [0] * (len(self._bounds) + 1))
        counts[bisect_left(self._bounds, value)] += 1
        self._sums[values] = self._sums.get(values, 0.0) + value

    def exposition(self) -> str:
        """The lines of this metric."""
        rows = []
        for key, counts in self._counts.items():
            bounds = [*map(shown, self._bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(counts), strict=True):
                rows.append(f"{self._name}_bucket{labelled((*self._labels, 'le'), (*key, bound))} {count}")
            rows.append(f"{self._name}_sum{labelled(self._labels, key)} {shown(self._sums[key])}")
            rows.append(f"{self._name}_count{labelled(self._labels, key)} {sum(counts)}")
        return _block(self._name, self._sentence, "histogram", rows)


def labelled(names: Sequence[str], values: Sequence[str]) -> str:
    """`{name="value",...}`, or nothing without labels."""
    pairs = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def shown(value: float) -> str:
    """Whole numbers without a point."""
    return str(int(value)) if value == int(value) else repr(float(value))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _block(name: str, sentence: str, kind: str, rows: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in (f"# HELP {name} {sentence}", f"# TYPE {name} {kind}", *rows))
