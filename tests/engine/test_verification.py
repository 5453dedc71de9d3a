"""Candidates that a command of the user tests, in copies of a folder."""

import os
from unittest.mock import Mock

import pytest

from dg_lsp.context.window import SnippetSource
from dg_lsp.engine.request import Replacement
from dg_lsp.engine.verification import Verification, last_failure, message_of
from dg_lsp.errors import SandboxError
from dg_lsp.postprocess.validate import Candidate
from dg_lsp.sandbox import CommandResult

PYTEST = """
___________________________________ test_one ___________________________________
E       assert 1 == 2
___________________________________ test_two ___________________________________
E       assert 3 == 4
=========================== short test summary info ============================
FAILED test_a.py::test_one - assert 1 == 2
FAILED test_a.py::test_two - assert 3 == 4
"""
UNITTEST = """
FAIL: test_one (test_a.A.test_one)
AssertionError: 1 != 2
ERROR: test_two (test_a.A.test_two)
ValueError: 4

FAILED (errors=1)
"""
GO = "--- FAIL: TestOne (0.00s)\n    a_test.go:6: 1\n--- FAIL: TestTwo (0.00s)\n    a_test.go:9: 3 is not 4\nFAIL\n"
CARGO = "---- tests::one stdout ----\n1\n\n---- tests::two stdout ----\nthread 'tests::two' panicked\n\nfailures:\n"
JEST = "  \x1b[1m● one\x1b[22m\n\n    1\n\n  \x1b[1m● two\x1b[22m\n\n    Expected: 4\n    Received: 3\n"


@pytest.mark.parametrize(
    ("output", "first", "message"),
    [
        pytest.param(PYTEST, "_" * 35 + " test_two ", "FAILED test_a.py::test_two - assert 3 == 4", id="pytest"),
        pytest.param(UNITTEST, "ERROR: test_two", "FAILED (errors=1)", id="unittest"),
        pytest.param(GO, "--- FAIL: TestTwo", "FAIL", id="go"),
        pytest.param(CARGO, "---- tests::two stdout ----", "failures:", id="cargo"),
        pytest.param(JEST, "  ● two", "Received: 3", id="jest, with colours"),
        pytest.param("a\nb\x07\n\n", "a\nb", "b", id="another form"),
        pytest.param("", "", "it prints nothing", id="nothing"),
    ],
)
def test_the_last_failure_of_an_output_and_its_message(output, first, message):
    failure = last_failure(output)
    assert failure.startswith(first)
    assert "test_one" not in failure.split("short test summary")[0]
    assert message_of(output) == message


@pytest.fixture
def folder(tmp_path):
    """A folder with a file, of which copies are tested."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a.py").write_text("b = x\n")
    return folder


@pytest.fixture
def verify(bwrap, folder):
    def make(command, **files):
        contents = {folder / f"{name}.py": data for name, data in {"a": b"b = x\n", **files}.items()}
        return Verification(command, folder, folder / "a.py", contents, bwrap, seconds=60.0)

    return make


def snapshot_of(folder):
    return {
        path: (path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def ignore(_):
    """Takes the reports of a test that checks none of them."""


def test_the_failure_becomes_context_without_secrets(verify):
    reports = []
    key = "ghp_" + "aB3dE6gH9j" * 3 + "kLmNoP"
    [snippet] = verify(f"echo 'E  no {key}'; false").failure(reports.append).chunks
    assert (snippet.source, snippet.path) == (SnippetSource.TEST, "output of the test")
    assert snippet.text == "E  no ***"
    assert reports == [f"the test fails: E no {key}"]


def candidates(*texts):
    return [Replacement(4, 5, Candidate(text, 0.0, 0.5 - 0.01 * number)) for number, text in enumerate(texts)]


def data_of(option):
    return f"b = {option.text}\n".encode()


def test_candidates_are_tested_by_confidence_until_one_passes(folder):
    def run_command(_command, _folder, copy, **_limits):
        return CommandResult({"b = 1\n": None, "b = 2\n": 0}[(copy / "a.py").read_text()], "", 1.0)

    options = candidates("1", "2", "3")
    test = Verification("make", folder, folder / "a.py", {}, Mock(run_command=run_command), seconds=5.0)
    passing, trials = test.first_passing(options[::-1], data_of, ignore)
    assert passing is options[1]
    assert [(trial.text, trial.passes) for trial in trials] == [("1", False), ("2", True)]
    assert [trial.outcome for trial in trials] == ["does not end within 5 s", "passes after 1.0 s"]


def test_what_a_test_writes_changes_neither_the_folder_nor_the_next_run(verify, folder):
    (folder / "only-once").write_text("x")
    (folder / "a.py").chmod(0o444)
    before = snapshot_of(folder)
    command = (
        "rm only-once && echo y > a.py.new && mv a.py.new a.py && mkdir built && test -w a.py && grep y a.py | grep n"
    )
    _, trials = verify(command).first_passing(candidates("1", "2"), data_of, ignore)
    assert len({trial.outcome.split(": ")[1] for trial in trials}) == 1
    assert snapshot_of(folder) == before


def test_a_link_in_the_folder_never_leads_a_candidate_out_of_the_copy(verify, folder, tmp_path):
    outside = tmp_path / "outside.py"
    outside.write_text("mine")
    (folder / "a.py").unlink()
    (folder / "a.py").symlink_to(outside)
    assert verify("grep -q 1 a.py").first_passing(candidates("1"), data_of, ignore)[0]
    assert outside.read_text() == "mine"


def test_the_copy_has_unsaved_files_and_neither_dependencies_nor_caches(verify, folder):
    (folder / "other.py").write_text("saved")
    for name in ("node_modules/x", ".git/x", "env/x", "pkg/__pycache__/x"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("1")
    (folder / "env/pyvenv.cfg").write_text("")
    os.mkfifo(folder / "pipe")
    command = "cat node_modules/x .git/x env/x && ! echo 2 > env/x && ! ls pkg/__pycache__ pipe && grep -q 1 a.py"
    command += " && grep -q unsaved other.py"
    assert verify(command, other=b"unsaved").first_passing(candidates("1"), data_of, ignore)[0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dg_lsp.engine.verification.MAX_BYTES", 1, "too much to copy: use a smaller folder"),
        ("dg_lsp.engine.verification.MAX_FILES", 1, "too much to copy: use a smaller folder"),
        ("shutil.copytree", Mock(side_effect=PermissionError(13, "no")), "cannot be copied for the test: no"),
    ],
    ids=["too long", "too many files", "unreadable"],
)
def test_a_folder_that_cannot_be_copied_is_refused(verify, folder, monkeypatch, name, value, message):
    monkeypatch.setattr(name, value)
    (folder / "b.py").write_text("b")
    with pytest.raises(SandboxError, match=message):
        verify("true").failure(ignore)
