"""Test cases from the validation packages."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from dg_lsp.errors import InputFileError
from dg_training import cases
from dg_training.cases import CASE_SETS, CaseKind, draw_cases
from dg_training.commands import app
from dg_training.store import CorpusFile, write_texts

NUM_CASES = {CaseKind.LINE_END: 50, CaseKind.WHOLE_LINE: 30, CaseKind.BLOCK: 20}


@pytest.fixture(scope="module")
def files(sample_files):
    return sample_files[::5]


@pytest.fixture(scope="module")
def drawn_sets(files):
    return {case_set: draw_cases(files, str.split, case_set, NUM_CASES) for case_set in CASE_SETS}


def test_every_kind_has_its_number_of_cases_and_a_draw_is_reproducible(files, drawn_sets):
    for drawn in drawn_sets.values():
        assert {kind: sum(case.kind == kind for case in drawn) for kind in CaseKind} == NUM_CASES
    assert draw_cases(files, str.split, "tune", NUM_CASES) == drawn_sets["tune"]


def test_a_reference_is_code_up_to_the_end_of_a_line_and_no_line_is_in_two(drawn_sets):
    lines = []
    for case in (case for drawn in drawn_sets.values() for case in drawn):
        first = case.prefix.count("\n")
        lines += [(case.path, line) for line in range(first, first + case.reference.count("\n") + 1)]
        assert case.suffix.startswith("\n")
        assert case.reference.strip()
        assert len(case.reference.split()) <= cases.MAX_TOKENS[CaseKind(case.kind)]
        assert not any(line.lstrip().startswith(("#", '"""', "'''")) for line in case.reference.split("\n")[1:])
        assert bool(case.prefix.rpartition("\n")[2].strip()) == (case.kind == CaseKind.LINE_END)
        assert ("\n" in case.reference) == (case.kind == CaseKind.BLOCK)
    assert len(lines) == len(set(lines))


def test_files_that_do_not_parse_are_skipped_and_too_few_cases_are_an_error(files):
    broken = CorpusFile("p", "b.py", "def f(:\n" * 50)
    assert draw_cases([broken, *files], str.split, num_cases=NUM_CASES)
    with pytest.raises(InputFileError, match="too few"):
        draw_cases(files[:1], str.split, num_cases={**NUM_CASES, CaseKind.BLOCK: 5000})


def test_the_command_writes_cases_of_the_validation_split(sample_files, tmp_path):
    write_texts(tmp_path / "val.jsonl.xz", sample_files)
    texts = {f"{file.package}/{file.path}": file.text for file in sample_files}
    out = tmp_path / "cases.jsonl.gz"
    done = CliRunner().invoke(app, ["test-cases", "--root", str(tmp_path), "--out", str(out)])
    assert "1000 test cases" in done.output
    rows = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert len({row["task_id"] for row in rows}) == len(rows) == 1000
    for row in rows:
        assert row["prompt"] + row["canonical_solution"] + row["suffix"] == texts[row["path"]]
        assert row["kind"] in set(CaseKind)
