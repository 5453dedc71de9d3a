import io

import pytest

from dg_lsp.errors import ModelDownloadError
from dg_lsp.models import download, presets
from dg_lsp.models.registry import BUNDLED


@pytest.fixture
def pulled(tmp_path, monkeypatch):
    """The user's data folder is empty; a pull writes the file without fetching anything. Lists what was done."""
    monkeypatch.setenv("DG_LSP_DATA_DIR", str(tmp_path / "data"))
    done = []

    class Scripted(download.Pull):
        def licence(self):
            done.append("licence")
            return "Be good."

        def run(self, look):
            done.append("run")
            look("joining", 2)
            path = presets.GEMMA3_270M.path
            path.parent.mkdir(parents=True)
            path.write_bytes(b"GGUF")

    monkeypatch.setattr(download, "Pull", Scripted)
    monkeypatch.setattr(download, "is_pulled", lambda model: model.path.is_file())
    return done


@pytest.fixture
def answers(monkeypatch):
    """Somebody at a terminal answers the questions."""

    def give(text):
        terminal = io.StringIO(text)
        terminal.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", terminal)

    return give


def test_list_names_the_models_with_their_sizes(dg_lsp, pulled):
    outcome = dg_lsp("models", "list")
    assert outcome.code == 0
    size = f"{BUNDLED[0].path.stat().st_size / 1e6:.1f} MB"
    bundled, gemma, *from_hubs = outcome.out.splitlines()
    assert bundled == f"dg-mini  {size}  {BUNDLED[0].path}"
    assert gemma.startswith("gemma3-270m  253.1 MB  not here yet: dg-lsp models pull gemma3-270m")
    assert "Gemma Terms of Use" in gemma
    assert all(f"not here yet: dg-lsp models pull {row.split()[0]}  (" in row for row in from_hubs)
    assert "diffusiongemma" in [row.split()[0] for row in from_hubs]
    dg_lsp("models", "pull", "gemma3-270m", "--accept-licence")
    assert f"253.1 MB  {presets.GEMMA3_270M.path}  (" in dg_lsp("models", "list").out


def test_pull_fetches_once(dg_lsp, pulled):
    outcome = dg_lsp("models", "pull", "gemma3-270m", "--accept-licence")
    assert (outcome.code, outcome.out) == (0, f"{presets.GEMMA3_270M.path}\n")
    assert "ai.google.dev/gemma/terms" in outcome.err
    again = dg_lsp("models", "pull", "gemma3-270m")
    assert (again.code, again.out, again.err) == (0, outcome.out, "")
    assert pulled == ["run"]


def test_nobody_at_a_terminal_has_to_accept_in_words(dg_lsp, pulled, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    outcome = dg_lsp("models", "pull", "gemma3-270m")
    assert (outcome.code, outcome.out) == (2, "")
    assert "no open source licence" in outcome.err
    assert "--accept-licence" in outcome.err.splitlines()[-1]
    assert pulled == []


def test_a_person_reads_the_terms_and_agrees(dg_lsp, pulled, answers):
    answers("y\n")
    outcome = dg_lsp("models", "pull", "gemma3-270m")
    assert (outcome.code, outcome.out) == (0, f"{presets.GEMMA3_270M.path}\n")
    assert outcome.err.index("Be good.") < outcome.err.index("Do you agree to the Gemma Terms of Use?")
    assert pulled == ["licence", "run"]


@pytest.mark.parametrize("answer", ["n\n", "\n"])
def test_a_person_who_does_not_agree_gets_nothing(dg_lsp, pulled, answers, answer):
    answers(answer)
    outcome = dg_lsp("models", "pull", "gemma3-270m")
    assert (outcome.code, outcome.out) == (2, "")
    assert pulled == ["licence"]


def test_a_pull_that_fails_is_exit_code_3(dg_lsp, pulled, monkeypatch):
    def fail(self, look):
        raise ModelDownloadError("no network")

    monkeypatch.setattr(download.Pull, "run", fail)
    outcome = dg_lsp("models", "pull", "gemma3-270m", "--accept-licence")
    assert (outcome.code, outcome.out) == (3, "")
    assert outcome.err.endswith("dg-lsp: no network\n")


def test_a_bundled_model_needs_no_pull(dg_lsp, pulled):
    assert dg_lsp("models", "pull", "dg-mini").code == 0
    assert pulled == []


@pytest.mark.parametrize("arguments", [["dg-maxi"], ["gemma3-270m", "--from", "gone"]])
def test_pull_of_what_is_not_there_is_exit_code_2(dg_lsp, pulled, arguments):
    outcome = dg_lsp("models", "pull", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert arguments[-1] in outcome.err
    assert pulled == []


def test_a_model_that_is_not_here_yet_is_exit_code_3(dg_lsp, pulled):
    outcome = dg_lsp("models", "show", "gemma3-270m")
    assert (outcome.code, outcome.out) == (3, "")
    assert "dg-lsp models pull gemma3-270m" in outcome.err


def test_show_prints_spec_and_metadata(dg_lsp):
    outcome = dg_lsp("models", "show")
    assert outcome.code == 0
    assert outcome.err == ""
    assert "name: dg-mini\n" in outcome.out
    assert "noise: mask\n" in outcome.out
    assert "  dg.version = 1\n" in outcome.out
    assert "tokenizer." not in outcome.out
    assert dg_lsp("models", "show", "dg-mini").out == outcome.out
    by_path = dg_lsp("models", "show", BUNDLED[0].path)
    assert by_path.out == outcome.out


def test_show_of_an_unknown_model_is_exit_code_3(dg_lsp):
    outcome = dg_lsp("models", "show", "dg-maxi")
    assert (outcome.code, outcome.out) == (3, "")
    assert "dg-mini" in outcome.err
