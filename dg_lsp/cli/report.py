"""`dg-lsp report`: an audit log as a page."""

from pathlib import Path
from typing import Annotated

import typer

from dg_lsp.errors import InputFileError


def report(
    log: Annotated[Path, typer.Argument(metavar="AUDIT.jsonl", help="The audit log.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT.html", help="The page; without it beside the log.")
    ] = None,
) -> int:
    """Write an audit log as a page: how many requests, how fast, and their outcomes."""
    from dg_lsp.bench.audit import audit_page
    from dg_lsp.bench.metrics import count
    from dg_lsp.bench.report import check_page_path
    from dg_lsp.engine.audit import read_records

    path = output or log.with_suffix(".html")
    check_page_path(path)
    try:
        records, num_bad = read_records(log)
    except OSError as error:
        raise InputFileError(f"cannot read {log}: {error.strerror or error}") from error
    if not records:
        raise InputFileError(f"{log} has no records: set privacy.audit_log and use dg-lsp for a while")
    audit_page(records, f"dg-lsp: {log.name}", num_bad).write(path)
    typer.echo(f"{count(len(records), 'request')}: {path}")
    return 0
