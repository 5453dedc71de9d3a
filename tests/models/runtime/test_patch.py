import pytest

from dg_lsp.errors import ModelRuntimeError
from dg_lsp.models.build_runtime import GEMMA4, Patch

OLD = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_SWA_ONLY;\n"
NEW = "    hparams.non_causal_type = LLAMA_NON_CAUSAL_TYPE_ALL;\n"


WHERE = "    auto * inp_attn = build_attn_inp_kv_iswa();\n\n"
SOURCE = f"a\n{OLD}b\n{WHERE}c\n"


def changed(source=SOURCE):
    return Patch.read().apply(source, "0.9")


def test_the_patch_changes_two_places_of_one_file_and_says_why():
    patch = Patch.read()
    assert patch.target == "src/models/gemma4.cpp"
    (first, (where, added)) = patch.hunks
    assert first == (OLD, NEW)
    assert where == WHERE
    assert added.startswith(WHERE.rstrip("\n"))
    assert added.endswith("    res->add_input(std::make_unique<canvas_window>(inp_attn));\n\n")
    reason = GEMMA4.read_text().partition("\n--- ")[0]
    assert "stay causal" in reason
    assert "slides its window on" in reason


def test_it_is_applied_wherever_the_lines_stand():
    start, end = changed().split(Patch.read().hunks[1][1])
    assert (start, end) == (f"a\n{NEW}b\n", "c\n")
    assert changed(f"{WHERE}{OLD}") == f"{Patch.read().hunks[1][1]}{NEW}"


def test_it_knows_when_it_is_not_needed():
    patch = Patch.read()
    assert patch.is_in(changed())
    for source in ("", SOURCE, SOURCE.replace(OLD, NEW), changed() + OLD):
        assert not patch.is_in(source)


@pytest.mark.parametrize("source", ["", OLD + SOURCE, WHERE + SOURCE, SOURCE.replace("SWA_ONLY", "WINDOWED"), OLD])
def test_a_source_that_it_was_not_made_for_is_refused(source):
    with pytest.raises(ModelRuntimeError, match=r"gemma4.cpp of llama-cpp-python 0.9 .*update dg-lsp"):
        changed(source)


def test_context_and_several_hunks_are_understood(tmp_path):
    path = tmp_path / "other.patch"
    path.write_text(
        "Why.\n\n--- a/x.cpp\n+++ b/x.cpp\n@@ -1,2 +1,3 @@\n one\n+new\n two\n@@ -9 +10 @@ f()\n-old\n+young\n"
    )
    patch = Patch.read(path)
    assert patch.target == "x.cpp"
    assert patch.apply("one\ntwo\nthree\nold\n", "1") == "one\nnew\ntwo\nthree\nyoung\n"
