"""Pages of benchmarks: self-contained files that load nothing and run only their own script.

The page of a benchmark may have films: some fills, repeated and recorded step by step.
"""

import base64
import dataclasses
import datetime
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from itertools import islice, zip_longest
from pathlib import Path

import jinja2
from markupsafe import Markup

from dg_lsp import __version__
from dg_lsp.bench import metrics
from dg_lsp.bench.charts import Chart, calibration, latency_histogram, step_histogram, useful_by, visible
from dg_lsp.bench.dataset import TestCase
from dg_lsp.bench.runner import Run, flattened
from dg_lsp.bench.timeline import Timeline
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine import ttfue
from dg_lsp.engine.engine import Engine, drain
from dg_lsp.engine.request import FillRequest
from dg_lsp.engine.result import Cell, Frame
from dg_lsp.errors import InputFileError, UsageError, with_extra
from dg_lsp.postprocess.validate import Reason

BASELINE = DecoderName.AUTOREGRESSIVE.value
NUM_EXAMPLES = 5
_MAX_EXAMPLE = 1000
"""Characters of the texts in an example."""
_LEAD_CUT = 250
_USEFUL = (
    "A shown item is useful if its first line equals the first line of the reference, without trailing blanks, or if"
    " the completed program passes its tests. Time to first useful edit (TTFUE): from the arrival of a request to the"
    " departure of its first useful item. Nothing useful is a miss, and a miss counts in every share. Definitions for"
    " all servers: docs/ttfue.md."
)
MASK = "·"
BOUNDS = (0.2, 0.5, 0.7, 0.9, 0.99)
"""Confidences at which the colour changes; a draft below the first one is shown as a mask."""
NUM_LINES_BEFORE, NUM_LINES_AFTER = 4, 3
_MAX_CONTEXT = 400
"""Characters on either side of the cursor."""
Attempts = Mapping[str, Sequence[metrics.Attempt]]


@dataclass(frozen=True, slots=True)
class FilmStep:
    """The fill after one step: text of earlier canvases, and CSS classes and text of the positions of this one."""

    caption: str
    settled: str
    tokens: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Film:
    """One fill, step by step, with some text before and after the cursor. An empty text was not shown."""

    kind = "film"
    case: str
    reference: str
    frames: tuple[Frame, ...]
    before: str
    after: str
    text: str
    decoder: str
    outcome: str

    def steps(self) -> Iterator[FilmStep]:
        """All steps, ready for display; a step ends before its first end token."""
        previous = Frame(0, 0, (), "")
        for frame in self.frames:
            old = [cell.is_committed for cell in previous.cells if previous.block == frame.block]
            tokens = [_token(cell, is_new=not any(old[i : i + 1])) for i, cell in enumerate(frame.cells)]
            has_gaps = any(cell.is_frozen for cell in frame.cells)  # an end token ends its gap only
            end = next((i for i, cell in enumerate(frame.cells) if cell.is_end and not has_gaps), len(tokens))
            free = [cell for cell in frame.cells if not cell.is_frozen]
            accepted = sum(cell.is_committed for cell in free)
            caption = f"Step {frame.step} of {self.frames[-1].step}: {accepted} of {len(free)} positions accepted"
            yield FilmStep(caption, frame.earlier_text, tuple(tokens[:end]))
            previous = frame


@dataclass(frozen=True, slots=True)
class Examples:
    """Some attempts that were not useful for the same reason."""

    kind = "examples"
    title: str
    meaning: str
    attempts: Sequence[tuple[str, str, str, str]]  # case, facts, reference and text


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; without blocks it is left out."""

    id: str
    title: str
    blocks: Sequence[metrics.Table | Chart | Film | Examples | Timeline]


@dataclass(frozen=True, slots=True)
class Page:
    """Everything on a page."""

    title: str
    date: str
    lead: str
    notes: Sequence[str]
    sections: Sequence[Section]

    def html(self) -> str:
        """The whole file. Everything but the template is escaped."""
        environment = jinja2.Environment(
            autoescape=True, finalize=_finalize, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["sha256"] = _sha256
        environment.globals |= {"style": _asset("report.css"), "script": _asset("report.js")}
        template = environment.from_string(_asset("report.html.j2"))
        return template.render(page=self, version=__version__, bounds=(0.0, *BOUNDS, 1.0), mask=MASK).lstrip()

    def write(self, path: Path) -> None:
        """Writes the file at once or not at all. Raises `InputFileError` if the path is not writable."""
        check_page_path(path)
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_bytes(self.html().encode())
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error


def check_page_path(path: Path) -> None:
    """Refuses before any work is done.

    Raises:
        InputFileError: the path is a directory, or its directory does not exist.
        UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError(f"pages need matplotlib: {with_extra('bench')}")
    if path.is_dir():
        raise InputFileError(f"{path} is a directory: name a file in it for the page")
    if not path.parent.is_dir():
        raise InputFileError(f"no directory {path.parent}: make it, or write the page elsewhere")


def benchmark_page(
    title: str,
    run: Run,
    tables: Sequence[metrics.Table],
    films: Sequence[Film] = (),
    timelines: Sequence[Timeline] = (),
) -> Page:
    """The page of a run."""
    attempts = metrics.by_contender(run.attempts)
    header = run.header
    digests = {**({header.model: header.model_sha256} if header.model_sha256 else {}), **header.data}
    machine = {**dataclasses.asdict(header.machine), **{f"sha256 of {name}": value for name, value in digests.items()}}
    facts = [facts_table("Machine", machine), facts_table("Options", header.options)]
    sections = (
        Section("typing", "The typing, key by key", timelines),
        Section("numbers", "Numbers", tables),
        Section("charts", "Time and steps", _charts(attempts) if run.attempts else []),
        Section("confidence", "Confidence", _calibrations(attempts)),
        Section("films", "Films", films),
        Section("misses", "Misses", list(_misses(attempts))),
        Section("machine", "Machine and options", facts),
    )
    return Page(title, datetime.date.today().isoformat(), _lead(attempts), (*run.notes, _USEFUL), sections)


def facts_table(caption: str, tree: Mapping[str, object]) -> metrics.Table:
    """Nested mappings become dotted names; unknown and empty values are left out."""
    rows = [(name, _fact(value)) for name, value in flattened(tree).items() if value not in (None, "", [], ())]
    return metrics.Table(caption, ("name", "value"), {"": rows})


def _lead(attempts: Attempts) -> str:
    summaries = {name: metrics.summarize(listed) for name, listed in attempts.items()}
    if not summaries:
        return "No request was answered."
    first, *others = summaries
    soon = {name: metrics.percent(summary["useful_by"][str(_LEAD_CUT)], 0) for name, summary in summaries.items()}
    lead = (
        f"{soon[first]} of {metrics.count(summaries[first]['num'], 'request')} had a useful edit within {_LEAD_CUT} ms"
        f" by {first}"
    )
    if others:
        other = BASELINE if BASELINE in others else others[0]
        lead += f", {soon[other]} by {other}"
    return f"{lead}."


def _charts(attempts: Attempts) -> list[Chart]:
    hits = {name: [a.ttfue_ms for a in listed if a.ttfue_ms is not None] for name, listed in attempts.items()}
    latencies = {name: [attempt.latency_ms for attempt in listed] for name, listed in attempts.items()}
    steps = {name: [float(a.steps) for a in listed if a.steps is not None] for name, listed in attempts.items()}
    steps = {name: listed for name, listed in steps.items() if listed}  # a server may not report them
    nums = {name: len(listed) for name, listed in attempts.items()}
    charts = [useful_by(hits, nums, BASELINE), latency_histogram(latencies, BASELINE)]
    return [*charts, step_histogram(steps, BASELINE)] if steps else charts


def _calibrations(attempts: Attempts) -> list[Chart]:
    groups = {name: bins for name, listed in attempts.items() if (bins := metrics.calibration(listed))}
    return [calibration(groups, BASELINE)] if groups else []


_MEANINGS = {
    "wrong": "The first line of the shown text differs from that of the reference.",
    "late": f"Useful, but after {ttfue.CUTS[-1]:,} ms; not a miss.",
    "nothing": "Nothing was shown, for an unknown reason.",
    "cancelled": "The next key cancelled the request.",
    **{reason.value: f"It {reason.problem}." for reason in Reason},
}


def _miss_reason(attempt: metrics.Attempt) -> str | None:
    """None for an attempt that was useful in time."""
    if attempt.ttfue_ms is not None:
        return "late" if attempt.ttfue_ms > ttfue.CUTS[-1] else None
    return "wrong" if attempt.text else attempt.rejection or "nothing"


def _misses(attempts: Attempts) -> Iterator[metrics.Table | Examples]:
    """Numbers by reason, and some examples of each."""
    by_reason: dict[str, dict[str, list[metrics.Attempt]]] = {}
    for name, listed in attempts.items():
        for attempt in listed:
            if reason := _miss_reason(attempt):
                by_reason.setdefault(reason, {}).setdefault(name, []).append(attempt)
    ordered = sorted(by_reason.items(), key=lambda item: (-sum(map(len, item[1].values())), item[0]))
    rows = []
    for reason, missed in ordered:
        nums = {name: len(missed.get(name, ())) for name in attempts}
        cells = (
            f"{num:,} ({metrics.percent(num / len(attempts[name]))})" if num else "–" for name, num in nums.items()
        )
        rows.append((reason, *cells))
    yield metrics.Table(f"Without a useful edit within {ttfue.CUTS[-1]:,} ms", ("reason", *attempts), {"": rows})
    for reason, missed in ordered:
        mixed = (attempt for row in zip_longest(*missed.values()) for attempt in row if attempt is not None)
        chosen = list(islice(mixed, NUM_EXAMPLES))
        title = f"{reason}: {metrics.count(len(chosen), 'example')} of {sum(map(len, missed.values())):,}"
        yield Examples(title, _MEANINGS.get(reason, ""), [_example(attempt) for attempt in chosen])


def _example(attempt: metrics.Attempt) -> tuple[str, str, str, str]:
    facts = ", ".join(filter(None, (attempt.contender, attempt.kind, metrics.milliseconds(attempt.latency_ms))))
    return (
        attempt.case,
        facts,
        metrics.shorten(attempt.reference, _MAX_EXAMPLE),
        metrics.shorten(attempt.text, _MAX_EXAMPLE),
    )


def _fact(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_fact, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _finalize(value: object) -> object:
    """Applies to everything that the template prints, before it is escaped."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> Markup:
    return Markup(resources.files("dg_lsp.bench").joinpath("templates", name).read_text(encoding="utf-8").strip())


def _sha256(text: str) -> Markup:
    """Source of a content policy that allows exactly this text."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")


def record_films(
    engine: Engine, cases: Iterable[TestCase], request: Callable[[TestCase], FillRequest]
) -> tuple[Film, ...]:
    """Repeats the fills without a deadline; fills without steps are left out.

    If the decoder is free, a model with a canvas is recorded on it, because there is more to see.

    Raises:
        RequestError, BackendError: as `Engine.frames` does.
    """
    films = []
    for case in cases:
        query, frames = request(case), list[Frame]()
        if (query.decoder or engine.settings.decoder) == DecoderName.AUTO and engine.spec.has_final_canvas:
            query = dataclasses.replace(query, decoder=DecoderName.DIFFUSION)
        result = drain(engine.frames(query, deadline=math.inf), frames.append)
        before = "\n".join(case.prefix[-_MAX_CONTEXT:].split("\n")[-NUM_LINES_BEFORE:])
        after = "\n".join(case.suffix[:_MAX_CONTEXT].split("\n")[: 1 + NUM_LINES_AFTER])
        if frames:
            facts = (before, after, result.text, result.decoder.value, _outcome(result.text, case.reference))
            films.append(Film(case.id, case.reference, tuple(frames), *facts))
    return tuple(films)


def choose_cases(cases: Iterable[TestCase], attempts: Sequence[metrics.Attempt]) -> tuple[TestCase, ...]:
    """The first case of each outcome, not the best; of exact fills one with a single line and one with several."""
    by_id = {case.id: case for case in cases}
    firsts: dict[tuple[str, bool], TestCase] = {}
    for attempt in attempts:
        outcome = _outcome(attempt.text, attempt.reference)
        if attempt.case in by_id:
            firsts.setdefault((outcome, outcome == "exact" and "\n" in attempt.reference), by_id[attempt.case])
    return tuple(firsts.values())


def _outcome(text: str, reference: str) -> str:
    if not text:
        return "nothing shown"
    if ttfue.texts_match(text, reference):
        return "exact"
    return "first line right" if ttfue.first_lines_match(text, reference) else "wrong"


def _token(cell: Cell, *, is_new: bool) -> tuple[str, str]:
    """CSS classes (colour of the confidence, `k` for accepted, `n` for accepted in this step; none if frozen), text."""
    if cell.is_frozen:
        return "", cell.text
    style = f"c{sum(cell.confidence >= bound for bound in BOUNDS)}"
    if cell.is_committed:
        style += " k n" if is_new else " k"
    return style, cell.text if cell.is_committed or cell.confidence >= BOUNDS[0] else MASK
