"""The measures of the page: how each is called, what exactly it says, and where it is in a summary."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dg_lsp.bench.report.markup import Html, element, join
from dg_lsp.bench.report.wording import interval, milliseconds, percent
from dg_lsp.metrics.summary import CUTS, Summary


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table."""

    name: str
    definition: str
    value: Callable[[Summary], float | None]
    show: Callable[[float | None], str]
    of: Callable[[Summary], float] | None = None
    """How many requests a share counts over, for its interval; None where it is no share."""

    def cell(self, summary: Summary) -> Html:
        """The number, and beside a share its 95% interval; room for one is kept everywhere, so that numbers align."""
        value = self.value(summary)
        said = interval(value, round(self.of(summary))) if self.of and value is not None and summary.num else ""
        return join((self.show(value), element("small", said)))


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"


def _of_all(summary: Summary) -> float:
    return summary.num


def _useful(cut: int) -> Measure:
    return Measure(
        f"useful by {cut:,} ms",
        f"Something useful was shown within {cut:,} ms of the request; over all requests.",
        lambda summary: summary.useful_by[cut],
        percent,
        _of_all,
    )


GROUPS: Mapping[str, tuple[Measure, ...]] = {
    "": (Measure("requests", "One per place and way.", lambda summary: summary.num, _count),),
    "Time to first useful edit": (
        *(_useful(cut) for cut in CUTS),
        Measure(
            "TTFUE, median",
            "From the request to the departure of the first useful item; over the requests that had one.",
            lambda summary: summary.ttfue_ms.p50,
            milliseconds,
        ),
        Measure(
            "TTFUE, 90th percentile",
            "The same; one hit in ten took longer.",
            lambda summary: summary.ttfue_ms.p90,
            milliseconds,
        ),
        Measure("missed", "Nothing useful was ever shown.", lambda summary: summary.miss_rate, percent, _of_all),
    ),
    "Quality": (
        Measure(
            "exact match",
            "The final text is the reference; blanks at line ends and line ends at the end left out.",
            lambda summary: summary.exact_match,
            percent,
            _of_all,
        ),
        Measure(
            "first line",
            "The final text's first line is the reference's.",
            lambda summary: summary.first_line_match,
            percent,
            _of_all,
        ),
        Measure(
            "pass@1",
            "The completed program passes its tests; over the requests whose tests were run.",
            lambda summary: summary.pass_at_1,
            percent,
        ),
        Measure("shown", "Something was worth showing.", lambda summary: summary.show_rate, percent, _of_all),
        Measure(
            "reversed",
            "An early draft began otherwise than the final text; over the requests that showed something.",
            lambda summary: summary.reversal_rate,
            percent,
            lambda summary: round(summary.num * summary.show_rate),
        ),
    ),
    "Cost": (
        Measure(
            "latency, median",
            "From the request to the final answer, shown or not.",
            lambda summary: summary.latency_ms.p50,
            milliseconds,
        ),
        Measure(
            "latency, 90th percentile",
            "The same; one request in ten took longer.",
            lambda summary: summary.latency_ms.p90,
            milliseconds,
        ),
        Measure(
            "steps, mean",
            "Forward passes of the model after the prompt.",
            lambda summary: summary.steps_mean,
            _plain,
        ),
        Measure(
            "tokens per forward pass",
            "Generated tokens over steps, all requests together.",
            lambda summary: summary.tokens_per_forward,
            _plain,
        ),
        Measure(
            "model time per useful edit",
            "All model time, that of misses included, over the number of hits.",
            lambda summary: summary.model_ms_per_useful,
            milliseconds,
        ),
    ),
}


def definitions() -> Html:
    """What each number says, for who wants to hold us to it."""
    useful = (
        "A shown item is useful when its first line equals the reference's first line, blanks at the end left out, or"
        " when the completed program passes its tests. Nothing useful is a miss, and a miss stays in every share."
    )
    listed = [measure for measures in GROUPS.values() for measure in measures]
    pairs = [(measure.name, measure.definition) for measure in listed]
    return element(
        "dl", *(element("div", element("dt", name), element("dd", text)) for name, text in [("useful", useful), *pairs])
    )
