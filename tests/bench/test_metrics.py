import json
from dataclasses import replace

import pytest

from dg_lsp.bench import metrics
from dg_lsp.cli import run
from dg_lsp.engine.audit import AuditRecord, line_of
from dg_lsp.engine.ttfue import Outcome


def cells(table):
    """The rows of a table with plain spaces."""
    return [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in table.rows]


@pytest.mark.parametrize(
    ("text", "reference", "is_useful", "is_exact"),
    [
        pytest.param("a = 1  ", "a = 1\n", True, True, id="trailing blanks"),
        pytest.param("a\n  b", "a  \n  b\n\n", True, True, id="trailing blanks of several lines"),
        pytest.param("a = 1\nb", "a = 1\nc", True, False, id="only the second line differs"),
        pytest.param("a\n\nb", "a\nb", True, False, id="an empty line more"),
        pytest.param("a\nb", "a\n b", True, False, id="other indentation of the second line"),
        pytest.param("  a = 1", "a = 1", False, False, id="other indentation"),
        pytest.param("a = 12", "a = 1", False, False, id="more on the line"),
        pytest.param("", "a = 1", False, False, id="nothing"),
        pytest.param("\n    a = 1", "\n    a = 1\n    b", True, False, id="both start with a line end"),
        pytest.param("    a = 1", "\n    a = 1", False, False, id="one starts with a line end"),
        pytest.param("\n", "\n", False, True, id="blank reference"),
        pytest.param("a = 1\r\nb", "a = 1\nb", True, True, id="other line ends"),
    ],
)
def test_an_item_is_useful_by_its_first_line_and_exact_by_all_lines(attempt, text, reference, is_useful, is_exact):
    made = attempt((5.0, text), reference=reference)
    assert (made.ttfue_ms, made.is_exact) == (5.0 if is_useful else None, is_exact)
    assert attempt((5.0, text), reference=reference, passes=True).ttfue_ms == (5.0 if text else None)


def test_a_summary_counts_shares_and_quantiles(attempt):
    summary = metrics.summarize(
        [
            attempt((40.0, "x")),
            attempt((90.0, "x\ny"), steps=6),
            attempt((300.0, "x")),
            attempt((120.0, "y"), model_ms=250.0),
            attempt(latency_ms=500.0),
        ]
    )
    assert summary["num"] == 5
    assert (summary["exact_match"], summary["first_line_match"], summary["pass_at_1"]) == (2 / 5, 3 / 5, None)
    assert (summary["ttfue_ms"]["p50"], summary["ttfue_ms"]["p90"]) == pytest.approx((90.0, 258.0))
    assert summary["useful_by"] == {"50": 0.2, "100": 0.4, "250": 0.4, "500": 0.6, "1000": 0.6}
    assert (summary["miss_rate"], summary["show_rate"]) == (2 / 5, 4 / 5)
    assert (summary["latency_ms"]["p50"], summary["latency_ms"]["p90"]) == pytest.approx((120.0, 420.0))
    assert (summary["steps_mean"], summary["tokens_per_forward"]) == pytest.approx((14 / 5, 20 / 14), abs=1e-4)
    assert summary["model_ms_per_useful"] == pytest.approx(450 / 3)


def test_a_summary_without_hits_attempts_or_costs_has_nulls(attempt):
    summary = metrics.summarize([attempt(), attempt((5.0, "no"))])
    assert (summary["miss_rate"], summary["ttfue_ms"]["p50"], summary["model_ms_per_useful"]) == (1.0, None, None)
    empty = metrics.summarize([])
    assert (empty["num"], empty["exact_match"], empty["latency_ms"]["p90"]) == (0, 0.0, None)
    json.dumps(empty, allow_nan=False)
    unknown = metrics.summarize([attempt((5.0, "x"), steps=None, tokens=None, model_ms=None)])
    assert (unknown["steps_mean"], unknown["tokens_per_forward"], unknown["model_ms_per_useful"]) == (None, None, None)


def test_the_summary_table_has_one_column_per_group(attempt):
    ours, theirs = [attempt((40.0, "x"))] * 3 + [attempt()], [attempt((500.0, "x"), passes=True)] * 4
    table = metrics.summary_table("All cases", {"ours": ours, "theirs": theirs, "none": []})
    measures = {name: values for name, *values in cells(table)}
    assert list(table.columns) == ["measure", "ours", "theirs", "none"]
    assert measures["num"] == ["4", "4", "0"]
    assert measures["useful by 50 ms"] == ["75.0 % (30–95)", "0.0 % (0–49)", "0.0 %"], "Wilson's intervals"
    assert measures["ttfue ms p50"] == ["40 ms", "500 ms", "–"]
    assert measures["pass at 1"] == ["–", "100.0 %", "–"]
    assert measures["steps mean"] == ["2.00", "2.00", "–"]
    assert {line.count("|") for line in table.markdown()} == {0, 5}


def test_calibration_counts_right_first_lines_by_confidence_and_from_there_on(attempt):
    right, wrong = (10.0, "x\nz"), (10.0, "y")
    unknown = [attempt(right, confidence=None), attempt(rejection="empty")]
    known = [(wrong, 0.01), (wrong, 0.03), (right, 0.04), (right, 0.7), (right, 1.0)]
    rows = metrics.calibrate([*unknown, *(attempt(item, confidence=value) for item, value in known)])
    assert cells(metrics.row_table("", rows)) == [
        ["all", "all", "0.0 %", "1", "1.0 %", "0.0 %", "100.0 %", "60.0 %", "100.0 %"],
        ["all", "all", "2.0 %", "2", "3.5 %", "50.0 %", "80.0 %", "75.0 %", "100.0 %"],
        ["all", "all", "70.0 %", "2", "85.0 %", "100.0 %", "40.0 %", "100.0 %", "66.7 %"],
    ]
    assert metrics.calibrate(unknown) == []


def test_calibration_lists_each_language_and_task_with_enough_fills(attempt):
    python = [attempt((10.0, "x"), confidence=0.4, language="python", task="line-end")] * 20
    go = [attempt((10.0, "y"), confidence=0.4, language="go", task="line-end")] * 19
    rows = [(row["language"], row["task"], row["num"], row["right"]) for row in metrics.calibrate([*python, *go])]
    assert rows == [("all", "all", 39, 0.5128), ("python", "line-end", 20, 1.0)]


def test_tasks_have_shares_and_costs_for_each_right_edit(attempt):
    attempts = [
        attempt((10.0, "x"), task="line-end", language="go"),
        attempt((10.0, "x\ny"), task="line-end", language="go"),
        attempt((10.0, "y"), task="line-end", language="go"),
        attempt(task="line-end", language="go"),
        attempt((10.0, "x"), task="test", language="go", model_ms=None, steps=None),
    ]
    total, lines, tests = metrics.summarize_tasks(map(metrics.TaskResult.of, attempts))
    assert (total["task"], total["num"], total["right"], total["model_ms_per_right"]) == ("all", 5, 0.4, None)
    shares = {"num": 4, "shown": 0.75, "useful": 0.6667, "right": 0.25}
    costs = {"model_ms_per_right": 200.0, "steps_per_right": 8.0}
    assert lines == {"language": "go", "task": "line-end", **shares, **costs}
    assert (tests["task"], tests["right"], tests["steps_per_right"]) == ("test", 1.0, None)


# audit logs, and `dg-lsp report`

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
    measures, reasons, _, log = metrics.audit_tables(records, num_bad=2)
    assert list(measures.columns) == ["measure", "/infill", "/v1/completions"]
    numbers = {name: of_infill for name, of_infill, _ in cells(measures)}
    want = {"num": "9", "shown": "66.7 %", "nothing": "11.1 %", "failed": "11.1 %", "prompt from cache": "90.0 %"}
    want |= {"latency ms p50": "50 ms", "latency ms p95": "50 ms", "generation ms p50": "40 ms"}
    want |= {"setup ms p50": "1.0 ms", "prompt tokens": "100.00", "step limit": "48.00", "output per second": "250.00"}
    assert {name: numbers[name] for name in want} == want
    assert ["refused", "0.0 %", "50.0 %"] in cells(measures)
    assert list(reasons.rows) == [["empty", "1", "0"], ["RemoteError", "0", "1"], ["503", "0", "1"]]
    assert {("lines that are not records", "2"), ("GPUs", "a card"), ("GPU memory budget, MB", "5")} <= {*log.rows}


def test_records_and_outcomes_are_counted_by_language_and_task():
    kinds = [("a", "line-end", "python"), ("b", "line-end", "python"), ("c", "line-end", "go"), ("d", "test", "go")]
    records = [replace(SHOWN, request=name, task=task, language=language) for name, task, language in kinds]
    outcomes = [
        replace(USEFUL, request="a", accepted="whole"),
        replace(USEFUL, request="b", verdict="wrong"),
        replace(USEFUL, request="d", verdict="wrong"),
    ]
    *_, tasks, _ = metrics.audit_tables([*records, replace(SHOWN, task="", request="e")], outcomes=outcomes)
    assert cells(tasks) == [
        ["go", "all", "2", "100.0 %", "0.0 %", "0.0 %", "–", "–"],
        ["go", "line-end", "1", "100.0 %", "–", "–", "–", "–"],
        ["go", "test", "1", "100.0 %", "0.0 %", "0.0 %", "–", "–"],
        ["python", "line-end", "2", "100.0 %", "50.0 %", "50.0 %", "80 ms", "8.00"],
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
    rows = {name: values for name, *values in table if len(values) == 2}
    assert (rows["useful edits num"], rows["useful edits p50"]) == (["1", "0"], ["80 ms", "–"])
    names = ("show rate", "useful by 100 ms", "miss rate", "right rate")
    shares = [rows[name][0].partition(" (")[0] for name in names]
    assert shares == ["50.0 %", "50.0 %", "50.0 %", "75.0 %"]
    assert (rows["ttfue ms p50"], rows["accepted whole"]) == (["80 ms", "–"], ["1", "0"])


def test_a_log_without_records_is_refused(tmp_path, capsys):
    (tmp_path / "empty.jsonl").touch()
    for wrong in (tmp_path / "no.jsonl", tmp_path / "empty.jsonl"):
        assert run(["report", str(wrong)]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
