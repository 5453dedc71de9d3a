import gzip
import json
from pathlib import Path

import pytest

from dg_lsp.bench.dataset import TestCase, read_cases, sample_cases
from dg_lsp.errors import InputFileError

PROBLEMS = Path(__file__).parent / "problems.jsonl"
PROBLEM = {"task_id": "t/1", "prompt": "def f():\n    return ", "suffix": "\n", "canonical_solution": "1"}


def written(path, *problems):
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


def test_a_gzip_file_is_read_like_a_plain_one(tmp_path):
    (tmp_path / "problems.jsonl.gz").write_bytes(gzip.compress(PROBLEMS.read_bytes()))
    assert read_cases(tmp_path / "problems.jsonl.gz") == read_cases(PROBLEMS)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_line_end_of_a_whole_line_moves_to_the_suffix(tmp_path, end):
    problem = {**PROBLEM, "prompt": f"def f():{end}", "suffix": "    return a", "canonical_solution": f"    a = 1{end}"}
    [case] = read_cases(written(tmp_path / "a.jsonl", problem))
    assert (case.reference, case.suffix) == ("    a = 1", f"{end}    return a")
    assert case.kind == "whole-line"


@pytest.mark.parametrize(
    ("prompt", "want", "suffix", "kind"),
    [
        pytest.param("return ", "a", "\n", "line-end", id="rest of a line"),
        pytest.param("f(", "a", ")\n", "span", id="text after the cursor"),
        pytest.param("if a:", "\n    b", "\n", "span", id="line end and next line"),
        pytest.param("if a:\n    ", "b", "\n", "whole-line", id="one line"),
        pytest.param("if a:\n", "    b\n    c", "\n", "block", id="several lines"),
        pytest.param("if a:\n", "    b\n    c = ", "1\n", "span", id="lines and part of a line"),
    ],
)
def test_the_kind_is_derived_unless_the_data_names_it(tmp_path, prompt, want, suffix, kind):
    problem = {**PROBLEM, "prompt": prompt, "canonical_solution": want, "suffix": suffix}
    [case] = read_cases(written(tmp_path / "a.jsonl", problem))
    assert case.kind == kind
    [case] = read_cases(written(tmp_path / "a.jsonl", {**problem, "kind": "other"}))
    assert case.kind == "other"


GOOD = json.dumps({**PROBLEM, "task_id": "t/0"}).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(json.dumps({**PROBLEM, "prompt": None}), "line 2: prompt is not a string", id="null"),
        pytest.param(json.dumps({**PROBLEM, "canonical_solution": " "}), "line 2: .*blank", id="blank reference"),
        pytest.param(GOOD, "line 2: duplicate task_id t/0", id="duplicate id"),
        pytest.param("{}", "line 2: no task_id", id="missing key"),
        pytest.param("[1]", "line 2: not an object", id="no object"),
        pytest.param("[" * 100_000, "line 2: ", id="too deep"),
        pytest.param(b"\xff", "not UTF-8", id="other encoding"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path, data, message):
    (tmp_path / "a.jsonl").write_bytes(GOOD + b"\n" + (data if isinstance(data, bytes) else data.encode()) + b"\n")
    with pytest.raises(InputFileError, match=message) as caught:
        read_cases(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"\n\n", gzip.compress(GOOD)[:-9], gzip.compress(GOOD * 9)[:20] + b"junk" * 9],
    ids=["no line", "cut off", "damaged"],
)
def test_an_empty_or_damaged_file_is_refused(tmp_path, data):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(InputFileError, match=r"has no test cases|cannot read"):
        read_cases(tmp_path / "a.jsonl")


def test_a_sample_depends_on_its_seed_and_only_grows():
    cases = [TestCase(str(i), "span", "", "", "x") for i in range(20)]
    assert sample_cases(cases, None, 1) == tuple(cases)
    small, large = sample_cases(cases, 5, 1), sample_cases(cases, 9, 1)
    assert large[:5] == small
    assert small != sample_cases(cases, 5, 2)
    assert small != tuple(cases[:5])
    assert set(sample_cases(cases, 99, 1)) == set(cases)
