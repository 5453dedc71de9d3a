"""`dg-lsp why`."""

import re

import pytest


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f(x):\n    return \n")
    return path


@pytest.mark.parametrize(
    ("fill", "code", "out"),
    [
        pytest.param("x + 1", 0, r"The completion is shown: .*\nx \+ 1\n", id="shown"),
        pytest.param("x + ) y", 1, r"The completion is refused: it would add a syntax .*\nx \+ \) y\n", id="refused"),
        pytest.param("  \n", 1, r"There is no completion: the result is empty\.\n", id="empty"),
    ],
)
def test_what_an_editor_does_with_a_completion_is_printed(dg_lsp, script, source, fill, code, out):
    script.fill = fill
    outcome = dg_lsp("why", f"{source}:2:12")
    assert outcome.code == code
    assert re.fullmatch(out, outcome.out)
    assert list(dg_lsp("why", f"{source}:2:12", "--json").json) == ["outcome", "sentence", "text", "milliseconds"]


def test_a_language_that_the_model_does_not_know_is_explained(dg_lsp, tmp_path):
    (tmp_path / "a.ts").write_text("const x = \n")
    outcome = dg_lsp("why", f"{tmp_path / 'a.ts'}:1")
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.startswith("dg-mini knows Python only")


def test_an_excluded_file_is_explained_without_a_model_also_behind_links(dg_lsp, script, tmp_path, monkeypatch):
    for name in (".env", ".ssh/config"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("key = 'hunter2'\n")
    (tmp_path / "settings.py").symlink_to(".env")
    monkeypatch.chdir(tmp_path / ".ssh")
    for name in ("config", "../settings.py"):
        assert "secrets" in dg_lsp("why", f"{name}:1").out
    assert script.denoiser is None
