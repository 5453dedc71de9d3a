"""Next edits are cut out of a repository's history."""

import json
import subprocess
from unittest.mock import Mock

import pytest

from dg_lsp.bench import next_edit
from dg_lsp.bench.next_edit import CaseOutcome, FileChange, cases_of, cut_history, measure, summary, table
from dg_lsp.cli import run
from dg_lsp.engine.next_edit import PAUSE_SECONDS, Proposal
from dg_lsp.postprocess.text_edits import Change

BEFORE = "import a\n\nx = load(1)\ny = 2\nz = load(3)\nprint(x)\n"
AFTER = "import a\n\nx = read(1)\ny = 2\nz = read(3)\nprint(x, z)\n"


def git(folder, *arguments, text=None):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", *identity, "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, input=text, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "--quiet")
    for text in (BEFORE, AFTER):
        (tmp_path / "code.py").write_text(text)
        (tmp_path / "notes.txt").write_text(text)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "--quiet", "--message", "change")
    return tmp_path


def test_edits_are_typed_key_by_key_into_a_history_that_merges_them(monkeypatch):
    """The first two edits are in the same line for a user, because no line end is between them."""
    edits = (Change(0, 6, "aa = 1\n"), Change(6, 6, "new\nline\n"), Change(12, 18, "cc = 3\n"), Change(18, 24, ""))
    first, second, third = cases_of(FileChange("a.py", "python", "a = 1\nb = 2\nc = 3\nd = 4\n", edits))
    assert [(edit.old, edit.new) for edit in first.history] == [("a = 1\n", "aa = 1\n")]
    assert second.lines.text == "aa = 1\nnew\nline\nb = 2\nc = 3\nd = 4\n"
    assert [(edit.line, edit.old, edit.new) for edit in second.history] == [
        (1, "b = 2\n", "new\nline\nb = 2\n"),
        (0, "a = 1\n", "aa = 1\n"),
    ]
    assert second.remaining == (Change(22, 28, "cc = 3\n"), Change(28, 34, ""))
    assert third.history[0].new == "cc = 3\n"
    assert third.remaining[0].applied(third.lines.text) == "aa = 1\nnew\nline\nb = 2\ncc = 3\n"
    block = second.lines.text.index("new")
    for text, is_right in (("new\nline\n", True), ("new\n", False)):
        monkeypatch.setattr(next_edit, "next_edits", lambda *_, text=text: [Proposal(block, block, text, 1.0)])
        outcome = measure(first, "python")
        assert [outcome.is_in_place, outcome.is_right, outcome.kept_text == 1.0] == [is_right] * 3


def test_an_edit_that_is_too_large_leaves_a_case_without_a_history():
    edits = (Change(0, 5001, ""), Change(5001, 5003, "b\n"))
    [case] = cases_of(FileChange("a.py", "python", "a" * 5000 + "\nc\n", edits))
    assert case.history == ()
    assert not measure(case, "python").is_shown


PROPOSALS = {
    "the edit of the commit": ("load", "read", {"is_in_place", "is_right"}, 1.0),
    "other blanks": ("z = load(3)", "z  =  read(3)", {"is_in_place", "is_right"}, None),
    "another text": ("load", "rest", {"is_in_place"}, None),
    "another place": ("import", "from", {"breaks_syntax"}, 0.0),
    "the last edit backwards": ("read(1)", "load(1)", {"is_reversal"}, 0.0),
    "broken code": ("load", "(", {"is_in_place", "breaks_syntax"}, None),
}


@pytest.mark.parametrize(("old", "new", "facts", "kept_text"), PROPOSALS.values(), ids=PROPOSALS)
def test_a_proposal_is_compared_with_the_edits_of_the_commit(repository, monkeypatch, old, new, facts, kept_text):
    [change] = cut_history(repository, 10)
    case = next(iter(cases_of(change)))
    start = case.lines.text.index(old)
    monkeypatch.setattr(next_edit, "next_edits", lambda *_: [Proposal(start, start + len(old), new, 1.0)])
    outcome = measure(case, change.language)
    names = {"is_in_place", "is_right", "is_reversal", "breaks_syntax"}
    assert {name for name in names if getattr(outcome, name)} == facts
    assert outcome.kept_text == kept_text or (kept_text is None and 0 < outcome.kept_text < 1)


def test_the_command_measures_the_first_proposal_of_each_case(repository, capsys):
    command = ["bench", "next-edit", str(repository)]
    assert run([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [numbers[name] for name in ("num", "shown", "right", "kept_text_of_shown")] == [2, 0.5, 0.5, 1]
    assert run(command) == 0
    assert "| num | 2 | 2 |" in capsys.readouterr().out


def test_ctrl_c_keeps_the_finished_files(repository, monkeypatch, capsys):
    (repository / "code.py").write_text(BEFORE)
    git(repository, "commit", "--quiet", "--all", "--message", "back")
    measured = [CaseOutcome("python", 1.0)] * 3
    monkeypatch.setattr("dg_lsp.cli.bench.measure", Mock(side_effect=[*measured, KeyboardInterrupt]))
    assert run(["bench", "next-edit", str(repository), "--json"]) == 130
    numbers = json.loads(capsys.readouterr().out)
    assert (numbers["num"], numbers["is_complete"]) == (2, False)


def test_a_folder_without_such_a_history_is_refused(repository, tmp_path_factory, capsys):
    git(repository, "reset", "--quiet", "--hard", "HEAD~1")
    for folder, problem in ((tmp_path_factory.mktemp("empty"), "git cannot read"), (repository, "no commit of")):
        assert run(["bench", "next-edit", str(folder)]) == 2
        assert problem in capsys.readouterr().err


def test_a_repository_names_no_program_that_is_run(repository, tmp_path_factory, capsys):
    """Neither to check a signature nor to fetch what a partial clone lacks."""
    program = tmp_path_factory.mktemp("trap") / "program"
    program.write_text('#!/bin/sh\ntouch "$0.ran"\n')
    program.chmod(0o755)
    head, message = git(repository, "cat-file", "commit", "HEAD").split("\n\n", 1)
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n -----END PGP SIGNATURE-----\n\n{message}"
    commit = git(repository, "hash-object", "-t", "commit", "-w", "--stdin", text=signed).strip()
    blob = git(repository, "rev-parse", f"{commit}:code.py").strip()
    git(repository, "update-ref", "HEAD", commit)
    settings = {"log.showSignature": "true", "gpg.program": program, "remote.a.uploadpack": program}
    settings |= {"core.repositoryFormatVersion": 1, "extensions.partialClone": "a"}
    settings |= {"remote.a.promisor": "true", "remote.a.url": repository}
    for name, value in settings.items():
        git(repository, "config", name, str(value))
    assert len(list(cut_history(repository, 10))) == 1
    (repository / ".git/objects" / blob[:2] / blob[2:]).unlink()
    assert run(["bench", "next-edit", str(repository)]) == 2
    assert "git cannot read" in capsys.readouterr().err
    assert not program.with_name("program.ran").exists()


def test_a_folder_of_a_repository_has_its_own_files_but_excluded_ones_also_with_names_that_git_quotes(repository):
    folder = repository / "größe"
    folder.mkdir()
    for text in (BEFORE, AFTER):
        for name in ("maß.py", "latin.py"):
            (folder / name).write_bytes(text.encode() if name == "maß.py" else f"# ß\n{text}".encode("latin-1"))
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "--message", "change")
    uri = (folder / "maß.py").as_uri()
    assert len(list(cut_history(folder, 10))) == 1
    assert not list(cut_history(folder, 10, is_excluded=lambda snapshot: snapshot.uri == uri))


def test_the_summary_has_shares_of_all_cases_and_of_what_is_shown():
    right = CaseOutcome("python", 1.0, is_shown=True, is_in_place=True, is_right=True, kept_text=1.0)
    wrong = CaseOutcome("go", 3.0, is_shown=True, kept_text=0.5, is_reversal=True, breaks_syntax=True)
    outcomes = [right, wrong, CaseOutcome("go", 2.0), CaseOutcome("go", 2.0)]
    numbers = summary(outcomes)
    assert (numbers["num"], numbers["shown"], numbers["right"], numbers["wrong_shown"]) == (4, 0.5, 0.25, 0.25)
    of_shown = ("right", "in_place", "kept_text", "reversals", "syntax_errors")
    assert [numbers[f"{name}_of_shown"] for name in of_shown] == [0.5, 0.5, 0.75, 0.5, 0.5]
    assert numbers["ms_p50"] == 2.0
    assert summary(outcomes[1:])["shown"] == 0.3333, "numbers have at most four decimals"
    ttfue_ms = 1e3 * PAUSE_SECONDS + 1.0
    assert (numbers["ttfue_ms"]["p50"], numbers["miss_rate"]) == (ttfue_ms, 0.75)
    assert (numbers["useful_by"]["250"], numbers["useful_by"]["500"]) == (0.0, 0.25)
    columns = table(outcomes)
    assert (columns.columns, columns.rows[0]) == (("measure", "all", "python", "go"), ("num", "4", "1", "3"))
