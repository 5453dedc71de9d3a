"""The page: one file that needs nothing but a browser.

Its content policy allows its own style and script, by their hashes, and nothing else: no network, no other script.
"""

import base64
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from string import Template

from dg_lsp import __version__
from dg_lsp.bench.report.chart import look, table
from dg_lsp.bench.report.curves import Curve, useful_by
from dg_lsp.bench.report.facts import facts
from dg_lsp.bench.report.film import films, legend
from dg_lsp.bench.report.headline import by_decoder, by_kind, headline, lead
from dg_lsp.bench.report.histograms import Row, latencies, steps
from dg_lsp.bench.report.markup import Html, element, escape, join
from dg_lsp.bench.report.measures import definitions
from dg_lsp.bench.report.misses import misses
from dg_lsp.bench.report.record import Report, Table
from dg_lsp.errors import InputFileError


def check_report_path(path: Path) -> None:
    """Refuses before any work is spent on a report that could not be written.

    Raises:
        InputFileError: a directory, or in one that is not there.
    """
    if path.is_dir():
        raise InputFileError(f"{path} is a directory: name a file in it for the report")
    if not path.parent.is_dir():
        raise InputFileError(f"no directory {path.parent}: make it, or write the report elsewhere")


def write_report(path: Path, report: Report) -> None:
    """Writes a report's page, as `write_page` does.

    Raises:
        InputFileError: it cannot be written there.
    """
    write_page(path, page(report))


def write_page(path: Path, text: str) -> None:
    """Writes the page at once, or leaves what is there. A link stays one, and so does a device or a pipe.

    Raises:
        InputFileError: it cannot be written there.
    """
    check_report_path(path)
    data = text.encode()
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise InputFileError(f"cannot write {path}: {error.strerror or error}") from error


def page(report: Report) -> str:
    """The whole page."""
    return document(report.title, report.date, lead(report.attempts, report.baseline), _notes(report), _listed(report))


def document(title: str, date: str, lead: Html, notes: Html, listed: Sequence[tuple[str, str, Html]]) -> str:
    """A page of sections: anchor, heading and content, in reading order; those without content are left out."""
    style, script = (_asset(name) for name in ("report.css", "report.js"))
    return Template(_asset("report.html")).substitute(
        title=escape(title),
        date=escape(date),
        version=escape(__version__),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        lead=lead,
        notes=notes,
        contents=join(element("li", element("a", heading, href=f"#{name}")) for name, heading, _ in _sections(listed)),
        sections=join(section for _, _, section in _sections(listed)),
    )


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def _listed(report: Report) -> list[tuple[str, str, Html]]:
    return [
        ("numbers", "Numbers", _numbers(report)),
        ("charts", "Time and steps", _charts(report)),
        ("films", "Films", join((legend(), films(report.films))) if report.films else Html()),
        ("misses", "Misses", misses(report.attempts)),
        ("machine", "Machine and options", _machine(report)),
        ("definitions", "What each number says", definitions()),
    ]


def _sections(listed: Sequence[tuple[str, str, Html]]) -> list[tuple[str, str, Html]]:
    return [
        (name, heading, element("section", element("h2", heading, id=name), content, aria_labelledby=name))
        for name, heading, content in listed
        if content
    ]


def _notes(report: Report) -> Html:
    return element("ul", *(element("li", note) for note in report.notes), class_="notes") if report.notes else Html()


def _table(one: Table) -> Html:
    look = "said" if len(one.columns) == 2 else None  # a value a row: phrases, not a column of numbers
    return table(one.caption, one.columns, {"": one.rows}, one.note, look)


def _numbers(report: Report) -> Html:
    attempts = report.attempts
    return join((headline(attempts), *map(_table, report.tables), by_kind(attempts), by_decoder(attempts)))


def _machine(report: Report) -> Html:
    return join((facts(report.machine), element("h3", "Options"), facts(report.options)))


def _charts(report: Report) -> Html:
    """The three figures; a way looks the same in all of them."""
    looks = {way: look(i, is_baseline=way == report.baseline) for i, way in enumerate(report.attempts)}
    hits = {
        way: sorted(attempt.ttfue_ms for attempt in attempts if attempt.ttfue_ms is not None)
        for way, attempts in report.attempts.items()
    }
    curves = [Curve(way, looks[way], hits[way], len(attempts)) for way, attempts in report.attempts.items()]
    times = [
        Row(way, looks[way], sorted(attempt.latency_ms for attempt in attempts))
        for way, attempts in report.attempts.items()
    ]
    passes = [
        Row(way, looks[way], sorted(attempt.steps for attempt in attempts if attempt.steps is not None))
        for way, attempts in report.attempts.items()
    ]
    # who never says how many steps it took is not drawn as if it took none
    is_told = any(row.values for row in passes) or not any(report.attempts.values())
    seen = [row for row in passes if row.values or not report.attempts[row.way]]
    return join((useful_by(curves), latencies(times), steps(seen) if is_told else Html()))


def _asset(name: str) -> str:
    return resources.files("dg_lsp.bench.report").joinpath("assets", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
