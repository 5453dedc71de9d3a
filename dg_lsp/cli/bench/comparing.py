"""One run of `dg-lsp bench compare`: everybody asked in turn, and what is said of it."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import attrs
import typer

from dg_lsp.bench.compare import ALL, BASELINE, Contrast, by_ways, compare, contrasts
from dg_lsp.bench.compare_table import CONTRAST_COLUMNS, contrast_cells, contrast_tables, way_tables
from dg_lsp.bench.execution import Runner
from dg_lsp.bench.machine import Machine
from dg_lsp.bench.report.films import choose_sites, record_films
from dg_lsp.bench.report.page import write_report
from dg_lsp.bench.report.record import Film, Report, Table
from dg_lsp.bench.runs import Header, RunFile, file_sha256
from dg_lsp.bench.sites import Site, read_sites, sample
from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.bench.contenders import Contenders, Ring, ring
from dg_lsp.cli.bench.infilling import open_sandbox
from dg_lsp.cli.bench.progress import tracked
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import summarize
from dg_lsp.settings import Settings

_KNOWN = {
    "none": "Nothing was known of the length of what was missing.",
    "oracle": "Everybody was told how many lines the reference has.",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was asked, and what came of it."""

    header: Header
    attempts: tuple[Attempt, ...]
    contrasts: tuple[Contrast, ...]
    notes: tuple[str, ...]
    films: tuple[Film, ...]
    is_complete: bool
    """False when somebody pressed Ctrl-C."""

    @classmethod
    def run(
        cls,
        data: Path,
        settings: Settings,
        contenders: Contenders,
        *,
        limit: int | None,
        seed: int,
        execute: bool = False,
        output: Path | None = None,
        has_films: bool = False,
    ) -> Self:
        """Asks everybody, or as many as there are before Ctrl-C.

        Raises:
            InputFileError: `data` is no list of sites, or `output` cannot be written or holds another run.
            ModelError, BackendError, UsageError: somebody cannot take part, or go on.
        """
        sites = sample(read_sites(data), limit, seed)
        sandbox, layers = open_sandbox(sites) if execute else (None, ())
        with ring(contenders, settings) as opened:
            header = _header(data, settings, contenders, opened, seed, layers)
            with RunFile(output, header) as run:
                is_complete = _asked(sites, opened, run, seed, sandbox)
                attempts = _in_order(run.attempts, sites, opened)
            films = _films(opened, sites, attempts) if has_films and is_complete else ()
            length = "oracle" if contenders.terms.is_oracle else "none"
            notes = (_KNOWN[length], *(note for way in opened.ways for note in way.notes()))
        return cls(header, attempts, contrasts(attempts, BASELINE, seed=seed), notes, films, is_complete)

    @property
    def exit_code(self) -> int:
        """0, or as a shell reports an interrupted program."""
        return 0 if self.is_complete else INTERRUPTED

    def print(self, *, as_json: bool) -> None:
        """To standard output: one JSON object, or tables."""
        for line in [json.dumps(self.json())] if as_json else self.lines():
            typer.echo(line)

    def json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "num": len({attempt.site for attempt in self.attempts}),
            "is_complete": self.is_complete,
            "ways": {way: _summaries(listed) for way, listed in by_ways(self.attempts).items()},
            "baseline": BASELINE,
            "contrasts": [contrast.json() for contrast in self.contrasts],
            "model": self.header.model,
            "model_sha256": self.header.model_sha256,
            "length_knowledge": "oracle" if self.header.options["is_oracle"] else "none",
            "options": dict(self.header.options),
            "machine": dataclasses.asdict(self.header.machine),
            "notes": list(self.notes),
        }

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        yield f"{self.header.model}; {self.header.machine.line()}"
        yield from self.notes
        if not self.is_complete:
            yield "stopped before everybody was asked everywhere"
        yield ""
        yield from way_tables(self.attempts)
        yield from contrast_tables(self.contrasts)

    def write_page(self, path: Path) -> None:
        """A self-contained page of the same.

        Raises:
            InputFileError: it cannot be written there.
        """
        rows = tuple((f"{contrast.way}, {contrast.kind}", *contrast_cells(contrast)[1:]) for contrast in self.contrasts)
        caption = f"Times faster than {BASELINE}, 95% intervals"
        table = Table(caption, CONTRAST_COLUMNS, rows, "A paired bootstrap over sites; exact match in points.")
        title = f"{self.header.model}: {len(by_ways(self.attempts))} ways compared"
        tables = [table] if rows else []
        report = Report.of_run(title, self.header, self.attempts, films=self.films, notes=self.notes, tables=tables)
        write_report(path, report)


def _asked(sites: Sequence[Site], opened: Ring, run: RunFile, seed: int, sandbox: Runner | None) -> bool:
    """Whether everybody was asked everywhere."""
    names = [way.name for way in opened.ways]
    left = [site for site in sites if not all(run.has(site.id, name) for name in names)]
    try:
        compare(tracked(left, "sites", done=len(sites) - len(left)), opened.ways, run, seed=seed, sandbox=sandbox)
    except KeyboardInterrupt:
        return False
    return True


def _in_order(attempts: Sequence[Attempt], sites: Sequence[Site], opened: Ring) -> tuple[Attempt, ...]:
    """Those at these sites, for an earlier session may have had a larger limit, way by way, ours first."""
    ids, names = {site.id for site in sites}, [way.name for way in opened.ways]
    return tuple(sorted((one for one in attempts if one.site in ids), key=lambda one: names.index(one.way)))


def _films(opened: Ring, sites: Sequence[Site], attempts: Sequence[Attempt]) -> tuple[Film, ...]:
    own = opened.own
    chosen = choose_sites(sites, [attempt for attempt in attempts if attempt.way == own.name])
    return record_films(own.engine, chosen, own.request)


def _header(
    data: Path, settings: Settings, contenders: Contenders, opened: Ring, seed: int, layers: tuple[str, ...]
) -> Header:
    return Header(
        command="compare",
        machine=Machine.here(opened.threads),
        model=opened.model,
        model_sha256=file_sha256(opened.path),
        data={data.name: file_sha256(data)},
        options={
            **contenders.options(),
            "seed": seed,
            "sandbox": list(layers),
            "settings": attrs.asdict(settings.fill),
        },
    )


def _summaries(attempts: Sequence[Attempt]) -> dict[str, Any]:
    kinds = sorted({attempt.kind for attempt in attempts})
    groups = {ALL: attempts, **{kind: [one for one in attempts if one.kind == kind] for kind in kinds}}
    return {kind: summarize(listed).json() for kind, listed in groups.items()}
