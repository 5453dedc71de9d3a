import json
import subprocess
from pathlib import Path

import pytest

from dg_lsp.bench.dataset import read_cases

KEY = "AKIA" + "ABCDEFGHIJKLMNOP"
GO = "package shop\n\n" + "".join(
    f"func price{n}(count int) int {{\n\ttotal := count * {n}\n\treturn total + offset{n}\n}}\n\n" for n in range(12)
)
PYTHON = f"KEY = '{KEY}'\n" + "".join(
    f"def price_{n}(count):\n    if count > {n}:\n        count -= {n}\n    return count * offset_{n}\n\n\n"
    for n in range(12)
)


@pytest.fixture
def project(tmp_path):
    """A repository with two languages, a copy, an ignored folder, an ignored file and a file with secrets."""
    root = tmp_path / "shop"
    files = {
        "price.go": GO,
        "price.py": PYTHON,
        "copy/price.py": PYTHON,
        ".gitignore": "build/\n*_pb2.py\n",
        "build/made.py": PYTHON.replace("price", "built"),
        "shop_pb2.py": PYTHON.replace("price", "generated"),
        "secrets.toml": "[shop]\n" + "".join(f"word_{n} = 'hidden hidden hidden'\n" for n in range(30)),
        "min.js": "var a=1;" * 200,
        "signs/signs.py": "(){}[]()\n" * 60,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", root], check=True)
    return root


def test_cases_come_from_the_users_own_files_once_without_ignored_and_secret_ones(dg_lsp, project):
    outcome = dg_lsp("bench", "cut", project, "-o", "cases.jsonl", "--number", "40")
    assert outcome.code == 0, outcome
    assert "40 test cases of 2 files" in outcome.out
    cut = [json.loads(line) for line in Path("cases.jsonl").read_text().splitlines()]
    assert {row["path"] for row in cut} < {"price.go", "price.py", "copy/price.py"}
    assert {row["language"] for row in cut} == {"go", "python"}
    assert KEY not in Path("cases.jsonl").read_text()
    places = {(row["prompt"], row["canonical_solution"], row["kind"]) for row in cut}
    assert len(places) == len({row["task_id"] for row in cut}) == 40
    blocks = [(row["path"], row["prompt"]) for row in cut if row["kind"] == "block"]
    assert len(blocks) == len(set(blocks)), "the body of a function and its first statement start at one place"
    all_cases = dg_lsp("bench", "cut", project, "-o", "cases.jsonl", "--number", 10**9)  # and ends soon
    assert 40 < int(all_cases.out.split()[0]) < 1000


def test_cases_have_the_format_and_the_kinds_of_the_benchmark(dg_lsp, project):
    dg_lsp("bench", "cut", project / "copy/..", "-o", "cases.jsonl", "--number", "30", "--language", "go")
    cases = read_cases(Path("cases.jsonl"))
    assert all(case.prefix + case.reference + case.suffix == GO for case in cases)
    assert {case.snapshot.language for case in cases} == {"go"}
    lines = {kind: [case for case in cases if case.kind == kind] for kind in ("line-end", "whole-line", "block")}
    assert {kind: len(cases) for kind, cases in lines.items()} == {"line-end": 10, "whole-line": 10, "block": 10}
    for case in cases:
        before = case.prefix.rpartition("\n")[2]
        assert bool(before.strip()) == (case.kind == "line-end")
        assert case.suffix.startswith("\n")
        assert (case.reference.count("\n") > 0) == (case.kind == "block")
        # a node of the grammar: its brackets are closed
        assert case.kind != "block" or case.reference.count("{") == case.reference.count("}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(["gone"], "gone is no folder", id="missing folder"),
        pytest.param(["circle"], "circle is no folder", id="links in a circle"),
        pytest.param(["x" * 300], "cannot read x", id="folder out of reach"),
        pytest.param(["shop", "--language", "gopher"], "unknown language gopher: name one of", id="unknown language"),
        pytest.param(["shop", "--language", "rust"], "no source file in rust", id="no such file"),
        pytest.param(["shop/build"], "no source file", id="everything is ignored"),
        pytest.param(["shop/signs"], "no place to cut", id="nothing to complete"),
    ],
)
def test_wrong_use_is_one_line_and_writes_nothing(dg_lsp, project, arguments, message):
    Path("circle").symlink_to("circle")
    assert message in dg_lsp("bench", "cut", *arguments, "-o", "cases.jsonl").error(2)
    assert not Path("cases.jsonl").exists()
