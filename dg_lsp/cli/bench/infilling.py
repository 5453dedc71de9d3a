"""One run of `dg-lsp bench infill`: the model opened, the sites filled, and what is said of it."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import attrs
import typer

from dg_lsp.bench.execution import check_tests, warning, with_verdict
from dg_lsp.bench.infill import Asking, Length, fill_site, summary_object
from dg_lsp.bench.machine import Machine
from dg_lsp.bench.report.films import choose_sites, record_films
from dg_lsp.bench.report.page import write_report
from dg_lsp.bench.report.record import Film, Report
from dg_lsp.bench.runs import Header, RunFile, file_sha256
from dg_lsp.bench.sandbox.sandbox import Sandbox
from dg_lsp.bench.sites import Site
from dg_lsp.bench.summaries import by_kind, summary_table
from dg_lsp.cli import INTERRUPTED
from dg_lsp.cli.bench import opening
from dg_lsp.cli.bench.progress import progress_bar
from dg_lsp.engine.engine import Engine
from dg_lsp.errors import UsageError
from dg_lsp.metrics.attempt import Attempt
from dg_lsp.metrics.summary import summarize
from dg_lsp.settings import Settings

_KNOWN = {
    Length.NONE: "nothing was known of the length: the place decides how many lines a fill may have",
    Length.ORACLE: "every fill was told how many lines the reference has (oracle)",
    Length.GIVEN: "every fill was told how many lines it may have, the same number everywhere (given)",
}


def known_length(length: str, max_lines: int | None) -> Length:
    """What the two options say together.

    Raises:
        UsageError: they contradict each other, or there is no such word.
    """
    if length not in (Length.NONE, Length.ORACLE):
        raise UsageError(f"--length is none or oracle, not {length!r}; --max-lines N gives a number")
    if max_lines is None:
        return Length(length)
    if length == Length.ORACLE:
        raise UsageError("--length oracle and --max-lines both say how many lines: leave one out")
    return Length.GIVEN


@dataclass(frozen=True, slots=True)
class Infilling:
    """What was asked, and what came of it."""

    header: Header
    asking: Asking
    attempts: tuple[Attempt, ...]
    """Of the sites asked for, in their order."""
    is_complete: bool
    """False when somebody pressed Ctrl-C."""
    notes: tuple[str, ...] = ()
    """What a reader of a server's numbers must know."""

    @classmethod
    def run(
        cls,
        data: Path,
        sites: Sequence[Site],
        asking: Asking,
        settings: Settings,
        *,
        execute: bool,
        output: Path | None,
        html: Path | None,
    ) -> Self:
        """Fills all sites, or as many as there are before Ctrl-C.

        Raises:
            ModelError, BackendError, RequestError: as the model does.
            InputFileError: `output` or `html` cannot be written, or `output` holds another run.
            SandboxError: programs cannot be run here.
        """
        opening.check_decoder(asking.decoder, settings)
        sandbox, layers = open_sandbox(sites) if execute else (None, ())
        is_remote = settings.backend == opening.REMOTE
        model = opening.open_model(settings)
        try:
            header = Header(
                command="infill",
                machine=Machine.here(model.threads),
                model=model.engine.spec.name,
                model_sha256=model.sha256,
                data={data.name: file_sha256(data)},
                options={
                    **asking.json(),
                    "execute": execute,
                    "sandbox": list(layers),
                    "settings": attrs.asdict(settings.fill),
                    **(opening.remote_options(settings.remote) if is_remote else {}),
                },
            )
            way = opening.REMOTE if is_remote else asking.decoder.value if asking.decoder else settings.fill.decoder
            with RunFile(output, header) as run:
                is_complete = _fill(model.engine, sites, asking, way, run, sandbox)
                by_site = {attempt.site: attempt for attempt in run.attempts}
            attempts = tuple(by_site[site.id] for site in sites if site.id in by_site)
            notes = opening.remote_notes(settings.remote) if is_remote else ()
            infilling = cls(header, asking, attempts, is_complete, notes)
            if html is not None and attempts:
                has_films = is_complete and not is_remote  # no step of a server is seen
                films = record_films(model.engine, choose_sites(sites, attempts), asking.request) if has_films else ()
                write_report(html, infilling.report(films))
            return infilling
        finally:
            model.engine.close()

    @property
    def exit_code(self) -> int:
        """0, or as a shell reports an interrupted program."""
        return 0 if self.is_complete else INTERRUPTED

    def print(self, *, as_json: bool) -> None:
        """To standard output: one JSON object, or a table and what it assumes."""
        if as_json:
            typer.echo(json.dumps(summary_object(summarize(self.attempts), self.header.model, self.asking.length)))
            return
        for line in self.lines():
            typer.echo(line)

    def lines(self) -> Iterator[str]:
        """As Markdown."""
        digest = "" if self.header.model_sha256 is None else f", sha256 {self.header.model_sha256[:16]}"
        yield f"{self.header.model}{digest}; {self.header.machine.line()}"
        yield f"{_KNOWN[self.asking.length]}; decoder {self.attempts[0].way if self.attempts else '-'}"
        yield from self.notes
        yield ""
        yield from summary_table(by_kind(self.attempts), "kind")

    def report(self, films: Sequence[Film]) -> Report:
        """As a page."""
        title = f"dg-lsp bench infill: {', '.join(self.header.data)}"
        notes = [_KNOWN[self.asking.length].capitalize() + ".", *self.notes]
        if not self.is_complete:
            notes.append("Interrupted: only the sites up to then are counted.")
        return Report.of_run(title, self.header, self.attempts, films=films, notes=notes)


def open_sandbox(sites: Sequence[Site]) -> tuple[Sandbox, tuple[str, ...]]:
    """A sandbox that works here, and its layers; says once what will happen."""
    check_tests(sites)
    sandbox = Sandbox()
    layers = sandbox.check()
    print(f"dg-lsp: {warning(layers)}", file=sys.stderr)  # noqa: T201
    return sandbox, layers


def _fill(
    engine: Engine, sites: Sequence[Site], asking: Asking, way: str, run: RunFile, sandbox: Sandbox | None
) -> bool:
    """Fills what the run lacks; False when somebody pressed Ctrl-C, whereupon everything so far is kept."""
    left = [site for site in sites if not run.has(site.id, way)]
    try:
        with progress_bar("infill", len(sites), done=len(sites) - len(left)) as advance:
            for site in left:
                attempt = fill_site(engine, site, asking, way)
                run.add(with_verdict(attempt, site, sandbox) if sandbox else attempt)
                advance(1)
    except KeyboardInterrupt:
        return False
    return True
