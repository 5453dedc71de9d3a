"""The audit log as a page like the benchmark's. What was right nobody knows here: it says how fast, and how much."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from dg_lsp.bench.report.chart import look, table
from dg_lsp.bench.report.facts import facts
from dg_lsp.bench.report.histograms import Row, latencies, steps
from dg_lsp.bench.report.markup import Html, element, join
from dg_lsp.bench.report.page import document
from dg_lsp.bench.report.wording import count, milliseconds, percent
from dg_lsp.engine.audit import AuditRecord
from dg_lsp.metrics.summary import percentile

_OUTCOMES = ("shown", "nothing", "unfinished", "cancelled", "failed")
_STAGES = ("queue", "prefill", "generation")
_SAID = {
    "shown": "Something was worth showing.",
    "nothing": "Nothing was, for the reason that the table names.",
    "unfinished": "The deadline came before anything was stable.",
    "cancelled": "A newer request took its place, or its client left.",
    "failed": "The engine could not answer; the reason is the kind of the error.",
    "latency": "From a request's arrival at the engine to its answer; cancelled requests are left out.",
    "queue": "Before the model turned to the request.",
    "prefill": "Making the prompt, and decoding what the cache lacked of it.",
    "generation": "Denoising or decoding the answer.",
    "reused": "Prompt tokens that the cache held already, of all prompt tokens.",
    "visible speed": "Output tokens per second of generation.",
    "canvas speed": "Tokens of all canvases per second of generation: what was computed for the output.",
}

Records = Sequence[AuditRecord]


def audit_page(records: Records, title: str, num_bad: int = 0) -> str:
    """The whole page; of no records, one that says so."""
    by_endpoint: dict[str, list[AuditRecord]] = {}
    for record in records:
        by_endpoint.setdefault(record.endpoint, []).append(record)
    ordered = dict(sorted(by_endpoint.items(), key=lambda item: -len(item[1])))
    listed = [
        ("numbers", "Numbers", join((_requests(ordered), _times(ordered), _tokens(ordered), _reasons(ordered)))),
        ("charts", "Time and steps", _charts(ordered)),
        ("machine", "Log", _log(records, num_bad)),
        ("definitions", "What each number says", _definitions()),
    ]
    date = max((record.time for record in records), default="")[:10]
    return document(title, date, _lead(records), Html(), listed if records else listed[2:3])


def _lead(records: Records) -> Html:
    if not records:
        return element("p", "No request was written down.", class_="lead")
    answered = _answered(records)
    shown = sum(record.outcome == "shown" for record in records)
    said: list[str] = [element("strong", percent(shown / len(records), 0)), f" of {count(len(records), 'request')}"]
    said.append(" were shown something")
    if answered:
        said.append(f"; half of the answers took at most {milliseconds(_middle(answered, _latency))}")
    return element("p", *said, ".", class_="lead")


def _requests(by_endpoint: Mapping[str, Records]) -> Html:
    rows = []
    for endpoint, records in by_endpoint.items():
        counts = Counter(record.outcome for record in records)
        shares = (percent(counts[outcome] / len(records)) for outcome in _OUTCOMES)
        cached = sum(record.is_cached for record in records) / len(records)
        rows.append((endpoint, f"{len(records):,}", *shares, percent(cached)))
    return table("Requests", ("endpoint", "requests", *_OUTCOMES, "typed through"), {"": rows})


def _times(by_endpoint: Mapping[str, Records]) -> Html:
    rows = []
    for endpoint, records in by_endpoint.items():
        answered = _answered(records)
        spans: list[Callable[[AuditRecord], float]] = [_stage(name) for name in _STAGES]
        halves = (_middle(answered, span) for span in (_latency, *spans))
        tail = _middle(answered, _latency, 0.9)
        first, *others = (milliseconds(value) for value in halves)
        rows.append((endpoint, first, milliseconds(tail), *others))
    columns = ("endpoint", "latency, median", "90th percentile", *(f"{name}, median" for name in _STAGES))
    return table("Times of the answers", columns, {"": rows}, "Cancelled requests are left out.")


def _tokens(by_endpoint: Mapping[str, Records]) -> Html:
    rows = []
    for endpoint, records in by_endpoint.items():
        computed = [record for record in _answered(records) if record.generation_seconds and not record.is_cached]
        prompt = sum(record.prompt_tokens for record in computed)
        reused = sum(record.reused_tokens for record in computed)
        means = (_mean(computed, name) for name in ("prompt_tokens", "output_tokens", "canvas_tokens", "steps"))
        speeds = (_speed(computed, name) for name in ("visible_speed", "canvas_speed"))
        rows.append((endpoint, *means, percent(reused / prompt if prompt else None), *speeds))
    columns = ("endpoint", "prompt tokens", "output", "canvas", "steps", "reused", "visible speed", "canvas speed")
    hint = "Means over the requests that the model worked on; speeds are medians, in tokens per second."
    return table("Tokens", columns, {"": rows}, hint)


def _reasons(by_endpoint: Mapping[str, Records]) -> Html:
    counts = {name: Counter(one.reason for one in records if one.reason) for name, records in by_endpoint.items()}
    reasons = sum(counts.values(), Counter())
    if not reasons:
        return Html()
    rows = [
        (reason, *(f"{found[reason]:,}" if found[reason] else "–" for found in counts.values()))
        for reason, _ in reasons.most_common()
    ]
    return table("Why nothing was shown", ("reason", *by_endpoint), {"": rows})


def _charts(by_endpoint: Mapping[str, Records]) -> Html:
    looks = {name: look(i, is_baseline=False) for i, name in enumerate(by_endpoint)}
    answered = {name: _answered(records) for name, records in by_endpoint.items()}
    times = [Row(name, looks[name], sorted(map(_latency, records))) for name, records in answered.items() if records]
    worked = [
        Row(name, looks[name], sorted(float(record.steps) for record in records if record.steps))
        for name, records in answered.items()
        if any(record.steps for record in records)
    ]
    return join((latencies(times) if times else Html(), steps(worked) if worked else Html()))


def _log(records: Records, num_bad: int) -> Html:
    times = sorted(record.time for record in records)
    return facts(
        {
            "requests": len(records),
            "lines that are no records": num_bad or None,
            "first": times[0] if times else None,
            "last": times[-1] if times else None,
            "models": sorted({record.model for record in records if record.model}),
            "decoders": sorted({record.decoder for record in records if record.decoder}),
            "slots": len({record.slot for record in records if record.slot >= 0}),
            "most memory, MB": round(max((record.resident_bytes for record in records), default=0) / 1e6),
        }
    )


def _definitions() -> Html:
    return element("dl", *(element("div", element("dt", name), element("dd", text)) for name, text in _SAID.items()))


def _answered(records: Records) -> list[AuditRecord]:
    return [record for record in records if record.outcome != "cancelled"]


def _latency(record: AuditRecord) -> float:
    return 1e3 * record.total_seconds


def _stage(name: str) -> Callable[[AuditRecord], float]:
    return lambda record: 1e3 * float(getattr(record, f"{name}_seconds"))


def _middle(records: Records, value: Callable[[AuditRecord], float], share: float = 0.5) -> float | None:
    return percentile(sorted(map(value, records)), share) if records else None


def _mean(records: Records, name: str) -> str:
    return f"{fmean(getattr(record, name) for record in records):,.1f}" if records else "–"


def _speed(records: Records, name: str) -> str:
    speeds = sorted(speed for record in records if (speed := float(getattr(record, name))))
    return f"{percentile(speeds, 0.5):,.0f}" if speeds else "–"
