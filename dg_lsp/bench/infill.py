"""Sites filled by the product as an editor would get it: the engine with its postprocessing. Knows no file."""

import dataclasses
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dg_lsp.bench.sites import Site
from dg_lsp.bench.ways import attempt_of, before_last_key, warm
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine.engine import Engine
from dg_lsp.engine.request import FillRequest
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import Summary


class Length(StrEnum):
    """What a fill was told of its length; how many tokens it is, never."""

    NONE = "none"
    """Nothing: the place decides, one line on a line with text, a block on a blank one."""
    ORACLE = "oracle"
    """As many lines as the reference has."""
    GIVEN = "given"
    """At most so many lines, the same for all sites."""


@dataclass(frozen=True, slots=True)
class Asking:
    """How each site is asked for."""

    length: Length = Length.NONE
    max_lines: int | None = None
    """With `Length.GIVEN`."""
    suffix_lines: int | None = None
    decoder: DecoderName | None = None
    """None takes the setting."""
    deadline_ms: float | None = None
    """None waits for the whole fill."""
    is_warm: bool = False
    """The prompt less its last character is in the cache already, as while typing."""

    def request(self, site: Site) -> FillRequest:
        """What the engine is asked."""
        lines = {Length.NONE: None, Length.ORACLE: site.num_lines, Length.GIVEN: self.max_lines}[self.length]
        return FillRequest(
            site.snapshot,
            site.offset,
            max_lines=lines,
            suffix_lines=self.suffix_lines,
            deadline_ms=self.deadline_ms,
            decoder=self.decoder,
        )

    def json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dataclasses.asdict(self)


def fill_site(engine: Engine, site: Site, asking: Asking, way: str) -> Attempt:
    """One site.

    Raises:
        RequestError, BackendError: as `Engine.run` does.
    """
    if asking.is_warm:
        warm(engine, asking.request(before_last_key(site)))
    request = asking.request(site)
    start = time.perf_counter()
    # without a deadline of its own a request gets the one of the settings
    result = engine.fill(request, deadline=math.inf if asking.deadline_ms is None else None)
    return attempt_of(engine, result, site, way, 1e3 * (time.perf_counter() - start))


def summary_object(summary: Summary, model: str, length: Length) -> dict[str, Any]:
    """The keys that the command line promises, in their order."""
    tree: Mapping[str, Any] = summary.json()
    return {**{key: tree[key] for key in _KEYS}, "model": model, "length_knowledge": length.value}


_KEYS = (
    "num",
    "exact_match",
    "first_line_match",
    "pass_at_1",
    "ttfue_ms",
    "useful_by",
    "miss_rate",
    "latency_ms",
    "steps_mean",
    "tokens_per_forward",
)
