"""`--test`: the first candidate with which a command of the user passes is shown, printed as a patch or written."""

import pytest

from dg_lsp.sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("bwrap")
PASSES_WITH_TWO = "grep -q 'b = 2' a.py || { echo 'E  b is not 2'; false; }"
OPTIONS = {
    "rewrite": ("b = x\n", ("rewrite", "a.py:1"), "b = "),
    "fill": ("b = \n", ("fill", "a.py:1"), ""),
    "gaps": ("b = ...\n", ("fill", "a.py", "--gaps"), ""),
}
every_command = pytest.mark.parametrize(("text", "command", "before"), OPTIONS.values(), ids=OPTIONS)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("b = x\n")
    return path


@every_command
def test_the_first_passing_candidate_is_written_and_each_trial_is_reported(dg_lsp, script, file, text, command, before):
    script.fill = (f"{before}1", f"{before}2", f"{before}3")
    file.write_text(text)
    outcome = dg_lsp(*command, "--test", PASSES_WITH_TWO, "--write")
    assert outcome.code == 0, outcome
    assert file.read_text() == "b = 2\n"
    lines = [line for line in outcome.err.splitlines() if "test" in line or "candidate" in line]
    assert lines[0] == "dg-lsp: the test fails: E b is not 2"
    assert " fails after " in lines[1]
    assert lines[1].endswith("E b is not 2")
    assert " passes after " in lines[-1]


@every_command
def test_no_candidate_that_passes_is_exit_code_1_and_changes_nothing(dg_lsp, script, file, text, command, before):
    script.fill = (f"{before}1", f"{before}3")
    file.write_text(text)
    outcome = dg_lsp(*command, "--test", PASSES_WITH_TWO, "--write", "--json")
    assert (outcome.code, outcome.json["rejected"]) == (1, "fails-test")
    tests = [(trial["passes"], "E b is not 2" in trial["outcome"]) for trial in outcome.json["tests"]]
    assert tests == [(False, True)] * 2
    assert file.read_text() == text


def test_a_test_that_cannot_decide_ends_the_command_before_a_model_is_loaded(dg_lsp, script, file):
    assert "the test passes already" in dg_lsp("rewrite", "a.py:1", "--test", "true").error(1)
    options = ("--test", "sleep 1000", "--test-deadline", "500")
    assert "does not end within 0.5 s" in dg_lsp("rewrite", "a.py:1", *options).error(2)
    assert script.denoiser is None


def test_a_file_outside_of_the_working_directory_is_refused(dg_lsp, script, file, tmp_path, monkeypatch):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert "change to its project" in dg_lsp("rewrite", "../a.py:1", "--test", "false").error(2)


def test_without_bubblewrap_nothing_runs_and_the_error_names_the_package(dg_lsp, script, file, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda _: None)
    message = dg_lsp("rewrite", "a.py:1", "--test", "false").error(2)
    assert message.startswith("--test needs bubblewrap")
    assert "apt-get install bubblewrap" in message


@pytest.mark.parametrize("is_tested", [False, True], ids=["before the model is loaded", "while candidates are tested"])
def test_an_interruption_changes_nothing(dg_lsp, script, file, monkeypatch, is_tested):
    script.fill = ("b = 2",)
    runs = Sandbox.run_command

    def interrupted(sandbox, command, folder, copy, **options):
        if is_tested == ("b = 2" in (copy / "a.py").read_text()):
            raise KeyboardInterrupt
        return runs(sandbox, command, folder, copy, **options)

    monkeypatch.setattr(Sandbox, "run_command", interrupted)
    outcome = dg_lsp("rewrite", "a.py:1", "--test", PASSES_WITH_TWO, "--write")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (130, "dg-lsp: interrupted")
    assert file.read_text() == "b = x\n"
