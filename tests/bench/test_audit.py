"""Tables of an audit log, and `dg-lsp report`."""

from dataclasses import replace

from dg_lsp.bench.metrics import audit_tables
from dg_lsp.cli import run
from dg_lsp.engine.audit import AuditRecord, line_of
from dg_lsp.engine.ttfue import Outcome

SHOWN = AuditRecord(
    "2026-01-02T03:04:05.678+00:00",
    "id",
    "/infill",
    "shown",
    model="dg-mini",
    task="line-end",
    language="python",
    prompt_tokens=100,
    reused_tokens=90,
    output_tokens=10,
    steps=4,
    step_limit=48,
    setup_seconds=0.001,
    generation_seconds=0.04,
    output_rate=250.0,
    gpu="a card",
    gpu_budget_bytes=5_000_000,
    total_seconds=0.05,
)


def test_the_tables_of_an_audit_log_have_outcomes_times_and_tokens():
    records = [SHOWN] * 3 + [
        replace(SHOWN, outcome="nothing", reason="empty"),
        replace(SHOWN, outcome="cancelled", total_seconds=99.0),
        replace(SHOWN, outcome="failed", total_seconds=0.0, generation_seconds=0.0),
        *[replace(SHOWN, is_cached=True, total_seconds=0.002, generation_seconds=0.0)] * 3,
        replace(SHOWN, outcome="failed", endpoint="/v1/completions", reason="RemoteError"),
        replace(SHOWN, outcome="refused", endpoint="/v1/completions", reason="503"),
    ]
    measures, reasons, _, log = audit_tables(records, num_bad=2)
    assert list(measures.columns) == ["measure", "/infill", "/v1/completions"]
    numbers = {row[0]: row[1].replace("\N{NO-BREAK SPACE}", " ") for row in measures.rows}
    want = {"requests": "9", "shown": "66.7 %", "nothing worth showing": "11.1 %", "failed": "11.1 %"}
    want |= {"latency": "50 ms", "latency, 95th percentile": "50 ms", "generation": "40 ms", "prompt tokens": "100.0"}
    want |= {"prompt tokens from the cache": "90.0 %", "prompt set-up": "1.0 ms", "step limit": "48.0"}
    want["output rate"] = "250 tokens/s"
    assert {name: numbers[name] for name in want} == want
    refused = {row[0]: row[2] for row in measures.rows}["refused by the server"]
    assert refused.replace("\N{NO-BREAK SPACE}", " ") == "50.0 %"
    assert list(reasons.rows) == [("empty", "1", "–"), ("RemoteError", "–", "1"), ("503", "–", "1")]
    assert {("lines that are not records", "2"), ("GPUs", "a card"), ("GPU memory budget, MB", "5")} <= {*log.rows}


def test_records_and_outcomes_are_counted_by_language_and_task():
    kinds = [("a", "line-end", "python"), ("b", "line-end", "python"), ("c", "line-end", "go"), ("d", "test", "go")]
    records = [replace(SHOWN, request=name, task=task, language=language) for name, task, language in kinds]
    outcomes = [
        replace(USEFUL, request="a", accepted="whole"),
        replace(USEFUL, request="b", verdict="wrong"),
        replace(USEFUL, request="d", verdict="wrong"),
    ]
    *_, tasks, _ = audit_tables([*records, replace(SHOWN, task="", request="e")], outcomes=outcomes)
    rows = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in tasks.rows]
    assert rows == [
        ["go", "all", "2", "100.0 %", "0.0 %", "0.0 %", "–", "–"],
        ["go", "line-end", "1", "100.0 %", "–", "–", "–", "–"],
        ["go", "test", "1", "100.0 %", "0.0 %", "0.0 %", "–", "–"],
        ["python", "line-end", "2", "100.0 %", "50.0 %", "50.0 %", "80 ms", "8.0"],
    ]


USEFUL = Outcome(
    time=SHOWN.time, request="id", model="m", trigger="typed", verdict="useful", num_items=0, answer_ms=80.0
)


def test_the_report_of_an_audit_log_has_the_useful_edits_of_editors(tmp_path, capsys):
    log = tmp_path / "a.jsonl"
    outcomes = [
        replace(USEFUL, num_items=1, accepted="whole"),
        replace(USEFUL, is_rest=True, num_items=1),
        replace(USEFUL, verdict="quiet", is_line_finished=True),
    ]
    outcomes += [replace(USEFUL, verdict="cancelled", answer_ms=None)]
    outcomes += [replace(USEFUL, verdict="wrong", trigger="invoked", num_items=3)]
    log.write_bytes(b"".join(map(line_of, (SHOWN, *outcomes))))
    assert run(["report", str(log)]) == 0
    printed = capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    assert "Completions in editors" in printed and "docs/ttfue.md" in printed and "dg-mini" in printed
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if "|" in line]
    rows = {cells[0]: cells[1:] for cells in table if len(cells) == 3}
    assert rows["useful edits"] == ["1", "0"]
    assert (rows["useful by 100 ms"], rows["TTFUE, median"]) == (["50.0 %", "0.0 %"], ["80 ms", "–"])
    assert (rows["miss rate"][0], rows["accepted: whole"][0], rows["right"][0]) == ("50.0 %", "1", "75.0 %")


def test_a_log_without_records_is_refused(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    for wrong in (tmp_path / "no.jsonl", tmp_path / "empty.jsonl"):
        assert run(["report", str(wrong)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
