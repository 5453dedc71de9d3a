"""`dg-lsp why`."""

import pytest


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f(x):\n    return \n")
    return path


def test_a_completion_that_an_editor_would_show_is_printed(dg_lsp, script, source):
    script.fill = "x + 1"
    outcome = dg_lsp("why", f"{source}:2:12")
    assert outcome.code == 0
    assert outcome.out.startswith("The completion is shown: ")
    assert outcome.out.endswith("\nx + 1\n")


def test_a_refused_completion_is_printed_with_the_reason(dg_lsp, script, source):
    script.fill = "x + ) y"
    outcome = dg_lsp("why", f"{source}:2:12")
    assert outcome.code == 1
    assert outcome.out == "The completion is refused: it would add a syntax error.\nx + ) y\n"
    assert list(dg_lsp("why", f"{source}:2:12", "--json").json) == ["outcome", "sentence", "text", "milliseconds"]


def test_an_empty_completion_is_not_printed(dg_lsp, script, source):
    script.fill = "  \n"
    outcome = dg_lsp("why", f"{source}:2:12")
    assert (outcome.code, outcome.out) == (1, "There is no completion: the result is empty.\n")


def test_a_language_that_the_model_does_not_know_is_explained(dg_lsp, tmp_path):
    (tmp_path / "a.ts").write_text("const x = \n")
    outcome = dg_lsp("why", f"{tmp_path / 'a.ts'}:1")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("dg-mini knows Python only")


def test_an_excluded_file_is_explained_without_a_model(dg_lsp, script, tmp_path):
    (tmp_path / ".env").write_text("KEY=\n")
    outcome = dg_lsp("why", f"{tmp_path / '.env'}:1")
    assert outcome.code == 1
    assert "secrets" in outcome.out
    assert script.denoiser is None


def test_the_path_in_full_and_behind_links_excludes_a_file(dg_lsp, script, tmp_path, monkeypatch):
    for name in (".env", ".ssh/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("key = 'hunter2'\n")
    (tmp_path / "settings.py").symlink_to(".env")
    monkeypatch.chdir(tmp_path / ".ssh")
    for name in ("config", "../settings.py"):
        assert "secrets" in dg_lsp("why", f"{name}:1").out
    assert script.denoiser is None
