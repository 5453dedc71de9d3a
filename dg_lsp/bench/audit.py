"""Page of an audit log: how many requests, how fast, and their outcomes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from dg_lsp.bench.charts import Chart, latency_histogram, step_histogram
from dg_lsp.bench.metrics import Measures, Table, count, grouped, measure_table, milliseconds, number, percent, quantile
from dg_lsp.bench.report import Page, Section, facts_table
from dg_lsp.engine.audit import AuditRecord

Records = Sequence[AuditRecord]
Show = Callable[[Records], str]


def audit_page(records: Records, title: str, num_bad: int = 0) -> Page:
    """`num_bad` is the number of lines that are not records."""
    groups = grouped(records, lambda record: record.endpoint)
    groups = dict(sorted(groups.items(), key=lambda item: -len(item[1])))
    note = "Times are medians without cancelled requests. Tokens are means over the requests that the model worked on."
    sections = (
        Section("numbers", "Numbers", [measure_table("Requests", _MEASURES, groups, note), *_reasons(groups)]),
        Section("charts", "Time and steps", _charts(groups)),
        Section("log", "Log", [facts_table("Records", _log(records, num_bad))]),
    )
    date = max((record.time for record in records), default="")[:10]
    lead = "The log has no requests."
    if records:
        shown = percent(sum(record.outcome == "shown" for record in records) / len(records), 0)
        median = milliseconds(_quantile(_answered(records), "total_seconds"))
        lead = f"{shown} of {count(len(records), 'request')} had a fill; the median answer took {median}."
    return Page(title, date, lead, (), sections)


def _outcome(name: str) -> Show:
    return lambda records: percent(sum(record.outcome == name for record in records) / len(records))


def _time(field: str, fraction: float = 0.5) -> Show:
    return lambda records: milliseconds(_quantile(_answered(records), field, fraction))


def _tokens(field: str) -> Show:
    def show(records: Records) -> str:
        values = [float(getattr(record, field)) for record in _computed(records)]
        return number(fmean(values) if values else None, 1)

    return show


def _speed(field: str) -> Show:
    def show(records: Records) -> str:
        speeds = [speed for record in _computed(records) if (speed := float(getattr(record, field)))]
        return f"{number(quantile(speeds, 0.5))} tokens/s" if speeds else "–"

    return show


def _reused(records: Records) -> str:
    prompt = sum(record.prompt_tokens for record in _computed(records))
    return percent(sum(record.reused_tokens for record in _computed(records)) / prompt if prompt else None)


_MEASURES: Measures[Records] = {
    "": {"requests": lambda records: number(len(records))},
    "Outcome": {
        "shown": _outcome("shown"),
        "nothing worth showing": _outcome("nothing"),
        "unfinished at the deadline": _outcome("unfinished"),
        "cancelled by a newer request": _outcome("cancelled"),
        "failed": _outcome("failed"),
        "from the cache": lambda records: percent(sum(record.is_cached for record in records) / len(records)),
    },
    "Time": {
        "latency": _time("total_seconds"),
        "latency, 90th percentile": _time("total_seconds", 0.9),
        "queue": _time("queue_seconds"),
        "prefill": _time("prefill_seconds"),
        "generation": _time("generation_seconds"),
    },
    "Tokens": {
        "prompt": _tokens("prompt_tokens"),
        "prompt from the cache": _reused,
        "output": _tokens("output_tokens"),
        "canvas": _tokens("canvas_tokens"),
        "steps": _tokens("steps"),
        "output speed": _speed("visible_speed"),
        "canvas speed": _speed("canvas_speed"),
    },
}


def _reasons(groups: Mapping[str, Records]) -> list[Table]:
    counts = {name: Counter(record.reason for record in records if record.reason) for name, records in groups.items()}
    total = sum(counts.values(), Counter[str]())
    rows = [(one, *(number(found[one] or None) for found in counts.values())) for one, _ in total.most_common()]
    return [Table("Why nothing was shown", ("reason", *groups), {"": rows})] if rows else []


def _charts(groups: Mapping[str, Records]) -> list[Chart]:
    answered = {name: _answered(records) for name, records in groups.items()}
    latencies = {name: [1e3 * r.total_seconds for r in records] for name, records in answered.items() if records}
    steps = {name: found for name, listed in answered.items() if (found := [float(r.steps) for r in listed if r.steps])}
    return [draw(values) for draw, values in ((latency_histogram, latencies), (step_histogram, steps)) if values]


def _log(records: Records, num_bad: int) -> dict[str, object]:
    times = sorted(record.time for record in records)
    return {
        "requests": len(records),
        "lines that are not records": num_bad or None,
        "first": times[0] if times else None,
        "last": times[-1] if times else None,
        "models": sorted({record.model for record in records if record.model}),
        "decoders": sorted({record.decoder for record in records if record.decoder}),
        "slots": len({record.slot for record in records if record.slot >= 0}),
        "peak memory, MB": round(max((record.resident_bytes for record in records), default=0) / 1e6),
    }


def _answered(records: Records) -> list[AuditRecord]:
    return [record for record in records if record.outcome != "cancelled"]


def _computed(records: Records) -> list[AuditRecord]:
    return [record for record in _answered(records) if record.generation_seconds and not record.is_cached]


def _quantile(records: Records, field: str, fraction: float = 0.5) -> float | None:
    return quantile([1e3 * float(getattr(record, field)) for record in records], fraction)
