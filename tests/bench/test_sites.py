import gzip
import json
from pathlib import Path

import pytest

from dg_lsp.bench.sites import Site, read_sites, sample
from dg_lsp.errors import InputFileError

PROBLEMS = Path(__file__).parent / "problems.jsonl"
AS_WRITTEN = {tree["task_id"]: tree for tree in map(json.loads, PROBLEMS.read_text().splitlines())}
PROBLEM = {"task_id": "t/1", "prompt": "def f():\n    return ", "suffix": "\n", "canonical_solution": "1"}


def written(path, *problems):
    path.write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return path


def test_sites_are_read_plain_and_gzipped_in_their_order(tmp_path):
    plain = read_sites(PROBLEMS)
    (tmp_path / "problems.jsonl.gz").write_bytes(gzip.compress(PROBLEMS.read_bytes()))
    assert read_sites(tmp_path / "problems.jsonl.gz") == plain
    assert [site.id for site in plain] == list(AS_WRITTEN)
    assert all(site.test and site.entry_point for site in plain)


@pytest.mark.parametrize("site", read_sites(PROBLEMS), ids=lambda site: site.id)
def test_reference_and_surroundings_are_the_whole_program(site):
    problem = AS_WRITTEN[site.id]
    whole = problem["prompt"] + problem["canonical_solution"] + problem["suffix"]
    assert site.prefix + site.want + site.suffix == whole
    assert site.snapshot.text[: site.offset] == site.prefix
    scope = {}
    exec(site.program(site.want), scope)
    assert site.entry_point in scope


def test_a_whole_line_gives_its_line_end_back(tmp_path):
    problem = {**PROBLEM, "prompt": "def f():\n", "suffix": "    return a\n", "canonical_solution": "    a = 1\n"}
    [site] = read_sites(written(tmp_path / "a.jsonl", problem))
    assert (site.want, site.suffix) == ("    a = 1", "\n    return a\n")
    assert site.kind == "whole-line"


def test_a_span_that_begins_inside_a_line_is_left_as_it_is(tmp_path):
    problem = {**PROBLEM, "canonical_solution": "1\n", "suffix": "x = 2\n"}
    [site] = read_sites(written(tmp_path / "a.jsonl", problem))
    assert (site.want, site.suffix) == ("1\n", "x = 2\n")


@pytest.mark.parametrize(
    ("prompt", "want", "suffix", "kind"),
    [
        pytest.param("return ", "a", "\n", "line-end", id="to the end of its line"),
        pytest.param("f(", "a", ")\n", "span", id="text follows"),
        pytest.param("if a:", "\n    b", "\n", "span", id="from a line's end over the next"),
        pytest.param("if a:\n    ", "b", "\n", "whole-line", id="a line"),
        pytest.param("if a:\n", "    b\n    c", "\n", "block", id="lines"),
        pytest.param("if a:\n", "    b\n    c = ", "1\n", "span", id="lines and a half"),
    ],
)
def test_the_kind_comes_from_the_place_unless_the_data_says_it(tmp_path, prompt, want, suffix, kind):
    problem = {**PROBLEM, "prompt": prompt, "canonical_solution": want, "suffix": suffix}
    [site] = read_sites(written(tmp_path / "a.jsonl", problem))
    assert site.kind == kind
    [site] = read_sites(written(tmp_path / "a.jsonl", {**problem, "kind": "other"}))
    assert site.kind == "other"


@pytest.mark.parametrize(("want", "num_lines"), [("a", 1), ("a\n", 1), ("a\n  b", 2), ("\n    a", 2)])
def test_lines_of_the_reference(want, num_lines):
    assert Site("s", "span", "", "", want).num_lines == num_lines


def test_without_tests_there_is_no_program():
    assert Site("s", "span", "a", "b", "x").program("x") is None
    site = Site("s", "span", "def f():\n    return ", "\n", "1", "def check(f): f()", "f")
    assert site.program("2") == "def f():\n    return 2\n\ndef check(f): f()\ncheck(f)\n"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        pytest.param({"prompt": None}, "prompt is no string", id="null"),
        pytest.param({"suffix": 3}, "suffix is no string", id="a number"),
        pytest.param({"canonical_solution": " \n"}, "blank", id="a blank reference"),
        pytest.param({"task_id": "t/0"}, "came before", id="an id twice"),
    ],
)
def test_a_bad_line_is_named(tmp_path, change, complaint):
    path = written(tmp_path / "a.jsonl", {**PROBLEM, "task_id": "t/0"}, {**PROBLEM, **change})
    with pytest.raises(InputFileError, match=f"line 2: .*{complaint}"):
        read_sites(path)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        pytest.param(b"{}\n", "line 1: no task_id", id="keys are missing"),
        pytest.param(b"\n[1]\n", "line 2: not an object", id="no object"),
        pytest.param(b"{\n", "line 1: ", id="no JSON"),
        pytest.param(b"\n\n", "holds no sites", id="nothing"),
        pytest.param(b"\xff\n", "not UTF-8", id="another encoding"),
        pytest.param(gzip.compress(b"{}\n")[:-9], "cannot read", id="gzip cut short"),
        pytest.param(gzip.compress(b"{}\n" * 99)[:20] + b"junk" * 9, "cannot read", id="broken gzip"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path, data, complaint):
    (tmp_path / "a.jsonl").write_bytes(data)
    with pytest.raises(InputFileError, match=complaint) as caught:
        read_sites(tmp_path / "a.jsonl")
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(InputFileError, match="no such file"):
        read_sites(tmp_path / "gone.jsonl")
    with pytest.raises(InputFileError, match="cannot read"):
        read_sites(tmp_path)


def test_a_sample_is_drawn_by_its_seed_and_only_grows():
    sites = [Site(str(i), "span", "", "", "x") for i in range(20)]
    assert sample(sites, None, 1) == tuple(sites)
    small, large = sample(sites, 5, 1), sample(sites, 9, 1)
    assert large[:5] == small
    assert small != sample(sites, 5, 2)
    assert small != tuple(sites[:5])
    assert set(sample(sites, 99, 1)) == set(sites)
