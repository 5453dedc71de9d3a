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


@pytest.mark.parametrize(
    ("prompt", "want", "suffix", "kind"),
    [
        pytest.param("return ", "a", "\n", "line-end", id="rest of a line"),
        pytest.param("f(", "a", ")\n", "span", id="text after the cursor"),
        pytest.param("if a:", "\n    b", "\n", "span", id="line end and next line"),
        pytest.param("if a:\n    ", "b", "\n", "whole-line", id="one line"),
        pytest.param("if a:\n", "    b\n", "c", "whole-line", id="one line with its end"),
        pytest.param("if a:\r\n", "    b\r\n", "c", "whole-line", id="one line with the end of Windows"),
        pytest.param("if a:\n", "    b\n    c", "\n", "block", id="several lines"),
        pytest.param("if a:\n", "    b\n    c = ", "1\n", "span", id="lines and part of a line"),
    ],
)
def test_the_kind_is_derived_unless_named_and_a_line_end_is_in_the_suffix(tmp_path, prompt, want, suffix, kind):
    problem = {**PROBLEM, "prompt": prompt, "canonical_solution": want, "suffix": suffix}
    [case] = read_cases(written(tmp_path / "a.jsonl", problem))
    assert (case.kind, case.reference) == (kind, want.rstrip("\r\n"))
    assert case.reference + case.suffix == want + suffix
    [case] = read_cases(written(tmp_path / "a.jsonl", {**problem, "kind": "other"}))
    assert case.kind == "other"


GOOD = json.dumps({**PROBLEM, "task_id": "t/0"}).encode()
SECOND_LINES = {
    "null": (json.dumps({**PROBLEM, "prompt": None}), "prompt is not a string"),
    "blank reference": (json.dumps({**PROBLEM, "canonical_solution": " "}), ".*blank"),
    "duplicate id": (GOOD.decode(), "duplicate task_id t/0"),
    "missing key": ("{}", "no task_id"),
    "no object": ("[1]", "not an object"),
    "too deep": ("[" * 100_000, ""),
}
BAD = {name: (GOOD + b"\n" + line.encode(), f"line 2: {message}") for name, (line, message) in SECOND_LINES.items()}
BAD |= {
    "other encoding": (b"\xff", "not UTF-8"),
    "no line": (b"\n\n", "has no test cases"),
    "cut off": (gzip.compress(GOOD)[:-9], "cannot read"),
    "damaged": (gzip.compress(GOOD * 9)[:20] + b"junk" * 9, "cannot read"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_the_number_of_the_line(tmp_path, data, message):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(InputFileError, match=message) as caught:
        read_cases(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


def test_a_sample_depends_on_its_seed_and_only_grows():
    cases = [TestCase(str(i), "span", "", "", "x") for i in range(20)]
    assert sample_cases(cases, None, 1) == tuple(cases)
    small, large = sample_cases(cases, 5, 1), sample_cases(cases, 9, 1)
    assert large[:5] == small
    assert small != sample_cases(cases, 5, 2)
    assert small != tuple(cases[:5])
    assert set(sample_cases(cases, 99, 1)) == set(cases)
