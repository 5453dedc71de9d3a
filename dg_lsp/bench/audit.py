"""Tables of an audit log: requests, their cost, and what became of the completions of editors."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from dg_lsp.bench import metrics
from dg_lsp.engine import ttfue
from dg_lsp.engine.audit import AuditRecord
from dg_lsp.engine.ttfue import Outcome

USEFUL_LATER = (
    "Useful: the first line of an item stands in the buffer 30 seconds after the first key, or after its acceptance,"
    " without trailing blanks. Nothing useful is a miss, and a miss counts in every share. Quiet: nothing was shown,"
    " and nothing was missing; that is a miss, but right. Definitions: docs/ttfue.md."
)
Records = Sequence[AuditRecord]


def audit_tables(records: Records, num_bad: int = 0, outcomes: Sequence[Outcome] = ()) -> list[metrics.Table]:
    """The tables of an audit log; `num_bad` is the number of lines that are not records."""
    groups = metrics.grouped(records, lambda record: record.endpoint)
    groups = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    note = (
        "Latency is that of answered requests: neither cancelled nor failed. The other times are medians, and tokens"
        " are means, over the requests that the model worked on."
    )
    table = metrics.measure_table("Requests", {name: _audit_texts(listed) for name, listed in groups.items()}, note)
    facts = [(name, str(value)) for name, value in _log_facts(records, num_bad).items()]
    log = metrics.Table("Records", ("name", "value"), {"": facts})
    return [table, *_reasons(groups), *_edits(outcomes), log]


def _edits(outcomes: Sequence[Outcome]) -> list[metrics.Table]:
    """What became of the completions of editors, by their trigger."""
    groups = metrics.grouped(outcomes, lambda outcome: outcome.trigger)
    if not groups:
        return []
    texts = {trigger: _edit_texts(listed) for trigger, listed in groups.items()}
    return [metrics.measure_table("Completions in editors", texts, USEFUL_LATER)]


def _edit_texts(outcomes: Sequence[Outcome]) -> metrics.Texts:
    numbers = ttfue.summarize_outcomes(outcomes)
    edits, times, num = numbers["useful_edits"], numbers["ttfue_ms"], numbers["num"]
    return {
        "": {"requests": metrics.number(num), "useful edits": metrics.number(edits["num"])},
        "Time to first useful edit (TTFUE)": {
            **{f"useful by {cut:,} ms": metrics.percent(numbers["useful_by"][str(cut)]) for cut in ttfue.CUTS},
            "TTFUE, median": metrics.milliseconds(times["p50"]),
            "TTFUE, 90th percentile": metrics.milliseconds(times["p90"]),
            "miss rate": metrics.percent(numbers["miss_rate"]),
        },
        "Verdict": {name: metrics.percent(ttfue.share(part, num)) for name, part in numbers["verdicts"].items()},
        "Accepted": {
            **{name: metrics.number(part) for name, part in numbers["accepted"].items() if name != "none"},
            "still there after 30 s": metrics.percent(numbers["kept_rate"]),
        },
        "Silence": {"right": metrics.percent(numbers["right_rate"]), "quiet": metrics.percent(numbers["quiet_rate"])},
    }


def _audit_texts(records: Records) -> metrics.Texts:
    answered = _answered(records)
    computed = [record for record in answered if record.generation_seconds and not record.is_cached]
    outcomes = Counter(record.outcome for record in records)
    num_prompt = sum(record.prompt_tokens for record in computed)
    num_reused = sum(record.reused_tokens for record in computed)

    def times(listed: Records, field: str, fraction: float = 0.5) -> str:
        return metrics.milliseconds(
            ttfue.quantile([1e3 * float(getattr(record, field)) for record in listed], fraction)
        )

    def tokens(field: str) -> str:
        return metrics.number(fmean(float(getattr(record, field)) for record in computed) if computed else None, 1)

    def speed(field: str) -> str:
        speeds = [float(getattr(record, field)) / record.generation_seconds for record in computed]
        return f"{metrics.number(ttfue.quantile(list(filter(None, speeds)), 0.5))} tokens/s" if any(speeds) else "–"

    return {
        "": {"requests": metrics.number(len(records))},
        "Outcome": {
            **{name: metrics.percent(outcomes[outcome] / len(records)) for outcome, name in _OUTCOMES.items()},
            "from the cache": metrics.percent(fmean(record.is_cached for record in records)),
        },
        "Time": {
            "latency": times(answered, "total_seconds"),
            "latency, 90th percentile": times(answered, "total_seconds", 0.9),
            "latency, 95th percentile": times(answered, "total_seconds", 0.95),
            **{
                f"{stage}{note}": times(computed, f"{stage}_seconds", fraction)
                for stage in ("queue", "prefill", "generation")
                for note, fraction in (("", 0.5), (", 95th percentile", 0.95))
            },
        },
        "Tokens": {
            "prompt": tokens("prompt_tokens"),
            "prompt from the cache": metrics.percent(num_reused / num_prompt if num_prompt else None),
            "output": tokens("output_tokens"),
            "canvas": tokens("canvas_tokens"),
            "canvases": tokens("blocks"),
            "steps": tokens("steps"),
            "output speed": speed("output_tokens"),
            "canvas speed": speed("canvas_tokens"),
        },
    }


_OUTCOMES = {
    "shown": "shown",
    "nothing": "nothing worth showing",
    "unfinished": "unfinished at the deadline",
    "cancelled": "cancelled by a newer request",
    "failed": "failed",
    "ineligible": "not computed",
}


def _reasons(groups: Mapping[str, Records]) -> list[metrics.Table]:
    counts = {name: Counter(record.reason for record in records if record.reason) for name, records in groups.items()}
    total = sum(counts.values(), Counter[str]())
    rows = [
        (reason, *(metrics.number(counter[reason] or None) for counter in counts.values()))
        for reason, _ in total.most_common()
    ]
    return [metrics.Table("Why nothing was shown", ("reason", *groups), {"": rows})] if rows else []


def _log_facts(records: Records, num_bad: int) -> dict[str, object]:
    times = sorted(record.time for record in records)
    models = sorted({record.model for record in records if record.model})
    return {
        "requests": len(records),
        "lines that are not records": num_bad,
        "first": times[0],
        "last": times[-1],
        "models": ", ".join(models),
        "peak memory, MB": round(max(record.resident_bytes for record in records) / 1e6),
    }


def _answered(records: Records) -> list[AuditRecord]:
    return [record for record in records if record.outcome not in ("cancelled", "failed", "ineligible")]
