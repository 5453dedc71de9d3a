from dg_lsp.models.registry import BUNDLED


def test_list_names_the_bundled_model_with_its_size(dg_lsp):
    outcome = dg_lsp("models", "list")
    assert outcome.code == 0
    size = f"{BUNDLED[0].path.stat().st_size / 1e6:.1f} MB"
    assert outcome.out == f"dg-mini  {size}  {BUNDLED[0].path}\n"


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
