"""Pages of benchmarks: self-contained files that load nothing and run only their own script."""

import base64
import dataclasses
import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import islice, zip_longest
from pathlib import Path

import jinja2
from markupsafe import Markup

from dg_lsp import __version__
from dg_lsp.bench import metrics
from dg_lsp.bench.runner import Run, flattened
from dg_lsp.bench.timeline import Timeline
from dg_lsp.canvas.spec import DecoderName
from dg_lsp.engine import ttfue
from dg_lsp.errors import InputFileError
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
Attempts = Mapping[str, Sequence[metrics.Attempt]]


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
    blocks: Sequence[metrics.Table | Examples | Timeline]


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
        return template.render(page=self, version=__version__).lstrip()

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
    """
    if path.is_dir():
        raise InputFileError(f"{path} is a directory: name a file in it for the page")
    if not path.parent.is_dir():
        raise InputFileError(f"no directory {path.parent}: make it, or write the page elsewhere")


def benchmark_page(title: str, run: Run, tables: Sequence[metrics.Table], timelines: Sequence[Timeline] = ()) -> Page:
    """The page of a run."""
    attempts = metrics.by_contender(run.attempts)
    header = run.header
    digests = {**({header.model: header.model_sha256} if header.model_sha256 else {}), **header.data}
    machine = {**dataclasses.asdict(header.machine), **{f"sha256 of {name}": value for name, value in digests.items()}}
    facts = [facts_table("Machine", machine), facts_table("Options", header.options)]
    sections = (
        Section("typing", "The typing, key by key", timelines),
        Section("numbers", "Numbers", tables),
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
    return metrics.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(name: str) -> Markup:
    return Markup(resources.files("dg_lsp.bench").joinpath("templates", name).read_text(encoding="utf-8").strip())


def _sha256(text: str) -> Markup:
    """Source of a content policy that allows exactly this text."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
