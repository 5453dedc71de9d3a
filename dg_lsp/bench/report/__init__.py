"""A benchmark as one self-contained page."""

from dg_lsp.bench.report.films import choose_sites, record_films
from dg_lsp.bench.report.page import check_report_path, write_report
from dg_lsp.bench.report.record import Film, Report, Table

__all__ = ["Film", "Report", "Table", "check_report_path", "choose_sites", "record_films", "write_report"]
