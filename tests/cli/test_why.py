"""`dg-lsp why`."""

import pytest
from scripted import ScriptedDenoiser

CODE = "def f(x):\n    return |\n"
LONG = f"[{', '.join(map(str, range(100, 147)))}]"  # its probability is 0.99 for each of its 235 characters and the end


OUTCOMES = {
    "shown": (CODE, "x + 1", "", 0, "The completion is shown: 94 % probable, after "),
    "refused": (CODE, "x + ) y", "", 1, "The completion is refused: it would add a syntax "),
    "empty": (CODE, "  ", "", 1, "There is no completion: the result is empty."),
    "improbable": (CODE, "x + 1", "min_confidence = 0.96", 1, "The completion is hidden: 94 % probable, below 96 %"),
    "begun": (CODE, LONG, "min_confidence = 0.1", 0, "The probable beginning of an improbable completion is shown: 4"),
    "faulty": ("x = |\n", "x", "", 1, "The completion is hidden unless you request it: it assigns "),
    "slow": (CODE, "x", "deadline_ms = 1", 1, "Too slow with scripted: nothing was stable after 1 ms "),
    "inside a word": ("val|ue_of = another\n", "", "", 1, "The cursor is inside a word: nothing is "),
    "on request only": (CODE, "", "trigger = 'manual'", 1, "Completions come only on request ("),
}


@pytest.mark.parametrize(("marked", "fill", "setting", "code", "sentence"), OUTCOMES.values(), ids=OUTCOMES)
def test_what_an_editor_does_with_a_completion_is_printed(
    dg_lsp, script, tmp_path, user_settings, marked, fill, setting, code, sentence
):
    script.model = ScriptedDenoiser(fill, step_seconds=0.01 if "deadline" in setting else 0.0)
    user_settings(f"[completion]\nearly_stop_ms = 0\nmax_tokens = 400\n{setting}\n")
    (tmp_path / "a.py").write_text(marked.replace("|", ""))
    *above, line = marked.partition("|")[0].split("\n")
    position = f"a.py:{len(above) + 1}:{len(line) + 1}"
    outcome = dg_lsp("why", position)
    first, *rest = outcome.out.splitlines()
    assert (outcome.code, first[: len(sentence)]) == (code, sentence)
    assert len(rest) == ("completion is " in sentence)
    assert all(map(fill.startswith, rest))
    assert list(dg_lsp("why", position, "--json").json) == ["outcome", "sentence", "text", "milliseconds"]


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
