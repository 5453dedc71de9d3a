"""`dg-lsp report`: the audit log as a page."""

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.errors import InputFileError


def report(
    audit: Annotated[Path, typer.Argument(metavar="AUDIT.jsonl", help="What audit.path named.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.html", help="Else beside the log.")
    ] = None,
) -> int:
    """Write an audit log as a page: how many requests, how fast, what became of them."""
    from dg_lsp.bench.report.audited import audit_page
    from dg_lsp.bench.report.page import check_report_path, write_page
    from dg_lsp.engine.audit import read_records

    path = output or audit.with_suffix(".html")
    check_report_path(path)
    try:
        records, num_bad = read_records(audit)
    except OSError as error:
        raise InputFileError(f"cannot read {audit}: {error.strerror or error}") from error
    if not records:
        raise InputFileError(f"{audit} holds no records: set audit.path, and let dg-lsp run for a while")
    write_page(path, audit_page(records, f"dg-lsp: {audit.name}", num_bad))
    typer.echo(f"{len(records):,} requests: {path}")
    return 0
