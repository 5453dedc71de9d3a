def test_samples_prints_a_table_of_all_places(dg_lsp, script, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\nprint()\n")
    (tmp_path / "places.toml").write_text('[[places]]\nfile = "a.py"\nline = 2\ncol = 7\nexpect = ["x"]\n')
    script.fill = "x"
    outcome = dg_lsp("bench", "samples", tmp_path / "places.toml")
    assert outcome.code == 0
    assert "| a.py:2:7 | `x` | `x` | right | " in outcome.out
    assert outcome.out.endswith("1 of 1 as expected.\n")
    assert script.denoiser.is_closed


def test_samples_without_a_list_is_exit_code_2(dg_lsp, script):
    outcome = dg_lsp("bench", "samples", "gone.toml")
    assert outcome.code == 2
    assert "gone.toml" in outcome.err
    assert outcome.err.count("\n") == 1
    assert script.settings is None
