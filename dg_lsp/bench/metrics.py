"""Metrics of attempts and of the requests of an audit log, and their tables.

The metrics are the match with the reference, the time to the first useful edit (TTFUE), latency and model cost.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from dg_lsp.engine.audit import AuditRecord
from dg_lsp.engine.ttfue import (
    CUTS,
    AcceptedPart,
    Outcome,
    Verdict,
    first_lines_match,
    quantile,
    quantiles,
    rounded,
    share,
    summarize_edits,
    summarize_times,
    texts_match,
)

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
    language: str = ""  # LSP language id; empty in runs of older versions, like the task
    task: str = ""  # see `EditTask`
    text: str = ""  # empty if nothing was shown
    beginning: str = ""  # of an improbable text: what an editor shows in its place
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
        return bool(self.text) and texts_match(self.text, self.reference)

    @property
    def is_first_line(self) -> bool:
        """True if the text starts with the first line of the reference."""
        return bool(self.text) and first_lines_match(self.text, self.reference)

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
            **summarize_times(num, hits),
            "show_rate": share(sum(bool(attempt.text) for attempt in listed), num),
            "latency_ms": {**quantiles(latencies), "p95": quantile(latencies, 0.95)},
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


Texts = Mapping[str, str]
"""Text of each measure by its name; a dash if there is no value."""


def measure_table(caption: str, items: Mapping[str, Texts], note: str = "") -> Table:
    """One column per item and one row per measure that at least one item has."""
    rows = [(name, *(texts[name] for texts in items.values())) for name in next(iter(items.values()), {})]
    return Table(caption, ("measure", *items), [row for row in rows if set(row[1:]) != {"–"}], note)


def summary_table(caption: str, groups: Mapping[str, Iterable[Attempt]]) -> Table:
    """Summaries, one column per group."""
    texts = {name or "unnamed": _summary_texts(summarize(attempts)) for name, attempts in groups.items()}
    return measure_table(caption, texts, "In brackets: the 95 % interval of a share, in percent.")


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
        task = attempt.task or attempt.kind
        is_shown = bool(attempt.text)
        return cls(task, attempt.language, is_shown, is_useful, attempt.is_exact, attempt.model_ms, attempt.steps)


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


def task_table(results: Iterable[TaskResult], right: str, note: str) -> Table:
    """One row for each object of `summarize_tasks`; `right` is what the results count as right."""
    rows = [
        (
            *(summary["language"] or "–", summary["task"] or "–", number(summary["num"])),
            *(percent(summary[name]) for name in ("shown", "useful", "right")),
            *(milliseconds(summary["model_ms_per_right"]), number(summary["steps_per_right"], 1)),
        )
        for summary in summarize_tasks(results)
    ]
    shares = ("shown", "useful, of shown", right)
    columns = ("language", "task", "requests", *shares, f"model time per {right} edit", f"steps per {right} edit")
    return Table("By language and task", columns, rows, note)


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
    by_task = grouped(known, lambda attempt: (attempt.language, attempt.task or attempt.kind))
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


def calibration_table(attempts: Iterable[Attempt]) -> Table | None:
    """The rows of `calibrate`; None if no fill has a confidence."""
    shares = ("mean_confidence", "right", "shown", "right_of_shown", "kept")
    listed = list(attempts)
    rows = [
        (
            *(row["language"], row["task"], f"{row['from']:g}", number(row["num"])),
            *(percent(row[name]) for name in shares),
        )
        for row in calibrate(listed)
    ]
    begun = [attempt for attempt in listed if attempt.beginning]
    above_columns = ("shown from here on", "right of these", "hits kept")
    columns = ("language", "task", "confidence from", "fills", "mean confidence", "right", *above_columns)
    note = (
        "Right means that the first line is right. A minimum confidence hides the rows above it; the last three "
        f"columns show its cost. An editor shows the beginning of {count(len(begun), 'improbable line')}; "
        f"{percent(_mean([attempt.reference.startswith(attempt.beginning) for attempt in begun]))} of these are right."
    )
    return Table("Confidence against right first lines", columns, rows, note) if rows else None


def percent(share: float | None) -> str:
    """`61.7 %`."""
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%"


def milliseconds(ms: float | None) -> str:
    """`8.4 ms`, `84 ms`, `1,240 ms`."""
    return "–" if ms is None else f"{ms:,.{1 if ms < 9.95 else 0}f}\N{NO-BREAK SPACE}ms"


def number(value: float | None, digits: int = 0) -> str:
    """`1,240`."""
    return "–" if value is None else f"{value:,.{digits}f}"


def count(num: int, noun: str) -> str:
    """`1 request`, `1,000 requests`."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def wilson_interval(share: float, num: int) -> tuple[float, float]:
    """95 % interval of a share of `num` (Wilson); 0 to 1 if `num` is 0."""
    if not num:
        return 0.0, 1.0
    z = 1.96
    scale = 1 + z * z / num
    centre = (share + z * z / (2 * num)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / num + z * z / (4 * num * num))
    return max(0.0, centre - half), min(1.0, centre + half)


def _share(share: float, num: float) -> str:
    low, high = wilson_interval(share, round(num))
    return f"{percent(share)} ({100 * low:.0f}–{100 * high:.0f})" if num else percent(share)


def _summary_texts(summary: Summary) -> Texts:
    num = summary["num"]
    ttfue = summary["ttfue_ms"]
    latency = summary["latency_ms"]
    return {
        "requests": number(num),
        **{f"useful by {cut:,} ms": _share(summary["useful_by"][str(cut)], num) for cut in CUTS},
        "TTFUE, median": milliseconds(ttfue["p50"]),
        "TTFUE, 90th percentile": milliseconds(ttfue["p90"]),
        "missed": _share(summary["miss_rate"], num),
        "exact match": _share(summary["exact_match"], num),
        "first line": _share(summary["first_line_match"], num),
        "pass@1": percent(summary["pass_at_1"]),
        "shown": _share(summary["show_rate"], num),
        "latency, median": milliseconds(latency["p50"]),
        "latency, 90th percentile": milliseconds(latency["p90"]),
        "latency, 95th percentile": milliseconds(latency["p95"]),
        "steps, mean": number(summary["steps_mean"], 2),
        "tokens per forward pass": number(summary["tokens_per_forward"], 2),
        "model time per useful edit": milliseconds(summary["model_ms_per_useful"]),
    }


# the audit log

Records = Sequence[AuditRecord]
_LATENCY_NOTE = (
    "Latency is that of answered requests: neither cancelled nor failed. The other times are medians, and tokens"
    " are means, over the requests that the model worked on."
)
_USEFUL_NOTE = (
    "Useful: the first line of an item stands in the buffer 30 seconds after the first key, or after its acceptance,"
    " without trailing blanks. Nothing useful is a miss, and a miss counts in every share. Quiet: nothing was shown,"
    " and nothing was missing; that is a miss, but right. Definitions: docs/ttfue.md."
)
_OUTCOMES = {
    "shown": "shown",
    "nothing": "nothing worth showing",
    "unfinished": "unfinished at the deadline",
    "cancelled": "cancelled by a newer request",
    "failed": "failed",
    "refused": "refused by the server",
    "ineligible": "not computed",
}
_UNSERVED = ("cancelled", "failed", "refused", "ineligible")
_TASK_NOTE = (
    "Useful and accepted (at least a word): of requests whose outcome in an editor is known. The costs are those of all"
    " these requests, divided by the number of accepted edits."
)


def audit_tables(records: Records, num_bad: int = 0, outcomes: Sequence[Outcome] = ()) -> list[Table]:
    """The tables of an audit log; `num_bad` is the number of lines that are not records."""
    groups = grouped(records, lambda record: record.endpoint)
    by_endpoint = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    requests = {name: _request_texts(listed) for name, listed in by_endpoint.items()}
    tables = [measure_table("Requests", requests, _LATENCY_NOTE)]
    reasons = {name: Counter(record.reason for record in listed) for name, listed in by_endpoint.items()}
    total = Counter(record.reason for record in records if record.reason)
    if total:
        rows = [
            (reason, *(number(counter[reason] or None) for counter in reasons.values()))
            for reason, _ in total.most_common()
        ]
        tables.append(Table("Why nothing was shown", ("reason", *reasons), rows))
    if outcomes:
        by_trigger = grouped(outcomes, lambda outcome: outcome.trigger)
        edits = {trigger: _edit_texts(listed) for trigger, listed in by_trigger.items()}
        tables.append(measure_table("Completions in editors", edits, _USEFUL_NOTE))
    by_request = {outcome.request: outcome for outcome in outcomes}
    results = [_task_result(record, by_request.get(record.request)) for record in records if record.task]
    if results:
        tables.append(task_table(results, "accepted", _TASK_NOTE))
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


def _request_texts(records: Records) -> Texts:
    answered = [record for record in records if record.outcome not in _UNSERVED]
    computed = [record for record in answered if record.generation_seconds and not record.is_cached]
    num_by_outcome = Counter(record.outcome for record in records)
    num_prompt = sum(record.prompt_tokens for record in computed)
    num_reused = sum(record.reused_tokens for record in computed)
    shares = {name: num_by_outcome[outcome] / len(records) for outcome, name in _OUTCOMES.items()}
    return {
        "requests": number(len(records)),
        **{name: percent(part) for name, part in shares.items()},
        "from the cache": percent(_mean([record.is_cached for record in records])),
        "latency": _time(0.5, (record.total_seconds for record in answered)),
        "latency, 95th percentile": _time(0.95, (record.total_seconds for record in answered)),
        "queue": _time(0.5, (record.queue_seconds for record in computed)),
        "queue, 95th percentile": _time(0.95, (record.queue_seconds for record in computed)),
        "prompt set-up": _time(0.5, (record.setup_seconds for record in computed)),
        "prefill": _time(0.5, (record.prefill_seconds for record in computed)),
        "generation": _time(0.5, (record.generation_seconds for record in computed)),
        "prompt tokens": _mean_text(record.prompt_tokens for record in computed),
        "prompt tokens from the cache": percent(num_reused / num_prompt if num_prompt else None),
        "output tokens": _mean_text(record.output_tokens for record in computed),
        "steps": _mean_text(record.steps for record in computed),
        "step limit": _mean_text(record.step_limit for record in computed if record.step_limit),
        "prompt rate": _rate("tokens/s", (record.prompt_rate for record in computed)),
        "output rate": _rate("tokens/s", (record.output_rate for record in computed)),
        "step rate": _rate("steps/s", (record.step_rate for record in computed)),
    }


def _rate(unit: str, rates: Iterable[float]) -> str:
    """The median of those that are known."""
    median = quantile([rate for rate in rates if rate], 0.5)
    return "–" if median is None else f"{number(median)} {unit}"


def _time(part: float, seconds: Iterable[float]) -> str:
    return milliseconds(quantile([1e3 * value for value in seconds], part))


def _mean_text(values: Iterable[float]) -> str:
    return number(_mean(list(values)), 1)


def _edit_texts(outcomes: Sequence[Outcome]) -> Texts:
    """What became of the completions of editors, by the formulae of `bench replay`."""
    num = len(outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    accepted = Counter(outcome.accepted for outcome in outcomes)
    answered = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.CANCELLED, Verdict.FAILED)]
    num_finished = sum(outcome.is_line_finished for outcome in answered)
    hits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None]
    edits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None and not outcome.is_rest]
    times = summarize_times(num, hits)
    silence = summarize_edits(num, len(hits), verdicts[Verdict.QUIET], num_finished, edits)
    return {
        "requests": number(num),
        "shown": percent(share(sum(outcome.num_items > 0 for outcome in outcomes), num)),
        "useful edits": number(len(edits)),
        "useful edits, median": milliseconds(silence["useful_edits"]["p50"]),
        "useful edits, 90th percentile": milliseconds(silence["useful_edits"]["p90"]),
        **{f"useful by {cut:,} ms": percent(times["useful_by"][str(cut)]) for cut in CUTS},
        "TTFUE, median": milliseconds(times["ttfue_ms"]["p50"]),
        "TTFUE, 90th percentile": milliseconds(times["ttfue_ms"]["p90"]),
        "miss rate": percent(times["miss_rate"]),
        **{name.value: percent(share(verdicts[name], num)) for name in Verdict},
        **{f"accepted: {part.value}": number(accepted[part]) for part in AcceptedPart if part is not AcceptedPart.NONE},
        "right": percent(silence["right_rate"]),
        "quiet, of finished lines": percent(silence["quiet_rate"]),
    }
