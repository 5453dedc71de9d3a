import pytest

from dg_lsp.bench.audit import audit_page
from dg_lsp.cli import run
from dg_lsp.engine.audit import AuditRecord

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


def test_the_page_has_outcomes_times_and_tokens():
    records = [record()] * 3 + [
        record("nothing", reason="empty"),
        record("cancelled", total_seconds=99.0),
        record("failed", "/v1/completions", reason="RemoteError"),
    ]
    page = audit_page(records, "a log", num_bad=2)
    measures, reasons = page.sections[0].blocks
    assert list(measures.columns) == ["measure", "/infill", "/v1/completions"]
    found = {row[0]: row[1].replace("\N{NO-BREAK SPACE}", " ") for rows in measures.groups.values() for row in rows}
    assert {name: found[name] for name in ("requests", "shown", "nothing worth showing", "failed")} == {
        "requests": "5",
        "shown": "60.0 %",
        "nothing worth showing": "20.0 %",
        "failed": "0.0 %",
    }
    assert (found["latency"], found["latency, 90th percentile"]) == ("50 ms", "50 ms")
    assert (found["prompt"], found["prompt from the cache"], found["output speed"]) == (
        "100.0",
        "90.0 %",
        "250 tokens/s",
    )
    assert list(reasons.groups[""]) == [("empty", "1", "–"), ("RemoteError", "–", "1")]
    assert page.lead.replace("\N{NO-BREAK SPACE}", " ").startswith("50 % of 6 requests")
    html = page.html()
    assert "lines that are not records" in html and "2026-01-02" in html


def test_names_in_the_log_remain_text():
    html = audit_page([record("failed", HOSTILE, reason=HOSTILE, model=HOSTILE, decoder=HOSTILE)], HOSTILE).html()
    assert "<img" not in html
    assert html.count("</script>") == 1
    assert "default-src 'none'" in html


@pytest.mark.parametrize("records", [[], [record("cancelled")], [record(steps=0, generation_seconds=0.0)]])
def test_few_records_have_a_page(records):
    assert audit_page(records, "a log").html().startswith("<!doctype html>")


def test_the_command_writes_the_page_beside_the_log(tmp_path, capsys):
    log = tmp_path / "a.jsonl"
    log.write_bytes(record().line())
    assert run(["report", str(log)]) == 0
    assert "1 request:" in capsys.readouterr().out
    assert "dg-mini" in (tmp_path / "a.html").read_text()
    assert run(["report", str(log), "-o", str(tmp_path / "b.html")]) == 0
    assert (tmp_path / "b.html").exists()
    (tmp_path / "empty.jsonl").touch()
    for wrong in (tmp_path / "no.jsonl", tmp_path / "empty.jsonl"):
        assert run(["report", str(wrong)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
