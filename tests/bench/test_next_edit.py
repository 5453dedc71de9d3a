"""Next edits are cut out of a repository's history."""

import subprocess

import pytest

from dg_lsp.bench.next_edit import LineEdit, cases_of, cut_history, measure, summary, table
from dg_lsp.engine.next_edit import Proposal
from dg_lsp.errors import InputFileError

BEFORE = "import a\n\nx = load(1)\ny = 2\nz = load(3)\nprint(x)\n"
AFTER = "import a\n\nx = read(1)\ny = 2\nz = read(3)\nprint(x, z)\n"


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    for text in (BEFORE, AFTER):
        (tmp_path / "code.py").write_text(text)
        (tmp_path / "notes.txt").write_text(text)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", "change")
    return tmp_path


def test_the_edits_of_a_commit_become_history_and_what_remains(repository):
    [change] = cut_history(repository, 10)
    assert (change.path, change.language) == ("code.py", "python")
    first, *_ = cases = list(cases_of(change))
    assert len(cases) == len(change.edits) - 1 == 2
    assert first.history[0].old == "x = load(1)\n"
    assert "".join(first.lines).startswith("import a\n\nx = read(1)\n")
    text = list(first.lines)
    for edit in sorted(first.remaining, key=lambda edit: -edit.start):
        text[edit.start : edit.end] = [edit.text]
    assert "".join(text) == AFTER


def test_a_proposal_is_right_if_it_makes_one_of_the_remaining_edits(repository):
    [change] = cut_history(repository, 10)
    case = next(iter(cases_of(change)))
    text = "".join(case.lines)
    start = text.index("load")
    assert case.is_right(Proposal(start, start + 4, "read", 1.0))
    wrong = Proposal(start, start + 4, "write", 1.0)
    assert case.is_in_place(wrong)
    assert not case.is_right(wrong)
    elsewhere = Proposal(0, 6, "from", 1.0)
    assert not case.is_in_place(elsewhere)


def test_growth_is_counted_in_lines():
    assert LineEdit(3, 5, "one\n").growth == -1


def test_a_folder_without_a_history_is_reported(tmp_path):
    with pytest.raises(InputFileError, match="git cannot read"):
        list(cut_history(tmp_path, 1))


def test_the_first_proposal_of_a_case_is_measured(repository):
    [change] = cut_history(repository, 10)
    outcome, last = [measure(case, change.language) for case in cases_of(change)]
    assert (outcome.is_shown, outcome.is_right, outcome.is_in_place) == (True, True, True)
    assert not (outcome.is_reversal or outcome.breaks_syntax)
    assert not last.is_shown
    numbers = summary([outcome, last])
    assert (numbers["shown"], numbers["right"], numbers["right_of_shown"]) == (0.5, 0.5, 1.0)
    listed = table([outcome, last])
    assert [row[:2] for row in listed.groups[""]] == [("all", "2"), ("python", "2")]
