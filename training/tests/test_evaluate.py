import gzip
import json

import pytest

from dg_lsp.backends.scripted import ScriptedDenoiser
from dg_lsp.bench.dataset import TestCase
from dg_lsp.errors import InputFileError
from dg_training import evaluate
from dg_training.evaluate import CASE_SETS, CaseKind, draw_cases, write_cases
from dg_training.store import CorpusFile

NUM_CASES = {CaseKind.LINE_END: 50, CaseKind.WHOLE_LINE: 30, CaseKind.BLOCK: 20}


@pytest.fixture(scope="module")
def files(sample_files):
    return sample_files[::5]


@pytest.fixture(scope="module")
def cases(files):
    return {case_set: draw_cases(files, str.split, case_set, NUM_CASES) for case_set in CASE_SETS}


def test_every_kind_has_its_number_of_cases_and_a_draw_is_reproducible(files, cases):
    for drawn in cases.values():
        assert {kind: sum(case.kind == kind for case in drawn) for kind in CaseKind} == NUM_CASES
    assert draw_cases(files, str.split, "tune", NUM_CASES) == cases["tune"]


def test_a_reference_is_code_up_to_the_end_of_a_line_and_no_line_is_in_two(cases):
    lines = []
    for case in (case for drawn in cases.values() for case in drawn):
        first = case.prefix.count("\n")
        lines += [(case.path, line) for line in range(first, first + case.reference.count("\n") + 1)]
        assert case.suffix.startswith("\n")
        assert case.reference.strip()
        assert len(case.reference.split()) <= evaluate.MAX_TOKENS[CaseKind(case.kind)]
        assert not any(line.lstrip().startswith(("#", '"""', "'''")) for line in case.reference.split("\n")[1:])
        assert bool(case.prefix.rpartition("\n")[2].strip()) == (case.kind == CaseKind.LINE_END)
        assert ("\n" in case.reference) == (case.kind == CaseKind.BLOCK)
    assert len(lines) == len(set(lines))


def test_files_have_the_format_of_humaneval_infilling(cases, files, tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_cases(tmp_path / name, cases["tune"])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    rows = [json.loads(line) for line in gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).splitlines()]
    assert len({row["task_id"] for row in rows}) == len(rows) == 100
    texts = {f"{file.package}/{file.path}": file.text for file in files}
    for row in rows:
        assert row["prompt"] + row["canonical_solution"] + row["suffix"] == texts[row["path"]]
        assert row["test"] == row["entry_point"] == ""
        assert row["kind"] in {"line-end", "whole-line", "block"}


def test_files_that_do_not_parse_are_skipped_and_too_few_cases_are_an_error(files):
    broken = CorpusFile("p", "b.py", "def f(:\n" * 50)
    assert draw_cases([broken, *files], str.split, num_cases=NUM_CASES)
    with pytest.raises(InputFileError, match="too few"):
        draw_cases(files[:1], str.split, num_cases={**NUM_CASES, CaseKind.BLOCK: 5000})


def test_decoder_statistics_count_passes_by_kind():
    denoiser = ScriptedDenoiser("total_price", tokens_per_step=4)
    cases = [
        TestCase("right", "line-end", "total_price\nx = ", "\n", "total_price"),
        TestCase("wrong", "line-end", "total_price\nx = ", "\n", "other"),
        TestCase("span", "span", "x = ", "\n", "total_price"),
    ]
    table = evaluate.decoder_statistics(denoiser, denoiser.tokenizer, cases)
    assert set(table) == {f"line-end.{name}" for name in ("canvas", "causal", "lookup")}
    assert table["line-end.causal"] == "12.00,0.00,0.00,0.500"
    names = ("canvas", "lookup")
    canvas, lookup = ([float(x) for x in table[f"line-end.{name}"].split(",")] for name in names)
    assert canvas == [0, 0, pytest.approx(2.5, abs=1.5), 0.5]
    assert 0 < lookup[1] < lookup[0] + lookup[1] < 12
    assert lookup[2:] == [0, 0.5]
