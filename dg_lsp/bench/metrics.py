"""Metrics of attempts and of the requests of an audit log, and their tables.

The metrics are the match with the reference, the time to the first useful edit (TTFUE), latency and model cost.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from dg_lsp.engine import ttfue
from dg_lsp.engine.audit import AuditRecord
from dg_lsp.engine.ttfue import AcceptedPart, Outcome, Verdict, quantile, rounded, share

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
Summary = dict[str, Any]
"""Numbers by name, see `summarize`."""

ALL = "all"
"""Label of the summary over all kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The answer of one contender to one test case; a cost is None if a server does not report it.

    The latency ends with the departure of the answer, shown or not. Steps are forward passes after the prefill, tokens
    include the end token, and the confidence is the estimated probability that the first line is right. The model time
    includes the prefill.
    """

    case: str
    kind: str
    contender: str
    decoder: str
    reference: str
    language: str  # LSP language id
    task: str  # see `EditTask`
    text: str = ""  # empty if nothing was shown
    passes: bool | None = None  # true if the completed program passes its tests; None if they did not run
    latency_ms: float
    steps: int | None = None
    tokens: int | None = None
    confidence: float | None = None
    rejection: str | None = None  # reason why nothing was shown
    prefill_ms: float | None = None
    model_ms: float | None = None

    @property
    def is_exact(self) -> bool:
        """True if the text equals the reference, see `texts_match`."""
        return bool(self.text) and ttfue.texts_match(self.text, self.reference)

    @property
    def is_first_line(self) -> bool:
        """True if the text starts with the first line of the reference."""
        return bool(self.text) and ttfue.first_lines_match(self.text, self.reference)

    @property
    def ttfue_ms(self) -> float | None:
        """Departure of a useful text; None for a miss."""
        return self.latency_ms if self.is_first_line or (self.passes and self.text) else None


def summarize(attempts: Iterable[Attempt]) -> Summary:
    """Numbers of the attempts as JSON values, rounded to four digits.

    Times and costs are milliseconds, shares are between 0 and 1. A miss is an attempt without a useful item; it counts
    in every share. `useful_by` has the share of useful attempts by milliseconds since the request. These values do not
    relate to all attempts: `ttfue_ms` (the hits), `pass_at_1` (tested ones), `steps_mean` and `tokens_per_forward`
    (those with known steps). `model_ms_per_useful` is the model time of all attempts over the number of hits. A value
    without attempts is 0 or None.
    """
    listed = list(attempts)
    hits = [attempt.ttfue_ms for attempt in listed if attempt.ttfue_ms is not None]
    tested = [attempt.passes for attempt in listed if attempt.passes is not None]
    counted = [(attempt.steps, attempt.tokens or 0) for attempt in listed if attempt.steps is not None]
    model_ms = [attempt.model_ms for attempt in listed if attempt.model_ms is not None]
    latencies = [attempt.latency_ms for attempt in listed]
    num = len(listed)
    num_steps = sum(steps for steps, _ in counted)
    summary: Summary = rounded(
        {
            "num": num,
            "exact_match": share(sum(attempt.is_exact for attempt in listed), num),
            "first_line_match": share(sum(attempt.is_first_line for attempt in listed), num),
            "pass_at_1": sum(tested) / len(tested) if tested else None,
            **ttfue.summarize_times(num, hits),
            "show_rate": share(sum(bool(attempt.text) for attempt in listed), num),
            "latency_ms": {**ttfue.quantiles(latencies), "p95": quantile(latencies, 0.95)},
            "steps_mean": num_steps / len(counted) if counted else None,
            "tokens_per_forward": share(sum(tokens for _, tokens in counted), num_steps) if counted else None,
            "model_ms_per_useful": sum(model_ms) / len(hits) if hits and len(model_ms) == num else None,
        }
    )
    return summary


def by_kind(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Groups in the order of their first attempt, and `ALL` unless there is exactly one kind."""
    listed = list(attempts)
    groups = grouped(listed, lambda attempt: attempt.kind)
    return groups if len(groups) == 1 else {**groups, ALL: listed}


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Lists of the items with the same key, in the order of the first item of each."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first cell of a row is its heading."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> Iterator[str]:
        """Lines with the caption above the table, and the note below it."""
        yield f"{self.caption}:"
        yield ""
        yield f"| {' | '.join(self.columns)} |"
        yield "|---" * len(self.columns) + "|"
        for row in self.rows:
            yield f"| {' | '.join(row)} |"
        yield ""
        if self.note:
            yield self.note
            yield ""


def measure_table(caption: str, groups: Mapping[str, Summary], note: str = "") -> Table:
    """One column for each group, and one row for each number that at least one group has."""
    columns = {name: dict(_leaves(summary)) for name, summary in groups.items()}
    rows = []
    for name in next(iter(columns.values()), {}):
        texts = [_text(name, numbers[name], numbers["num"]) for numbers in columns.values()]
        if set(texts) != {"–"}:
            words = name.replace("_", " ")
            rows.append((f"{words} ms" if name.startswith("useful_by") else words, *texts))
    if any("(" in text for _, *texts in rows for text in texts):
        note = f"{note} In brackets: the 95 % interval of a share, in percent.".strip()
    return Table(caption, ("measure", *(name or "unnamed" for name in columns)), rows, note)


def row_table(caption: str, summaries: Sequence[Summary], note: str = "") -> Table:
    """One row for each summary, and one column for each of its numbers."""
    rows = [[_text(name, value) for name, value in summary.items()] for summary in summaries]
    return Table(caption, [name.replace("_", " ") for name in next(iter(summaries), {})], rows, note)


def summary_table(caption: str, groups: Mapping[str, Iterable[Attempt]]) -> Table:
    """The numbers of `summarize`, one column for each group."""
    return measure_table(caption, {name: summarize(attempts) for name, attempts in groups.items()})


def _leaves(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each number by its name, which begins with those of the objects that contain it."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}_")
        else:
            yield f"{prefix}{name}", value


_SHARES_OF_ALL = ("exact_match", "first_line_match", "miss_rate", "show_rate", "useful_by")
"""Shares of all requests, whose number is the `num` beside them: these have an interval."""


def _text(name: str, value: Any, num: int = 0) -> str:
    """A value in the unit of its name: milliseconds, a mean of tokens, steps or rates, a number, otherwise a share."""
    if not isinstance(value, int | float):
        return value or "–"
    if re.search("(^|_)(ms|p[0-9]+)(_|$)", name):
        return f"{value:,.{1 if value < 9.95 else 0}f}\N{NO-BREAK SPACE}ms"
    if isinstance(value, int):
        return f"{value:,}"
    if re.search("^(steps|step|tokens)_|_(tokens|limit|per_second)$", name):
        return f"{value:,.2f}"
    percent = f"{100 * value:.1f}\N{NO-BREAK SPACE}%"
    if not (num and name.startswith(_SHARES_OF_ALL)):
        return percent
    low, high = wilson_interval(value, num)
    return f"{percent} ({100 * low:.0f}–{100 * high:.0f})"


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a test case or a live request ended, and its cost."""

    task: str  # see `EditTask`
    language: str
    is_shown: bool
    is_useful: bool | None  # None if what became of it is not known; then it counts as a request only
    is_right: bool  # an exact fill of a test case, or an edit that the user accepted
    model_ms: float | None  # None if a server does not report it
    steps: int | None

    @classmethod
    def of(cls, attempt: Attempt) -> Self:
        """The result of a test case."""
        is_useful = attempt.ttfue_ms is not None
        is_shown = bool(attempt.text)
        return cls(
            attempt.task, attempt.language, is_shown, is_useful, attempt.is_exact, attempt.model_ms, attempt.steps
        )


def summarize_tasks(results: Iterable[TaskResult]) -> list[Summary]:
    """One object for each task and language, and for each language with several tasks.

    `useful` is a share of what is shown, `shown` and `right` of the requests. The costs are those of all requests,
    divided by the number of right edits. A value that is not known is None.
    """
    listed = list(results)
    groups = grouped(listed, lambda result: (result.language, result.task))
    for language, members in grouped(listed, lambda result: result.language).items():
        if len({result.task for result in members}) > 1:
            groups[language, ALL] = members
    summaries: list[Summary] = []
    for (language, task), members in sorted(groups.items()):
        known = [result for result in members if result.is_useful is not None]
        num_right = sum(result.is_right for result in known)
        summary = {
            "language": language,
            "task": task,
            "num": len(members),
            "shown": share(sum(result.is_shown for result in members), len(members)),
            "useful": _mean([bool(result.is_useful) for result in known if result.is_shown]),
            "right": _mean([result.is_right for result in known]),
            "model_ms_per_right": _per([result.model_ms for result in known], num_right),
            "steps_per_right": _per([result.steps for result in known], num_right),
        }
        summaries.append(rounded(summary))
    return summaries


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _per(costs: Sequence[float | None], num: int) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) / num if num and len(known) == len(costs) else None


CONFIDENCES = (0.0, 0.02, 0.05, 0.08, 0.1, 0.2, 0.3, 0.5, 0.7)
"""Lower ends of the ranges of a calibration."""
MIN_CALIBRATED = 20
"""Fills of a task and language from which its ranges are listed too."""


def calibrate(attempts: Iterable[Attempt]) -> list[Summary]:
    """One object for each range of confidence that has fills, ascending: of all, then of each task and language.

    Of a calibrated model the share of right first lines equals the mean confidence. `shown`, `right_of_shown` and
    `kept` are for this confidence as the minimum: the share of all fills that it would show, the share of these whose
    first line is right, and the share of all right fills that it would show.
    """
    known = [attempt for attempt in attempts if attempt.text and attempt.confidence is not None]
    by_task = grouped(known, lambda attempt: (attempt.language, attempt.task))
    groups = {(ALL, ALL): known}
    if len(by_task) > 1:
        groups |= {key: members for key, members in sorted(by_task.items()) if len(members) >= MIN_CALIBRATED}
    return [
        {"language": language, "task": task, **row}
        for (language, task), members in groups.items()
        for row in _ranges([(attempt.confidence or 0.0, attempt.is_first_line) for attempt in members])
    ]


def _ranges(fills: Sequence[tuple[float, bool]]) -> Iterator[Summary]:
    num_right = sum(is_right for _, is_right in fills)
    for least, end in zip(CONFIDENCES, (*CONFIDENCES[1:], math.inf), strict=True):
        inside = [(confidence, is_right) for confidence, is_right in fills if least <= confidence < end]
        above = [is_right for confidence, is_right in fills if confidence >= least]
        if inside:
            row = {
                "from": least,
                "num": len(inside),
                "mean_confidence": _mean([confidence for confidence, _ in inside]),
                "right": _mean([is_right for _, is_right in inside]),
                "shown": len(above) / len(fills),
                "right_of_shown": _mean(above),
                "kept": share(sum(above), num_right),
            }
            yield rounded(row)


def wilson_interval(share: float, num: int) -> tuple[float, float]:
    """95 % interval of a share of `num`, which is not 0 (Wilson)."""
    z = 1.96
    scale = 1 + z * z / num
    centre = (share + z * z / (2 * num)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, centre - half), min(1.0, centre + half)


# the audit log

Records = Sequence[AuditRecord]
_LATENCY_NOTE = (
    "Latency is that of answered requests: neither cancelled nor failed. Tokens, steps and limits are means, and rates"
    " medians, over the requests that the model worked on."
)
_USEFUL_NOTE = (
    "Useful: the first line of an item stands in the buffer 30 seconds after the first key, or after its acceptance,"
    " without trailing blanks. Nothing useful is a miss, and a miss counts in every share. Quiet: nothing was shown,"
    " and nothing was missing; that is a miss, but right. Definitions: docs/ttfue.md."
)
_UNSERVED = ("cancelled", "failed", "refused", "ineligible")
_PARTS = ("queue", "setup", "prefill", "generation")
"""Parts of the time of a request."""
_TASK_NOTE = (
    "Right: the user accepted at least a word. Useful and right are shares of the requests whose outcome in an editor"
    " is known. The costs are those of all these requests, divided by the number of accepted edits."
)


def audit_tables(records: Records, num_bad: int = 0, outcomes: Sequence[Outcome] = ()) -> list[Table]:
    """The tables of an audit log; `num_bad` is the number of lines that are not records."""
    groups = grouped(records, lambda record: record.endpoint)
    by_endpoint = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    requests = {name: _request_numbers(listed) for name, listed in by_endpoint.items()}
    tables = [measure_table("Requests", requests, _LATENCY_NOTE)]
    reasons = {name: Counter(record.reason for record in listed) for name, listed in by_endpoint.items()}
    total = Counter(record.reason for record in records if record.reason)
    if total:
        rows = [
            {"reason": reason} | {name: counter[reason] for name, counter in reasons.items()}
            for reason, _ in total.most_common()
        ]
        tables.append(row_table("Why nothing was shown", rows))
    if outcomes:
        by_trigger = grouped(outcomes, lambda outcome: outcome.trigger)
        edits = {trigger: _edit_numbers(listed) for trigger, listed in by_trigger.items()}
        tables.append(measure_table("Completions in editors", edits, _USEFUL_NOTE))
    by_request = {outcome.request: outcome for outcome in outcomes}
    results = [_task_result(record, by_request.get(record.request)) for record in records if record.task]
    if results:
        tables.append(row_table("By language and task", summarize_tasks(results), _TASK_NOTE))
    facts = [
        ("requests", str(len(records))),
        ("lines that are not records", str(num_bad)),
        ("first", min(record.time for record in records)),
        ("last", max(record.time for record in records)),
        ("models", ", ".join(sorted({record.model for record in records if record.model}))),
        ("peak memory, MB", str(round(max(record.resident_bytes for record in records) / 1e6))),
        ("GPUs", ", ".join(sorted({record.gpu for record in records if record.gpu})) or "–"),
        ("GPU memory budget, MB", str(round(max(record.gpu_budget_bytes for record in records) / 1e6))),
    ]
    return [*tables, Table("Records", ("name", "value"), facts)]


def _task_result(record: AuditRecord, outcome: Outcome | None) -> TaskResult:
    return TaskResult(
        task=record.task,
        language=record.language,
        is_shown=record.outcome == "shown",
        is_useful=None if outcome is None else outcome.verdict == Verdict.USEFUL,
        is_right=outcome is not None and outcome.accepted != AcceptedPart.NONE,
        model_ms=0.0 if record.is_cached else 1e3 * (record.prefill_seconds + record.generation_seconds),
        steps=record.steps,
    )


def _request_numbers(records: Records) -> Summary:
    answered = [record for record in records if record.outcome not in _UNSERVED]
    computed = [record for record in answered if record.generation_seconds and not record.is_cached]
    num_by_outcome = Counter(record.outcome for record in records)
    num_prompt = sum(record.prompt_tokens for record in computed)
    num_reused = sum(record.reused_tokens for record in computed)
    return {
        "num": len(records),
        **{
            outcome: num_by_outcome[outcome] / len(records)
            for outcome in ("shown", "nothing", "unfinished", *_UNSERVED)
        },
        "from_cache": _mean([record.is_cached for record in records]),
        "latency_ms": _quantiles([record.total_seconds for record in answered]),
        **{f"{part}_ms": _quantiles([getattr(record, f"{part}_seconds") for record in computed]) for part in _PARTS},
        "prompt_tokens": _mean([record.prompt_tokens for record in computed]),
        "prompt_from_cache": num_reused / num_prompt if num_prompt else None,
        "output_tokens": _mean([record.output_tokens for record in computed]),
        "steps_mean": _mean([record.steps for record in computed]),
        "step_limit": _mean([record.step_limit for record in computed if record.step_limit]),
        "prompt_per_second": quantile([record.prompt_rate for record in computed if record.prompt_rate], 0.5),
        "output_per_second": quantile([record.output_rate for record in computed if record.output_rate], 0.5),
        "steps_per_second": quantile([record.step_rate for record in computed if record.step_rate], 0.5),
    }


def _quantiles(seconds: Sequence[float]) -> Summary:
    """The median and the 95th percentile in milliseconds."""
    times = [1e3 * value for value in seconds]
    return {"p50": quantile(times, 0.5), "p95": quantile(times, 0.95)}


def _edit_numbers(outcomes: Sequence[Outcome]) -> Summary:
    """What became of the completions of editors, by the formulae of `bench replay`."""
    num = len(outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    accepted = Counter(outcome.accepted for outcome in outcomes)
    answered = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.CANCELLED, Verdict.FAILED)]
    num_finished = sum(outcome.is_line_finished for outcome in answered)
    hits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None]
    edits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None and not outcome.is_rest]
    return {
        "num": num,
        "show_rate": share(sum(outcome.num_items > 0 for outcome in outcomes), num),
        **ttfue.summarize_times(num, hits),
        **ttfue.summarize_edits(num, len(hits), verdicts[Verdict.QUIET], num_finished, edits),
        "verdicts": {name.value: share(verdicts[name], num) for name in Verdict},
        "accepted": {part.value: accepted[part] for part in AcceptedPart if part is not AcceptedPart.NONE},
    }
