"""Tables of an audit log: requests, their cost, and what became of the completions of editors."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean

from dg_lsp.bench import metrics
from dg_lsp.engine import ttfue
from dg_lsp.engine.audit import AuditRecord
from dg_lsp.engine.ttfue import AcceptedPart, Outcome, Verdict

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


def audit_tables(records: Records, num_bad: int = 0, outcomes: Sequence[Outcome] = ()) -> list[metrics.Table]:
    """The tables of an audit log; `num_bad` is the number of lines that are not records."""
    groups = metrics.grouped(records, lambda record: record.endpoint)
    by_endpoint = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    requests = {name: _request_texts(listed) for name, listed in by_endpoint.items()}
    tables = [metrics.measure_table("Requests", requests, _LATENCY_NOTE)]
    reasons = {name: Counter(record.reason for record in listed) for name, listed in by_endpoint.items()}
    total = Counter(record.reason for record in records if record.reason)
    if total:
        rows = [
            (reason, *(metrics.number(counter[reason] or None) for counter in reasons.values()))
            for reason, _ in total.most_common()
        ]
        tables.append(metrics.Table("Why nothing was shown", ("reason", *reasons), rows))
    if outcomes:
        by_trigger = metrics.grouped(outcomes, lambda outcome: outcome.trigger)
        edits = {trigger: _edit_texts(listed) for trigger, listed in by_trigger.items()}
        tables.append(metrics.measure_table("Completions in editors", edits, _USEFUL_NOTE))
    by_request = {outcome.request: outcome for outcome in outcomes}
    results = [_task_result(record, by_request.get(record.request)) for record in records if record.task]
    if results:
        tables.append(metrics.task_table(results, "accepted", _TASK_NOTE))
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
    return [*tables, metrics.Table("Records", ("name", "value"), facts)]


def _task_result(record: AuditRecord, outcome: Outcome | None) -> metrics.TaskResult:
    return metrics.TaskResult(
        task=record.task,
        language=record.language,
        is_shown=record.outcome == "shown",
        is_useful=None if outcome is None else outcome.verdict == Verdict.USEFUL,
        is_right=outcome is not None and outcome.accepted != AcceptedPart.NONE,
        model_ms=0.0 if record.is_cached else 1e3 * (record.prefill_seconds + record.generation_seconds),
        steps=record.steps,
    )


def _request_texts(records: Records) -> metrics.Texts:
    answered = [record for record in records if record.outcome not in _UNSERVED]
    computed = [record for record in answered if record.generation_seconds and not record.is_cached]
    num_by_outcome = Counter(record.outcome for record in records)
    num_prompt = sum(record.prompt_tokens for record in computed)
    num_reused = sum(record.reused_tokens for record in computed)
    shares = {name: num_by_outcome[outcome] / len(records) for outcome, name in _OUTCOMES.items()}
    return {
        "requests": metrics.number(len(records)),
        **{name: metrics.percent(share) for name, share in shares.items()},
        "from the cache": metrics.percent(fmean(record.is_cached for record in records)),
        "latency": _time(0.5, (record.total_seconds for record in answered)),
        "latency, 95th percentile": _time(0.95, (record.total_seconds for record in answered)),
        "queue": _time(0.5, (record.queue_seconds for record in computed)),
        "queue, 95th percentile": _time(0.95, (record.queue_seconds for record in computed)),
        "prompt set-up": _time(0.5, (record.setup_seconds for record in computed)),
        "prefill": _time(0.5, (record.prefill_seconds for record in computed)),
        "generation": _time(0.5, (record.generation_seconds for record in computed)),
        "prompt tokens": _mean(record.prompt_tokens for record in computed),
        "prompt tokens from the cache": metrics.percent(num_reused / num_prompt if num_prompt else None),
        "output tokens": _mean(record.output_tokens for record in computed),
        "steps": _mean(record.steps for record in computed),
        "step limit": _mean(record.step_limit for record in computed if record.step_limit),
        "prompt rate": _rate("tokens/s", (record.prompt_rate for record in computed)),
        "output rate": _rate("tokens/s", (record.output_rate for record in computed)),
        "step rate": _rate("steps/s", (record.step_rate for record in computed)),
    }


def _rate(unit: str, rates: Iterable[float]) -> str:
    """The median of those that are known."""
    median = ttfue.quantile([rate for rate in rates if rate], 0.5)
    return "–" if median is None else f"{metrics.number(median)} {unit}"


def _time(part: float, seconds: Iterable[float]) -> str:
    return metrics.milliseconds(ttfue.quantile([1e3 * value for value in seconds], part))


def _mean(values: Iterable[float]) -> str:
    listed = list(values)
    return metrics.number(fmean(listed) if listed else None, 1)


def _edit_texts(outcomes: Sequence[Outcome]) -> metrics.Texts:
    """What became of the completions of editors, by the formulae of `bench replay`."""
    num = len(outcomes)
    verdicts = Counter(outcome.verdict for outcome in outcomes)
    accepted = Counter(outcome.accepted for outcome in outcomes)
    answered = [outcome for outcome in outcomes if outcome.verdict not in (Verdict.CANCELLED, Verdict.FAILED)]
    num_finished = sum(outcome.is_line_finished for outcome in answered)
    hits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None]
    edits = [outcome.ttfue_ms for outcome in outcomes if outcome.ttfue_ms is not None and not outcome.is_rest]
    times = ttfue.summarize_times(num, hits)
    silence = ttfue.summarize_edits(num, len(hits), verdicts[Verdict.QUIET], num_finished, edits)
    return {
        "requests": metrics.number(num),
        "useful edits": metrics.number(len(edits)),
        **{f"useful by {cut:,} ms": metrics.percent(times["useful_by"][str(cut)]) for cut in ttfue.CUTS},
        "TTFUE, median": metrics.milliseconds(times["ttfue_ms"]["p50"]),
        "TTFUE, 90th percentile": metrics.milliseconds(times["ttfue_ms"]["p90"]),
        "miss rate": metrics.percent(times["miss_rate"]),
        **{name.value: metrics.percent(ttfue.share(verdicts[name], num)) for name in Verdict},
        **{
            f"accepted: {part.value}": metrics.number(accepted[part])
            for part in AcceptedPart
            if part is not AcceptedPart.NONE
        },
        "right": metrics.percent(silence["right_rate"]),
        "quiet, of finished lines": metrics.percent(silence["quiet_rate"]),
    }
