"""The audit log's page."""

import re
from html.parser import HTMLParser

import pytest

from dg_lsp.bench.report.audited import audit_page
from dg_lsp.engine.audit import AuditRecord, read_records

HOSTILE = "</script><img src=x onerror=alert(1)>"


def record(outcome="shown", endpoint="/infill", **facts):
    costs = {
        "prompt_tokens": 100,
        "reused_tokens": 90,
        "output_tokens": 10,
        "canvas_tokens": 32,
        "steps": 4,
        "slot": 0,
        "generation_seconds": 0.04,
        "visible_speed": 250.0,
        "canvas_speed": 800.0,
        "total_seconds": 0.05,
        "model": "dg-mini",
    }
    return AuditRecord("2026-01-02T03:04:05.678+00:00", "id", endpoint, outcome=outcome, **{**costs, **facts})


class Cells(HTMLParser):
    """Rows of all tables, by their first cell."""

    def __init__(self, page):
        super().__init__()
        self.rows = []
        self._in = False
        self.feed(page)

    def handle_starttag(self, tag, _attributes):
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")
            self._in = True

    def handle_endtag(self, tag):
        if tag in ("th", "td"):
            self._in = False

    def handle_data(self, data):
        if self._in:
            self.rows[-1][-1] += data

    def named(self, name):
        return [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row[1:]] for row in self.rows if row[:1] == [name]]


def test_the_page_says_what_became_of_the_requests_and_how_fast():
    records = [record()] * 3 + [
        record("nothing", reason="empty"),
        record("cancelled", total_seconds=99.0),
        record("failed", "/v1/completions", reason="RemoteError"),
    ]
    page = audit_page(records, "a log", num_bad=2)
    requests, times, tokens = Cells(page).named("/infill")[:3]
    assert requests == ["5", "60.0 %", "20.0 %", "0.0 %", "20.0 %", "0.0 %", "0.0 %"]
    assert times[:2] == ["50 ms", "50 ms"]
    assert tokens == ["100.0", "10.0", "32.0", "4.0", "90.0 %", "250", "800"]
    assert Cells(page).named("RemoteError") == [["–", "1"]]
    assert "50 %" in page.replace("\N{NO-BREAK SPACE}", " ").split('class="lead"')[1][:200]
    assert "lines that are no records" in page
    assert "2026-01-02" in page


def test_what_a_log_says_stays_text():
    page = audit_page([record("failed", HOSTILE, reason=HOSTILE, model=HOSTILE, decoder=HOSTILE)], HOSTILE)
    assert "<img" not in page
    assert page.count("</script>") == 1


def test_the_page_needs_nothing_but_a_browser():
    page = audit_page([record()], "a log")
    assert not re.findall(r"(?:src|href)=\"(?!#)", page)
    assert "default-src 'none'" in page


@pytest.mark.parametrize("records", [[], [record("cancelled")], [record(steps=0, generation_seconds=0.0)]])
def test_little_is_no_trouble(records):
    assert audit_page(records, "a log").startswith("<!")


def test_files_put_aside_are_read_in_their_order(tmp_path):
    path = tmp_path / "a.jsonl"
    for number, name in enumerate(("a.jsonl.1", "a.jsonl")):
        (tmp_path / name).write_bytes(record(steps=number).line() + b"{torn")
    (tmp_path / "a.jsonl.lock").write_text("x")
    records, num_bad = read_records(path)
    assert ([one.steps for one in records], num_bad) == ([0, 1], 2)


def test_the_command_writes_it_beside_the_log(tmp_path, capsys):
    from dg_lsp.cli import run

    (tmp_path / "a.jsonl").write_bytes(record().line())
    assert run(["report", str(tmp_path / "a.jsonl")]) == 0
    assert "1 requests" in capsys.readouterr().out
    assert "dg-mini" in (tmp_path / "a.html").read_text()
    assert run(["report", str(tmp_path / "a.jsonl"), "-o", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "b.html").exists()
    for wrong in (tmp_path / "no.jsonl", tmp_path / "empty.jsonl"):
        (tmp_path / "empty.jsonl").touch()
        assert run(["report", str(wrong)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
